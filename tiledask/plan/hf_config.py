"""A Hugging Face config.json as a Model: families as data, and no guess about a key."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tiledask.errors import ConfigError
from tiledask.plan.data import Fields
from tiledask.plan.model import Model

__all__ = ["families", "model_from_config"]

_ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts",),
    "top_k": ("num_experts_per_tok",),
    "learned_pos": ("n_positions", "max_position_embeddings", "n_ctx"),
}


@dataclass(frozen=True)
class _Family:
    """What a ``model_type`` implies that its config.json does not say."""

    fixed: Mapping
    """Model fields that every member has."""
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    biases: Mapping = field(default_factory=dict)
    """Boolean key -> (its default, the Model fields it switches)."""
    dropout: Mapping = field(default_factory=dict)
    """Dropout key -> its default."""
    tied: bool = False
    """Default of tie_word_embeddings."""
    classes: tuple[str, ...] = ()
    """The ``architectures`` with exactly these weights."""


_BASE = ("hidden", "layers", "heads", "vocab")
_GPT = {"mlp": "gelu", "norm": "layernorm"}
_NO_BIAS = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
_LLAMA = {"mlp": "swiglu", "norm": "rmsnorm"}
_ATTENTION = ("qkv_bias", "out_bias")

_FAMILIES = MappingProxyType({
    "gpt2": _Family(
        _GPT, (*_BASE, "learned_pos"), ("ffn",), tied=True,
        dropout={"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
        classes=("GPT2LMHeadModel",),
    ),
    "gpt_neox": _Family(
        _GPT, (*_BASE, "ffn"),
        biases={"attention_bias": (True, _ATTENTION)},
        dropout={"attention_dropout": 0.0, "hidden_dropout": 0.0},
        classes=("GPTNeoXForCausalLM",),
    ),
    "bloom": _Family(
        {**_GPT, "embedding_norm": True}, _BASE, ("ffn",), tied=True,
        dropout={"attention_dropout": 0.0, "hidden_dropout": 0.0},
        classes=("BloomForCausalLM",),
    ),
    "llama": _Family(
        _LLAMA, (*_BASE, "ffn"), ("kv_heads", "head_dim"),
        biases={"attention_bias": (False, _ATTENTION), "mlp_bias": (False, ("mlp_bias",))},
        dropout={"attention_dropout": 0.0}, classes=("LlamaForCausalLM",),
    ),
    "mistral": _Family(
        {**_LLAMA, **_NO_BIAS}, (*_BASE, "ffn", "kv_heads"), ("head_dim",),
        dropout={"attention_dropout": 0.0},
        classes=("MistralForCausalLM",),
    ),
    "mixtral": _Family(
        {**_LLAMA, **_NO_BIAS}, (*_BASE, "ffn", "kv_heads", "experts", "top_k"), ("head_dim",),
        dropout={"attention_dropout": 0.0},
        classes=("MixtralForCausalLM",),
    ),
    "qwen2": _Family(
        {**_LLAMA, "qkv_bias": True, "out_bias": False, "mlp_bias": False},
        (*_BASE, "ffn", "kv_heads"), dropout={"attention_dropout": 0.0},
        classes=("Qwen2ForCausalLM",),
    ),
    "qwen3": _Family(
        {**_LLAMA, "mlp_bias": False, "qk_norm": "per_head"},
        (*_BASE, "ffn", "kv_heads", "head_dim"),
        biases={"attention_bias": (False, _ATTENTION)},
        dropout={"attention_dropout": 0.0}, classes=("Qwen3ForCausalLM",),
    ),
    "olmo": _Family(
        {"mlp": "swiglu", "norm": "none", "mlp_bias": False},
        (*_BASE, "ffn"), ("kv_heads",),
        biases={"attention_bias": (False, _ATTENTION)},
        dropout={"attention_dropout": 0.0}, classes=("OlmoForCausalLM",),
    ),
    "olmo2": _Family(
        {**_LLAMA, "mlp_bias": False, "qk_norm": "full"},
        (*_BASE, "ffn"), ("kv_heads",),
        biases={"attention_bias": (False, _ATTENTION)},
        dropout={"attention_dropout": 0.0}, classes=("Olmo2ForCausalLM",),
    ),
})  # fmt: skip

families = tuple(_FAMILIES)
"""The ``model_type`` values that are understood."""

# keys that change training, generation, precision or labels, but no parameter count
_HARMLESS = re.compile(
    r"""_.*|(.*_)?token_ids?|(torch_)?dtype|.*pdrop|.*dropout(_prob)?|rope_.*|rotary_.*|init.*_range
    |initializer_.*|(max_)?(seq|sequence)_len(gth)?|transformers_version|use_cache|(layer|rms)_norm_eps
    |layer_norm_epsilon|hidden_act|activation_function|sliding_window|use_sliding_window
    |max_window_layers|layer_types|max_position_embeddings|n_ctx|pretraining_tp|clip_qkv|summary_.*
    |scale_attn.*|reorder_and_upcast_attn|task_specific_params|output_(attentions|hidden_states)
    |output_router_logits|router_.*|use_parallel_residual|bias_dropout_fusion|skip_bias_add(_qkv)?
    |masked_softmax_fusion|offset_alibi|attention_softmax_in_fp32|slow_but_exact|unk_token_id
    |apply_residual_connection_post_layernorm|gradient_checkpointing|partial_rotary_factor
    |return_dict|torchscript|use_bfloat16|id2label|label2id|num_labels|problem_type
    |finetuning_task|tokenizer_class|name|source|classifier_dropout|auto_map
    |do_sample|temperature|top_p|num_beams|repetition_penalty|length_penalty|min_length|max_length
    |no_repeat_ngram_size|early_stopping|chunk_size_feed_forward""",
    re.VERBOSE,
)

# keys that add or drop weights unless they hold these values
_NEUTRAL = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "tie_encoder_decoder": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}


def model_from_config(config: Fields, name: str) -> Model:
    """The Model that ``config`` describes.

    A family or a key that may change the count and is not understood is a ConfigError.
    Counts are of trainable parameters; buffers in a checkpoint, such as the rotary
    frequencies in Llama 2's, are none.

    >>> config = Fields({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...                  "n_positions": 1024, "vocab_size": 50257}, "config.json")
    >>> model_from_config(config, "gpt2").parameters
    124439808
    """
    kind = config.text("model_type")
    if kind not in _FAMILIES:
        raise config.fail(
            "model_type", f"is {kind!r}; the families understood are {', '.join(_FAMILIES)}"
        )
    family = _FAMILIES[kind]
    _check_class(config, kind, family)
    values = {key: _aliased(config, key) for key in family.required}
    values |= {k: _aliased(config, k, 0) for k in family.optional}
    if not values["ffn"]:
        values["ffn"] = 4 * values["hidden"]
    for key, (default, targets) in family.biases.items():
        values |= dict.fromkeys(targets, config.boolean(key, default))
    rates = [config.number(key, default) for key, default in family.dropout.items()]
    tied = config.boolean("tie_word_embeddings", family.tied)
    _check_rest(config)
    source = config.text("source", "") or config.where
    try:
        return Model(
            **family.fixed, **values, tied=tied, dropout=any(rates), name=name, source=source
        )
    except ConfigError as error:
        raise ConfigError(f"{config.where}: {error}") from None


def _aliased(config: Fields, key: str, default: int | None = None) -> int:
    given = [alias for alias in _ALIASES[key] if alias in config]
    found = {alias: config.integer(alias) for alias in given}
    if key == "learned_pos":
        found = dict(list(found.items())[:1])  # n_ctx repeats n_positions in old configs
    if len(set(found.values())) > 1:
        raise config.fail(given[1], f"says otherwise than {given[0]!r}: {found}; keep one of them")
    if found:
        return found[given[0]]
    return config.integer(_ALIASES[key][0]) if default is None else default


def _check_class(config: Fields, kind: str, family: _Family) -> None:
    for name in config.texts("architectures", ()):
        if name not in family.classes:
            raise config.fail(
                "architectures",
                f"names {name!r}, whose head may hold other weights; for {kind!r} the count is "
                f"known of {', '.join(family.classes)}",
            )


def _check_rest(config: Fields) -> None:
    for key in config.left():
        value = config.values[key]
        if key in _NEUTRAL:
            if value not in _NEUTRAL[key]:
                raise config.fail(key, f"is {value!r}, which changes the parameter count here")
        elif value is not None and not _HARMLESS.fullmatch(key):
            raise config.fail(
                key,
                "is not understood and may change the parameter count; remove it if it does not",
            )
