"""Model families as data: what a Hugging Face model_type implies that its config does not say.

The weights are those of the class of that name in the transformers library; a key that can
change their number is either read, or refused unless it holds the value that changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

__all__ = ["ALIASES", "FAMILIES", "HARMLESS", "NEUTRAL", "SAME", "Family", "Switch"]

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "learned_pos": ("n_positions", "max_position_embeddings", "n_ctx"),
    "token_types": ("type_vocab_size",),
}
"""Field of a Model -> the keys that name it, the usual one first."""


Values = Mapping[str, object]
"""Fields of a Model, and what they are."""


@dataclass(frozen=True)
class Switch:
    """A key that is true or false, and the Model fields that it sets."""

    default: bool
    true: Values
    false: Values = field(default_factory=dict)


def _sets(default: bool, *fields: str) -> Switch:
    """The key's own value goes into ``fields``."""
    return Switch(default, dict.fromkeys(fields, True), dict.fromkeys(fields, False))


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` implies."""

    fixed: Values
    """Model fields that every member has."""
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    switches: Mapping[str, "Switch"] = field(default_factory=dict)
    """Boolean key -> what it changes."""
    dropout: Mapping[str, float] = field(default_factory=dict)
    """Dropout key -> its default."""
    tied: bool = False
    """Default of tie_word_embeddings."""
    classes: tuple[str, ...] = ()
    """The ``architectures`` with exactly these weights."""
    readers: tuple[str, ...] = ()
    """What else is read, by functions of hf_config's table."""
    window: int | None = None
    """Which layers have the ``sliding_window``: 0: all; n: all but each n-th; None: none has. What
    ``layer_types`` says goes first."""
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
_ATTENTION_BIAS = MappingProxyType({"attention_bias": _sets(False, *_ATTENTION)})
_LLAMA_BIAS = MappingProxyType({**_ATTENTION_BIAS, "mlp_bias": _sets(False, "mlp_bias")})
_QWEN3 = {**_LLAMA, "mlp_bias": False, "qk_norm": "per_head"}
_NEVER_BIAS = MappingProxyType({"attention_bias": (False,), "mlp_bias": (False,)})
_NO_DROPOUT = MappingProxyType({"attention_dropout": 0.0})
_TWO_DROPOUTS = MappingProxyType({"attention_dropout": 0.0, "hidden_dropout": 0.0})
_THREE_DROPOUTS = MappingProxyType(
    {"attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
)
_GEMMA = Family(
    {**_LLAMA, "mlp_bias": False},
    (*_BASE, "ffn", "kv_heads", "head_dim"),
    switches={**_ATTENTION_BIAS, "use_bidirectional_attention": Switch(False, {"causal": False})},
    dropout=_NO_DROPOUT,
    tied=True,
    classes=("GemmaForCausalLM",),
)
_COHERE = Family(  # its norm has a weight and no bias, as an RMS norm has
    {**_LLAMA, "mlp_bias": False, "layer_norms": 1},
    (*_BASE, "ffn"),
    ("kv_heads", "head_dim"),
    switches=_ATTENTION_BIAS,
    dropout=_NO_DROPOUT,
    tied=True,
    classes=("Cohere2ForCausalLM",),
    window=4,
    neutral={
        "use_qk_norm": (False,),
        "use_parallel_block": (True,),
        "use_gated_activation": (True,),
        "use_embedding_sharing": (True,),
        "use_parallel_embedding": (True, False),
        "position_embedding_type": ("rope_gptj",),
    },
)
_BERT = Family(
    {**_GPT, "embedding_norm": True, "final_norm": False, "head_dense": True, "head_bias": True}
    | {"causal": False},
    (*_BASE, "ffn", "learned_pos", "token_types"),
    dropout={"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1},
    tied=True,
    classes=("BertForMaskedLM", "BertLMHeadModel"),
    # of an untied head the bias is one or two, by the version of transformers
    neutral={
        "is_decoder": (False,),
        "tie_word_embeddings": (True,),
        "position_embedding_type": ("absolute",),
    },
)
_DEEPSEEK_V2 = Family(
    {**_LLAMA, "mlp_bias": False},
    (*_BASE, "ffn"),
    ("kv_heads",),
    switches=_ATTENTION_BIAS,
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
            switches={"attention_bias": _sets(True, *_ATTENTION)},
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
            switches=_LLAMA_BIAS,
            dropout=_NO_DROPOUT,
            classes=("LlamaForCausalLM", "LLaMAForCausalLM"),
        ),
        "smollm3": Family(
            _LLAMA,
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            switches=_LLAMA_BIAS,
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
            window=0,
            neutral=_NEVER_BIAS,
        ),
        "mixtral": Family(
            {**_LLAMA, **_NO_BIAS},
            (*_BASE, "ffn", "kv_heads", "experts", "top_k"),
            ("head_dim",),
            dropout=_NO_DROPOUT,
            classes=("MixtralForCausalLM",),
            window=0,
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
            switches={"qkv_bias": _sets(True, "qkv_bias")},
            dropout=_NO_DROPOUT,
            classes=("Qwen2MoeForCausalLM",),
            readers=("sparse step",),
        ),
        "qwen3": Family(
            _QWEN3,
            (*_BASE, "ffn", "kv_heads", "head_dim"),
            switches=_ATTENTION_BIAS,
            neutral={"use_qk_norm": (True,)},
            dropout=_NO_DROPOUT,
            classes=("Qwen3ForCausalLM",),
        ),
        "qwen3_moe": Family(
            _QWEN3,
            (*_BASE, "ffn", "kv_heads", "experts", "top_k", "expert_ffn"),
            ("head_dim",),
            switches=_ATTENTION_BIAS,
            neutral={"use_qk_norm": (True,)},
            dropout=_NO_DROPOUT,
            classes=("Qwen3MoeForCausalLM",),
            readers=("sparse step",),
        ),
        "olmo": Family(
            {"mlp": "swiglu", "norm": "none", "mlp_bias": False},
            (*_BASE, "ffn"),
            ("kv_heads",),
            switches=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("OlmoForCausalLM",),
        ),
        "olmo2": Family(
            {**_LLAMA, "mlp_bias": False, "qk_norm": "full"},
            (*_BASE, "ffn"),
            ("kv_heads",),
            switches=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("Olmo2ForCausalLM",),
        ),
        "deepseek_v2": _DEEPSEEK_V2,
        "deepseek_v3": replace(
            _DEEPSEEK_V2,
            classes=("DeepseekV3ForCausalLM",),
            router="noaux_tc",
        ),
        "phi": Family(
            {**_GPT, "layer_norms": 1, "head_bias": True},
            (*_BASE, "ffn"),
            ("kv_heads",),
            switches={"qk_layernorm": Switch(False, {"qk_norm": "per_head"})},
            dropout=_THREE_DROPOUTS,
            classes=("PhiForCausalLM",),
        ),
        "phi3": Family(
            {**_LLAMA, **_NO_BIAS},
            (*_BASE, "ffn"),
            ("kv_heads",),
            dropout=_THREE_DROPOUTS,
            classes=("Phi3ForCausalLM",),
            window=0,
            neutral=_NEVER_BIAS,
        ),
        "gemma": _GEMMA,
        "gemma2": replace(
            _GEMMA,
            fixed={**_GEMMA.fixed, "layer_norms": 4},
            classes=("Gemma2ForCausalLM",),
            window=2,
        ),
        "gemma3_text": replace(
            _GEMMA,
            fixed={**_GEMMA.fixed, "layer_norms": 4, "qk_norm": "per_head"},
            classes=("Gemma3ForCausalLM",),
            window=6,
        ),
        "granite": Family(
            _LLAMA,
            (*_BASE, "ffn"),
            ("kv_heads",),
            switches=_LLAMA_BIAS,
            dropout=_NO_DROPOUT,
            classes=("GraniteForCausalLM",),
        ),
        "starcoder2": Family(
            _GPT,
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            switches={"use_bias": _sets(True, *_ATTENTION, "mlp_bias")},
            dropout={"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0},
            tied=True,
            classes=("Starcoder2ForCausalLM",),
            window=0,
            neutral={"mlp_type": ("default",), "norm_type": ("layer_norm",)},
        ),
        "opt": Family(
            _GPT,
            (*_BASE, "ffn", "learned_pos"),
            switches={
                "enable_bias": _sets(True, *_ATTENTION, "mlp_bias"),
                "layer_norm_elementwise_affine": Switch(True, {}, {"norm": "none"}),
                "do_layer_norm_before": _sets(True, "final_norm"),
                "_remove_final_layer_norm": Switch(False, {"final_norm": False}),
            },
            dropout={"dropout": 0.1, "attention_dropout": 0.0},
            tied=True,
            classes=("OPTForCausalLM",),
            readers=("opt",),
        ),
        "olmoe": Family(
            {**_LLAMA, "mlp_bias": False, "qk_norm": "full"},
            (*_BASE, "ffn", "experts", "top_k"),
            ("kv_heads",),
            switches=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("OlmoeForCausalLM",),
        ),
        "stablelm": Family(
            {"mlp": "swiglu", "norm": "layernorm", "out_bias": False, "mlp_bias": False},
            (*_BASE, "ffn", "kv_heads"),
            switches={
                "use_qkv_bias": _sets(False, "qkv_bias"),
                "qk_layernorm": Switch(False, {"qk_norm": "own"}),
                "use_parallel_residual": Switch(False, {"layer_norms": 1}),
            },
            dropout=_TWO_DROPOUTS,
            classes=("StableLmForCausalLM",),
        ),
        "cohere": replace(
            _COHERE,
            switches={**_ATTENTION_BIAS, "use_qk_norm": Switch(False, {"qk_norm": "own"})},
            classes=("CohereForCausalLM",),
            window=None,
        ),
        "cohere2": _COHERE,
        "gpt_oss": Family(
            {**_LLAMA, "mlp_bias": True, "router_bias": True, "attention_sinks": True},
            (*_BASE, "ffn", "kv_heads", "head_dim", "experts", "top_k"),
            switches={"attention_bias": _sets(True, *_ATTENTION)},
            dropout=_NO_DROPOUT,
            classes=("GptOssForCausalLM",),
            window=2,
        ),
        "glm4_moe": Family(
            {**_LLAMA, "out_bias": False, "mlp_bias": False},
            (*_BASE, "ffn", "kv_heads"),
            ("head_dim",),
            switches={
                "attention_bias": _sets(False, "qkv_bias"),
                "use_qk_norm": Switch(False, {"qk_norm": "per_head"}),
            },
            dropout=_NO_DROPOUT,
            readers=("dense first", "floor"),
            router="noaux_tc",
            classes=("Glm4MoeForCausalLM",),
        ),
        "gptj": Family(
            {**_GPT, "layer_norms": 1, "head_bias": True, "qkv_bias": False, "out_bias": False},
            _BASE,
            ("ffn",),
            dropout={"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
            classes=("GPTJForCausalLM",),
        ),
        "falcon": Family(
            _GPT,
            _BASE,
            ("ffn",),
            switches={"bias": _sets(False, *_ATTENTION, "mlp_bias")},
            dropout=_TWO_DROPOUTS,
            tied=True,
            classes=("FalconForCausalLM",),
            readers=("falcon",),
        ),
        "llama4_text": Family(
            {**_LLAMA, "mlp_bias": False},
            (*_BASE, "ffn", "kv_heads", "head_dim", "experts", "top_k"),
            switches=_ATTENTION_BIAS,
            dropout=_NO_DROPOUT,
            classes=("Llama4ForCausalLM",),
            readers=("llama4",),
            neutral={"use_qk_norm": (True, False)},  # a norm without weights
        ),
        "qwen2_vl_text": Family(
            {**_LLAMA, **_QWEN_BIAS},
            (*_BASE, "ffn", "kv_heads"),
            dropout=_NO_DROPOUT,
            classes=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        ),
        "bert": _BERT,
        "roberta": replace(
            _BERT,
            fixed={**_BERT.fixed, "unused_pos": 2},
            classes=("RobertaForMaskedLM", "RobertaForCausalLM"),
        ),
    }
)
"""``model_type`` -> its family."""
SAME = {"qwen2_5_vl": "qwen2_vl", "qwen2_5_vl_text": "qwen2_vl_text"}
"""``model_type`` -> another one whose language model has the same weights."""

HARMLESS = r"""_.*|(.*_)?token_ids?|(torch_)?dtype|.*pdrop|.*dropout(_prob|_rate)?|init.*_range
|initializer_.*
|rope_(theta|scaling|parameters|interleave|type|local_base_freq|position_.*|traditional)
|rotary_(pct|emb_base)
|(max_)?(seq|sequence)_len(gth)?|max_position_embeddings|n_ctx|partial_rotary_factor
|no_rope_layers|no_rope_layer_interval|use_mrope|sliding_window|use_sliding_window|layer_types
|sliding_window_size|order_of_interleaved_layers
|max_window_layers|(layer|rms)_norm_eps|layer_norm_epsilon|hidden_act|activation_function
|pretraining_tp|clip_qkv|scale_att(n|ention_soft).*|reorder_and_upcast_attn|attention_softmax_in_fp32
|use_parallel_residual|bias_dropout_fusion|skip_bias_add(_qkv)?|masked_softmax_fusion
|offset_alibi|slow_but_exact|apply_residual_connection_post_layernorm
|router_(aux_loss_coef|jitter_noise|z_loss_coef)|output_router_logits|norm_topk_prob
|n_positions|rotary_dim|original_max_position_embeddings|norm_epsilon|query_pre_attn_scalar
|hidden_activation|activation|swiglu_(alpha|limit)|logit_scale|logits_scaling
|scale_(embedding|decoder_outputs)|forced_decoder_ids|directionality|output_past
|pooler_(act|fc_.*|num_.*|type)|pooler_size_per_head|model_max_length|rotary|ff_factor|initial_context_length
|(final|attn)_logit_softcapping|cache_implementation|alibi
|(embedding|residual|attention)_multiplier|.*layerdrop|init_std|attention_chunk_size
|attn_(scale|temperature_tuning)|floor_scale|for_llm_compressor
|aux_loss_alpha|seq_aux|ep_size|n_group|topk_group|routed_scaling_factor|scoring_func
|use_cache|gradient_checkpointing|chunk_size_feed_forward|use_bfloat16|torchscript
|summary_.*|task_specific_params|id2label|label2id|num_labels|problem_type|classifier_dropout
|finetuning_task|tokenizer_class|auto_map|transformers_version|unsloth_.*|name|source
|output_(attentions|hidden_states|scores)|return_dict(_in_generate)?|remove_invalid_values
|do_sample|temperature|top_p|top_k|typical_p|prefix|num_(beams|beam_groups|return_sequences)
|(repetition|length|diversity|exponential_decay_length)_penalty|min_length|max_length
|(encoder_)?no_repeat_ngram_size|early_stopping|bad_words_ids|(begin_)?suppress_tokens
|tf_legacy_loss"""
"""Keys of training, generation, precision or labels, as a verbose pattern: no parameter count
depends on them."""

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
