"""Model families as data: what a Hugging Face model_type implies that its config does not say.

The weights are those of the class of that name in the transformers library; a key that can
change their number is either read, or refused unless it holds the value that changes nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

__all__ = ["ALIASES", "FAMILIES", "HARMLESS", "NEUTRAL", "Family"]

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "learned_pos": ("n_positions", "max_position_embeddings", "n_ctx"),
}
"""Field of a Model -> the keys that name it, the usual one first."""


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` implies."""

    fixed: Mapping[str, object]
    """Model fields that every member has."""
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    biases: Mapping[str, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)
    """Boolean key -> (its default, the Model fields it switches)."""
    dropout: Mapping[str, float] = field(default_factory=dict)
    """Dropout key -> its default."""
    tied: bool = False
    """Default of tie_word_embeddings."""
    classes: tuple[str, ...] = ()
    """The ``architectures`` with exactly these weights."""
    readers: tuple[str, ...] = ()
    """What else is read, by functions of hf_config: "sparse step", "dense first", "latent"."""
    router: str = "greedy"
    """Default of topk_method, for a "dense first" family."""
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that change weights of this family unless they hold one of these values."""


_BASE = ("hidden", "layers", "heads", "vocab")
_GPT = {"mlp": "gelu", "norm": "layernorm"}
_LLAMA = {"mlp": "swiglu", "norm": "rmsnorm"}
_NO_BIAS = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
_QWEN_BIAS = {"qkv_bias": True, "out_bias": False, "mlp_bias": False}
_ATTENTION = ("qkv_bias", "out_bias")
_ATTENTION_BIAS = MappingProxyType({"attention_bias": (False, _ATTENTION)})
_LLAMA_BIAS = MappingProxyType({**_ATTENTION_BIAS, "mlp_bias": (False, ("mlp_bias",))})
_QWEN3 = {**_LLAMA, "mlp_bias": False, "qk_norm": "per_head"}
_NEVER_BIAS = MappingProxyType({"attention_bias": (False,), "mlp_bias": (False,)})
_NO_DROPOUT = MappingProxyType({"attention_dropout": 0.0})
_TWO_DROPOUTS = MappingProxyType({"attention_dropout": 0.0, "hidden_dropout": 0.0})
_DEEPSEEK_V2 = Family(
    {**_LLAMA, "mlp_bias": False},
    (*_BASE, "ffn"),
    ("kv_heads",),
    biases=_ATTENTION_BIAS,
    dropout=_NO_DROPOUT,
    readers=("latent", "dense first"),
    neutral={"mlp_bias": (False,)},
    classes=("DeepseekV2ForCausalLM",),
)

FAMILIES = MappingProxyType(
    {
        "gpt2": Family(
            _GPT,
            (*_BASE, "learned_pos"),
            ("ffn",),
            tied=True,
            dropout={"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
            classes=("GPT2LMHeadModel",),
        ),
        "gpt_neox": Family(
            _GPT,
            (*_BASE, "ffn"),
            biases={"attention_bias": (True, _ATTENTION)},
            dropout=_TWO_DROPOUTS,
            classes=("GPTNeoXForCausalLM",),
        ),
        "bloom": Family(
            {**_GPT, "embedding_norm": True},
            _BASE,
            ("ffn",),
            tied=True,
            dropout=_TWO_DROPOUTS,
            classes=("BloomForCausalLM",),
        ),
        "llama": Family(
            _LLAMA,
            (*_BASE, "ffn"),
            ("kv_heads", "head_dim"),
            biases=_LLAMA_BIAS,
            dropout=_NO_DROPOUT,
            classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
        ),
        "smollm3": Family(
            _LLAMA,
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            biases=_LLAMA_BIAS,
            tied=True,
            dropout=_NO_DROPOUT,
            classes=("SmolLM3ForCausalLM",),
        ),
        "mistral": Family(
            {**_LLAMA, **_NO_BIAS},
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            dropout=_NO_DROPOUT,
            classes=("MistralForCausalLM",),
            neutral=_NEVER_BIAS,
        ),
        "mixtral": Family(
            {**_LLAMA, **_NO_BIAS},
            (*_BASE, "ffn", "kv_heads", "experts", "top_k"),
            ("head_dim",),
            dropout=_NO_DROPOUT,
            classes=("MixtralForCausalLM",),
            neutral=_NEVER_BIAS,
        ),
        "qwen2": Family(
            {**_LLAMA, **_QWEN_BIAS},
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            dropout=_NO_DROPOUT,
            classes=("Qwen2ForCausalLM",),
        ),
        "qwen2_moe": Family(
            {**_LLAMA, **_QWEN_BIAS, "shared_gate": True},
            (*_BASE, "ffn", "kv_heads", "experts", "top_k", "expert_ffn", "shared_ffn"),
            biases={"qkv_bias": (True, ("qkv_bias",))},
            dropout=_NO_DROPOUT,
            classes=("Qwen2MoeForCausalLM",),
            readers=("sparse step",),
        ),
        "qwen3": Family(
            _QWEN3,
            (*_BASE, "ffn", "kv_heads", "head_dim"),
            biases=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("Qwen3ForCausalLM",),
        ),
        "qwen3_moe": Family(
            _QWEN3,
            (*_BASE, "ffn", "kv_heads", "head_dim", "experts", "top_k", "expert_ffn"),
            biases=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("Qwen3MoeForCausalLM",),
            readers=("sparse step",),
        ),
        "olmo": Family(
            {"mlp": "swiglu", "norm": "none", "mlp_bias": False},
            (*_BASE, "ffn"),
            ("kv_heads",),
            biases=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("OlmoForCausalLM",),
        ),
        "olmo2": Family(
            {**_LLAMA, "mlp_bias": False, "qk_norm": "full"},
            (*_BASE, "ffn"),
            ("kv_heads",),
            biases=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("Olmo2ForCausalLM",),
        ),
        "deepseek_v2": _DEEPSEEK_V2,
        "deepseek_v3": replace(
            _DEEPSEEK_V2,
            classes=("DeepseekV3ForCausalLM",),
            router="noaux_tc",
        ),
    }
)
"""``model_type`` -> its family."""

HARMLESS = re.compile(
    r"""_.*|(.*_)?token_ids?|(torch_)?dtype|.*pdrop|.*dropout(_prob)?|init.*_range|initializer_.*
    |rope_(theta|scaling|parameters|interleave|type|local_base_freq|position_.*|traditional)
    |rotary_(pct|emb_base)
    |(max_)?(seq|sequence)_len(gth)?|max_position_embeddings|n_ctx|partial_rotary_factor
    |no_rope_layers|no_rope_layer_interval|use_mrope|sliding_window|use_sliding_window|layer_types
    |max_window_layers|(layer|rms)_norm_eps|layer_norm_epsilon|hidden_act|activation_function
    |pretraining_tp|clip_qkv|scale_attn.*|reorder_and_upcast_attn|attention_softmax_in_fp32
    |use_parallel_residual|bias_dropout_fusion|skip_bias_add(_qkv)?|masked_softmax_fusion
    |offset_alibi|slow_but_exact|apply_residual_connection_post_layernorm
    |router_(aux_loss_coef|jitter_noise|z_loss_coef)|output_router_logits|norm_topk_prob
    |aux_loss_alpha|seq_aux|ep_size|n_group|topk_group|routed_scaling_factor|scoring_func
    |use_cache|gradient_checkpointing|chunk_size_feed_forward|use_bfloat16|torchscript
    |summary_.*|task_specific_params|id2label|label2id|num_labels|problem_type|classifier_dropout
    |finetuning_task|tokenizer_class|auto_map|transformers_version|unsloth_.*|name|source
    |output_(attentions|hidden_states|scores)|return_dict(_in_generate)?|remove_invalid_values
    |do_sample|temperature|top_p|top_k|typical_p|prefix|num_(beams|beam_groups|return_sequences)
    |(repetition|length|diversity|exponential_decay_length)_penalty|min_length|max_length
    |(encoder_)?no_repeat_ngram_size|early_stopping|bad_words_ids|(begin_)?suppress_tokens
    |tf_legacy_loss""",
    re.VERBOSE,
)
"""Keys of training, generation, precision or labels: no parameter count depends on them."""

NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "add_cross_attention": (False,),
        "is_encoder_decoder": (False,),
        "is_decoder": (False, True),
        "tie_encoder_decoder": (False,),
        "cross_attention_hidden_size": (None,),
        "pruned_heads": ({}, None),
    }
)
"""Keys that add or drop weights unless they hold one of these values."""
