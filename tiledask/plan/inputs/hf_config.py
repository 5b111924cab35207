"""A Hugging Face config.json as a Model: every key is understood, harmless or refused."""

from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import Fields
from tiledask.plan.inputs.families import ALIASES, FAMILIES, HARMLESS, NEUTRAL, Family
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.model_rules import MOST_LAYERS

__all__ = ["families", "model_from_config"]

families = tuple(FAMILIES)
"""The ``model_type`` values that are understood."""
_Sizes = dict[str, Any]
"""Fields of a Model, each of its own type."""


def model_from_config(config: Fields, name: str) -> Model:
    """The Model that ``config`` describes.

    A family or a key that may change the count and is not understood is a ConfigError.
    Counts are of trainable parameters; buffers in a checkpoint, such as the rotary
    frequencies in Llama 2's, are none. The load-balancing bias of DeepSeek-V3's router is
    one, as in its published 671 B; its multi-token-prediction layer is known but not counted
    (``mtp_layers``, ``with_mtp``).

    >>> config = Fields({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...                  "n_positions": 1024, "vocab_size": 50257}, "config.json")
    >>> model_from_config(config, "gpt2").parameters
    124439808
    """
    if "model_type" not in config and "text_config" in config:
        raise config.fail("model_type", f"is missing. {_way(config)}")
    kind = config.text("model_type")
    if kind not in FAMILIES:
        raise config.fail(
            "model_type",
            f"is {short(kind)}; the families understood are {', '.join(families)}. {_way(config)}",
        )
    family = FAMILIES[kind]
    for head in config.texts("architectures", ()):
        if head not in family.classes:
            raise config.fail(
                "architectures",
                f"names {short(head)}, whose head may hold other weights; for {kind!r} the count "
                f"is known of {', '.join(family.classes)}. {_way(config)}",
            )
    values: _Sizes = {key: _aliased(config, key) for key in family.required}
    values |= {key: _aliased(config, key, 0) for key in family.optional}
    if not values["ffn"]:
        values["ffn"] = 4 * values["hidden"]
    for key, (default, targets) in family.biases.items():
        values |= dict.fromkeys(targets, config.boolean(key, default))
    for reader in family.readers:
        values |= _READERS[reader](config, family, values)
    rates = [config.number(key, default) for key, default in family.dropout.items()]
    tied = config.boolean("tie_word_embeddings", family.tied)
    _check_quantization(config)
    _check_rest(config, family)
    source = config.text("source", "") or config.where
    try:
        return Model(
            **{**family.fixed, **values}, tied=tied, dropout=any(rates), name=name, source=source
        )
    except ConfigError as error:
        raise ConfigError(f"{config.where}: {error}") from None


def _way(config: Fields) -> str:
    """How to go on with a model that is not understood."""
    if isinstance(config.values.get("text_config"), dict):
        return (
            "Its language model is the object under 'text_config': save that as a config.json of "
            "its own, or describe it by hand with td.Model(...)"
        )
    return (
        "A model like one of them is described by hand: "
        "td.Model(layers=..., hidden=..., heads=..., ffn=..., vocab=...)"
    )


def _aliased(config: Fields, key: str, default: int | None = None) -> int:
    given = [alias for alias in ALIASES[key] if alias in config]
    found = {alias: config.integer(alias) for alias in given}
    if key == "learned_pos":
        found = dict(list(found.items())[:1])  # n_ctx repeats n_positions in old configs
    if len(set(found.values())) > 1:
        shown = {alias: short(value) for alias, value in found.items()}
        raise config.fail(given[1], f"says otherwise than {given[0]!r}: {shown}; keep one of them")
    if found:
        return found[given[0]]
    if default is None:
        first, *others = ALIASES[key]
        either = f", or write it as {' or '.join(others)}" if others else ""
        raise config.fail(first, f"is missing; add it{either}")
    return default


def _sparse_step(config: Fields, family: Family, values: _Sizes) -> _Sizes:
    """Qwen's mixtures: every decoder_sparse_step-th layer, less mlp_only_layers."""
    step = config.integer("decoder_sparse_step", 1)
    listed = set(config.integers("mlp_only_layers", ()))
    layers = range(_few_layers(config, values))
    return {"dense_layers": tuple(i for i in layers if i in listed or (i + 1) % step)}


def _dense_first(config: Fields, family: Family, values: _Sizes) -> _Sizes:
    """DeepSeek's mixtures: first_k_dense_replace dense layers, then one in moe_layer_freq."""
    experts, width = _aliased(config, "experts", 0), _aliased(config, "expert_ffn", 0)
    top_k, every = _aliased(config, "top_k", 0), config.integer("moe_layer_freq", 1)
    shared = config.integer("n_shared_experts", 0, minimum=0)
    first = config.integer("first_k_dense_replace", 0, minimum=0)
    method = config.text("topk_method", family.router)
    read: _Sizes = {"mtp_layers": config.integer("num_nextn_predict_layers", 0, minimum=0)}
    if not experts:  # null: every layer is dense
        return read
    for key in ("moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace"):
        config.integer(key, minimum=0)  # what transformers would assume differs by version
    if (method == "noaux_tc") != (family.router == "noaux_tc"):
        raise config.fail(
            "topk_method",
            f"is {short(method)}; whether this model_type's router has a bias is known only of "
            f"{family.router!r} and its like",
        )
    layers = range(_few_layers(config, values))
    return read | {
        "experts": experts,
        "top_k": top_k,
        "expert_ffn": width,
        "shared_ffn": shared * width,
        "router_bias": method == "noaux_tc",
        "dense_layers": tuple(i for i in layers if i < first or i % every),
    }


def _latent(config: Fields, family: Family, values: _Sizes) -> _Sizes:
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
            raise config.fail(
                key, f"must be {' or '.join(map(str, allowed))} in latent attention; leave it out"
            )
    return read | {"q_lora_rank": config.integer("q_lora_rank") if "q_lora_rank" in config else 0}


_READERS = {"sparse step": _sparse_step, "dense first": _dense_first, "latent": _latent}


def _few_layers(config: Fields, values: _Sizes) -> int:
    """The layers, once it is safe to count through them."""
    layers: int = values["layers"]
    if layers > MOST_LAYERS:
        raise ConfigError(
            f"{config.where}: layers must be at most {MOST_LAYERS:,}, got {short(layers)}"
        )
    return layers


def _check_quantization(config: Fields) -> None:
    """fp8 changes the bytes of a weight and adds scales, which are no parameters; other methods
    pack or replace weights."""
    if "quantization_config" not in config:
        return
    method = config.object("quantization_config").values.get("quant_method")
    if method != "fp8":
        raise config.fail(
            "quantization_config",
            f"has quant_method {short(method)}, whose packed weights are not counted here; take "
            "the config.json of the model before it was quantized",
        )


def _check_rest(config: Fields, family: Family) -> None:
    neutral = {**NEUTRAL, **family.neutral}
    for key in config.left():
        value = config.values[key]
        if key in neutral:
            if not any(value is held or value == held for held in neutral[key]):
                raise config.fail(key, f"is {short(value)}, which changes the parameter count here")
        elif value is not None and not HARMLESS.fullmatch(key):
            raise config.fail(
                key,
                "is not understood and may change the parameter count; remove it if it does not",
            )
