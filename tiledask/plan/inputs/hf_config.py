"""A Hugging Face config.json as a Model: every key is understood, harmless, ignored or refused.

data/families.json has

    aliases    keys of config.json that name a field of a Model, the usual one first
    same       the model_type whose language model has the same weights
    neutral    keys that add or drop weights unless they hold one of these values
    harmless   patterns of keys that no parameter count depends on
    families   a row for each model_type, or what it has that another, which it is "like", has not

A row has "fixed" fields of a Model; those that its keys give, "required" and "optional"; its
"switches": a key, its "default", the fields that it "sets" or that are so where it is "true" or
"false"; "dropout" keys and their defaults; whether the output projection is "tied" by default; the
"classes" with exactly these weights; which layers have the "window", 0: all; n: all but each n-th;
and "readers", functions of this module for the rest.
"""

import re
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import Fields, shipped_json
from tiledask.plan.inputs.model import MOST_LAYERS, Model

__all__ = ["families", "model_from_config"]

Row = dict[str, Any]
"""A family of the file, or fields of a Model and their values."""
KEYS: Row = shipped_json("families.json")
families: dict[str, Row] = {}
"""``model_type`` -> its family, of those that are understood."""
for _name, _own in KEYS["families"].items():
    _like = families.get(_own.get("like", ""), {})
    families[_name] = _like | {  # tables are added to, the rest is replaced
        key: _like.get(key, {}) | value if isinstance(value, dict) else value
        for key, value in _own.items()
    }

BASE = ("hidden", "layers", "heads", "vocab")
"""Fields of a Model that every config gives."""
STRUCTURE = (
    r"(.*_)?(num|n|size|dims?|ranks?|heads?|layers?|experts?|bias|norms?|width|hidden|intermediate"
    r"|mlp|ffn|attn|attention|conv|ssm|mamba|state|lora|adapters?|tied?|gated?|moe|shared|blocks?"
    r"|pattern|kernel|proj|projection|embeddings?|embed|mtp|nextn|indexer|index)(_.*)?"
)
"""Words in the keys that may add or drop weights."""
BY_HAND = (
    "A model like one of them is described by hand: "
    "td.Model(layers=..., hidden=..., heads=..., ffn=..., vocab=...)"
)
"""How to go on with a model that is not understood."""


def model_from_config(config: Fields, name: str) -> Model:
    """The Model that ``config`` describes.

    A family or a key that may change the count and is not understood is a ConfigError. Counts are
    of trainable parameters. The load-balancing bias of DeepSeek-V3's router is one, as in its
    published 671 B; its multi-token-prediction layer is not counted. Of a model of images and text
    it is the language model alone, with its output projection, as its ``name`` says.

    >>> config = Fields({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...                  "n_positions": 1024, "vocab_size": 50257}, "config.json")
    >>> model_from_config(config, "gpt2").parameters
    124439808
    """
    if (inner := _language(config)) is not None:
        return model_from_config(inner, f"{name}, text alone")
    kind = _kind(config.text("model_type"))
    if kind not in families:
        rule = f"is {short(kind)}; the families understood are {', '.join(families)}. {BY_HAND}"
        raise config.fail("model_type", rule)
    source = config.text("source", "") or config.where
    family = families[kind]
    for head in config.texts("architectures", ()):
        if head not in family["classes"]:
            rule = f"names {short(head)}, whose head may hold other weights; for {kind!r} the count"
            rule += f" is known of {', '.join(family['classes'])}. {BY_HAND}"
            raise config.fail("architectures", rule)
    required = *BASE, *family.get("required", ())
    values: Row = family["fixed"] | {key: _aliased(config, key) for key in required}
    values |= {key: _aliased(config, key, 0) for key in family.get("optional", ())}
    if values["layers"] > MOST_LAYERS:  # readers count through them
        given = short(values["layers"])
        raise ConfigError(f"{config.where}: layers must be at most {MOST_LAYERS:,}, got {given}")
    values["ffn"] = values.get("ffn") or 4 * values["hidden"]
    for key, switch in family.get("switches", {}).items():
        on = config.boolean(key, switch["default"])
        values |= dict.fromkeys(switch.get("sets", ()), on) | switch.get(str(on).lower(), {})
    for reader in family.get("readers", ()):
        values |= _READERS[reader](config, family, values)
    if family.get("rounds_head_dim"):
        values["head_dim"] = values["head_dim"] or values["hidden"] // values["heads"]
    if family.get("window") is not None and "sliding_window" in config:
        values |= _window(config, family["window"], values["layers"])
    rates = [config.number(key, default) for key, default in family["dropout"].items()]
    values["tied"] = config.boolean("tie_word_embeddings", family.get("tied", False))
    if ignored := _check_rest(config, family):
        source += f"; not read, as the family's class has no such key: {', '.join(ignored)}"
    try:
        return Model(**values, dropout=any(rates), name=name, source=source)
    except ConfigError as error:
        raise ConfigError(f"{config.where}: {error}") from None


def _language(config: Fields) -> Fields | None:
    """The config of the language model in that of a model of images and text, if it is one that is
    understood: under "text_config", or in older files among the others' keys."""
    outer, inner = config.values, config.values.get("text_config")
    kind = _kind(outer.get("model_type"))
    within = _kind(inner.get("model_type")) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and within in families and kind not in families:
        # which of both says whether the output projection is the embedding's table
        shared = ["quantization_config", *["tie_word_embeddings"] * (kind != "llama4")]
        inner = inner | {key: outer[key] for key in shared if outer.get(key) is not None}
        return Fields(inner, f"{config.where}, text_config")
    if inner is None and "vision_config" in outer and f"{kind}_text" in families:
        others = {"architectures": None, "vision_config": None, "model_type": f"{kind}_text"}
        return Fields({k: v for k, v in (outer | others).items() if v is not None}, config.where)
    return None


def _kind(model_type: Any) -> Any:
    return KEYS["same"].get(model_type, model_type) if isinstance(model_type, str) else None


def _aliased(config: Fields, key: str, default: int | None = None) -> int:
    first, *others = names = KEYS["aliases"][key]
    found = {name: config.integer(name) for name in names if name in config}
    if key == "learned_pos":
        found = dict(list(found.items())[:1])  # n_ctx repeats n_positions in old configs
    if len(set(found.values())) > 1:
        shown = {name: short(value) for name, value in found.items()}
        rule = f"says otherwise than another: {shown}; keep one of them"
        raise config.fail([*found][1], rule)
    if not found and default is None:
        either = f", or write it as {' or '.join(others)}" if others else ""
        raise config.fail(first, f"is missing; add it{either}")
    return next(iter(found.values()), default or 0)


def _window(config: Fields, every: int, layers: int) -> Row:
    """The window, and the layers that have it: as listed, or all but each ``every``-th."""
    every = config.integer("sliding_window_pattern", every, minimum=0)
    usual = ["full_attention" if every and not (i + 1) % every else "" for i in range(layers)]
    kinds = config.texts("layer_types", usual)[:layers]
    near = sum(kind != "full_attention" for kind in kinds)
    width = config.integer("sliding_window")
    return {"window": width, "windowed_layers": near} if near else {}


def _sparse_step(config: Fields, family: Row, values: Row) -> Row:
    """Qwen's mixtures: every decoder_sparse_step-th layer, less mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1)
    listed = set(config.integers("mlp_only_layers", ()))
    layers = range(values["layers"])
    return {"dense_layers": tuple(i for i in layers if i in listed or (i + 1) % step)}


def _dense_first(config: Fields, family: Row, values: Row) -> Row:
    """DeepSeek's mixtures: first_k_dense_replace dense layers, then one in moe_layer_freq."""
    read: Row = {key: _aliased(config, key, 0) for key in ("experts", "expert_ffn", "top_k")}
    every = config.integer("moe_layer_freq", 1)
    shared = config.integer("n_shared_experts", 0, minimum=0)
    first = config.integer("first_k_dense_replace", 0, minimum=0)
    router = family.get("router", "greedy")
    method = config.text("topk_method", router)
    if not read["experts"]:  # null: every layer is dense
        return {}
    for key in ("moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace"):
        config.integer(key, minimum=0)  # what transformers would assume differs by version
    if "n_shared_experts" not in config.values:
        raise config.fail("n_shared_experts", "is missing; add it, null if there are none")
    if (method == "noaux_tc") != (router == "noaux_tc"):
        rule = f"is {short(method)}; the count is known of {router!r} and its like"
        raise config.fail("topk_method", rule)
    read |= {"shared_ffn": shared * read["expert_ffn"], "router_bias": method == "noaux_tc"}
    dense = (i for i in range(values["layers"]) if i < first or i % every)
    return read | {"dense_layers": tuple(dense)}


def _latent(config: Fields, family: Row, values: Row) -> Row:
    """Multi-head latent attention; q_lora_rank must be there, null where queries are direct."""
    if "q_lora_rank" not in config.values:
        raise config.fail("q_lora_rank", "is missing; add it, null if queries are not compressed")
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    read = {key: config.integer(key) for key in keys}
    rotary = read["qk_rope_head_dim"]
    whole = read["qk_nope_head_dim"] + rotary
    # transformers writes what follows from the others, and calls the rotary part head_dim
    for key, allowed in (("head_dim", (rotary, whole)), ("qk_head_dim", (whole,))):
        if config.integer(key, allowed[0]) not in allowed:
            rule = f"must be {' or '.join(map(str, allowed))} in latent attention; leave it out"
            raise config.fail(key, rule)
    return read | {"q_lora_rank": config.integer("q_lora_rank") if "q_lora_rank" in config else 0}


def _opt(config: Fields, family: Row, values: Row) -> Row:
    """Two rows more than positions; an embedding as wide as the layers."""
    if config.integer("word_embed_proj_dim", values["hidden"]) != values["hidden"]:
        raise config.fail("word_embed_proj_dim", "must be hidden_size: narrower is not planned")
    return {"learned_pos": values["learned_pos"] + 2, "unused_pos": 2}


def _falcon(config: Fields, family: Row, values: Row) -> Row:
    """One key-value head, groups, or all; attention and MLP side by side, or in turn."""
    groups = config.integer("num_kv_heads", values["heads"])
    new = config.boolean("new_decoder_architecture", False)
    one = config.boolean("multi_query", True) and not new
    side = config.boolean("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 1 + new)
    groups = groups if new else values["heads"]
    return {"kv_heads": 1 if one else groups, "layer_norms": 1 if side and norms != 2 else 2}


def _llama4(config: Fields, family: Row, values: Row) -> Row:
    """Mixtures in the layers listed, or in every n-th; a shared expert as wide as the others."""
    step, width = config.integer("interleave_moe_layer_step", 1), values["ffn"]
    layers = values["layers"]
    mixtures = set(config.integers("moe_layers", tuple(range(step - 1, layers, step))))
    read: Row = {"ffn": config.integer("intermediate_size_mlp")}
    if not mixtures & {*range(layers)}:
        return read | {"experts": 0, "top_k": 0}
    dense = tuple(i for i in range(layers) if i not in mixtures)
    return read | {"expert_ffn": width, "shared_ffn": width, "dense_layers": dense}


_READERS = {
    "sparse step": _sparse_step,
    "dense first": _dense_first,
    "latent": _latent,
    "opt": _opt,
    "falcon": _falcon,
    "llama4": _llama4,
}


def _check_rest(config: Fields, family: Row) -> list[str]:
    """The keys that are ignored; ConfigError for all those at once that may change weights."""
    if "quantization_config" in config:
        # fp8 and mxfp4 change the bytes of a weight and add scales, which are no parameters
        method = config.object("quantization_config").values.get("quant_method")
        if method not in ("fp8", "mxfp4"):
            rule = f"has quant_method {short(method)}, whose packed weights are not counted here"
            rule += "; take the config.json of the model before it was quantized"
            raise config.fail("quantization_config", rule)
    neutral, harmless = KEYS["neutral"] | family.get("neutral", {}), "|".join(KEYS["harmless"])
    ignored, wrong = [], []
    for key in config.left():
        value = config.values[key]
        if key in neutral:
            if not any(value is held or value == held for held in neutral[key]):
                wrong.append(f"{key!r} is {short(value)}, which changes the parameter count here")
        elif value and not re.fullmatch(harmless, key):
            if "auto_map" in config or re.fullmatch(STRUCTURE, key):
                wrong.append(f"{key!r} is not understood and may change the parameter count")
            else:
                ignored.append(key)
    if wrong:
        raise ConfigError(f"{config.where}: key {'; key '.join(wrong)}; remove what does not")
    return ignored
