"""Model families as data: what a Hugging Face model_type implies that its config does not say.

data/families.json has a row for each, or what it has that another, which it is "like", has not.
The weights are those of the class of that name in the transformers library; a key that can
change their number is either read, or refused unless it holds the value that changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiledask.plan.data import shipped_json

__all__ = ["ALIASES", "FAMILIES", "HARMLESS", "NEUTRAL", "SAME", "Family"]

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


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` implies."""

    fixed: Mapping[str, object]
    """Model fields that every member has."""
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    switches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Boolean key -> its "default", and the Model fields that its value goes into, "sets", or
    what they are where it is "true" or "false"."""
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
    neutral: Mapping[str, list[object]] = field(default_factory=dict)
    """Keys that change weights of this family unless they hold one of these values."""


def _families() -> dict[str, Family]:
    """Those of the file: of one that is like another, tables are added to and the rest replaced."""
    rows: dict[str, dict[str, Any]] = {}
    for name, own in shipped_json("families.json").items():
        rows[name] = dict(rows.get(own.pop("like", ""), {}))
        for key, value in own.items():
            more = isinstance(value, dict) and key in rows[name]
            rows[name][key] = rows[name][key] | value if more else value
    base = ("hidden", "layers", "heads", "vocab")
    found = {}
    for name, row in rows.items():
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[name] = Family(**values | {"required": (*base, *row.get("required", ()))})
    return found


FAMILIES = _families()
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

NEUTRAL: Mapping[str, list[object]] = {
    "add_cross_attention": [False],
    "is_encoder_decoder": [False],
    "is_decoder": [False, True],
    "tie_encoder_decoder": [False],
    "cross_attention_hidden_size": [None],
    "pruned_heads": [{}, None],
}
"""Keys that add or drop weights unless they hold one of these values."""
