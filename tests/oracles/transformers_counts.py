"""Parameter counts as transformers itself gives them, for test_families.py: a maker, not a test.

Run where torch and transformers are, which tiledask does not need:

    python tests/oracles/transformers_counts.py   # writes transformers_counts.json beside it

A family is a config.json as save_pretrained writes it, and its cases: which keys another has
otherwise (null: not at all), and its parameters. Weights are made on torch's meta device, which
holds none. Tied weights count once; so does the bias that balances a router's load, which
transformers keeps as a buffer.
"""

import json
from pathlib import Path

GQA = {"num_key_value_heads": 2}
MHA = {"num_key_value_heads": 6}
TIES = [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}]
TINY = {
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "intermediate_size": 80,
    "vocab_size": 101,
    "max_position_embeddings": 37,
}
OLD = {"n_embd": 48, "n_layer": 5, "n_head": 6, "n_positions": 37, "vocab_size": 101}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
HEADS = {"head_dim": 16, **GQA}
BIAS = [{"attention_bias": True}]
LINEAR = {
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
LATENT = {
    **EXPERTS, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 2,
    "n_group": 2, "topk_group": 1, "q_lora_rank": 24, "kv_lora_rank": 16,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 6, "v_head_dim": 10, "num_key_value_heads": 6,
}  # fmt: skip
SMALL_T5 = {
    "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 3, "num_decoder_layers": 4,
    "num_heads": 6, "vocab_size": 101, "relative_attention_num_buckets": 7,
}  # fmt: skip
SMALL_WHISPER = {
    "d_model": 48, "encoder_layers": 3, "decoder_layers": 4, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 80, "decoder_ffn_dim": 90, "vocab_size": 101,
    "num_mel_bins": 9, "max_source_positions": 31, "max_target_positions": 17, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
PADS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL_VIT = {**TINY, "image_size": 12, "patch_size": 4, "num_channels": 2}
for key in ("vocab_size", "max_position_embeddings"):
    del SMALL_VIT[key]

# model_type -> (class, a small config, changes of it); the class's own sizes are a case as well
CASES = {
    "gpt2": ("GPT2LMHeadModel", OLD, [{"n_inner": 90}, *TIES]),
    "gpt_neox": ("GPTNeoXForCausalLM", TINY, [{"attention_bias": False}, *TIES]),
    "bloom": ("BloomForCausalLM", {"hidden_size": 48, "n_layer": 5, "n_head": 6}, TIES),
    "llama": ("LlamaForCausalLM", TINY, [GQA, *BIAS, {"mlp_bias": True}, {"head_dim": 16}, *TIES]),
    "smollm3": ("SmolLM3ForCausalLM", TINY | GQA | PADS, [*BIAS, {"mlp_bias": True}, *TIES]),
    "mistral": ("MistralForCausalLM", TINY | MHA, [HEADS, *TIES]),
    "mixtral": ("MixtralForCausalLM", TINY | {"num_local_experts": 6} | MHA, [HEADS, *TIES]),
    "qwen2": ("Qwen2ForCausalLM", TINY | MHA, [GQA, *TIES]),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        TINY | MHA | EXPERTS | {"num_experts": 6, "shared_expert_intermediate_size": 40},
        [GQA, {"qkv_bias": False}, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, *TIES],
    ),
    "qwen3": ("Qwen3ForCausalLM", TINY | HEADS, [*BIAS, *TIES]),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        TINY | HEADS | EXPERTS | {"num_experts": 6},
        [*BIAS, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, *TIES],
    ),
    "olmo": ("OlmoForCausalLM", TINY, [GQA, *BIAS, *TIES]),
    "olmo2": ("Olmo2ForCausalLM", TINY, [GQA, *BIAS, *TIES]),
    "deepseek_v2": ("DeepseekV2ForCausalLM", TINY | LATENT, [*BIAS, {"q_lora_rank": None}, *TIES]),
    "deepseek_v3": ("DeepseekV3ForCausalLM", TINY | LATENT, [*BIAS, {"q_lora_rank": None}, *TIES]),
    "phi": ("PhiForCausalLM", TINY, [GQA, {"qk_layernorm": True}, *TIES]),
    "phi3": ("Phi3ForCausalLM", TINY | PADS, [GQA, *TIES]),
    "gemma": ("GemmaForCausalLM", TINY | HEADS, [*BIAS, *TIES, {"head_dim": 8}]),
    "gemma2": ("Gemma2ForCausalLM", TINY | HEADS, [*BIAS, *TIES]),
    "gemma3_text": ("Gemma3ForCausalLM", TINY | HEADS, [*BIAS, *TIES]),
    "granite": ("GraniteForCausalLM", TINY, [GQA, *BIAS, {"mlp_bias": True}, *TIES]),
    "starcoder2": ("Starcoder2ForCausalLM", TINY | PADS, [GQA, {"use_bias": False}, *TIES]),
    "opt": (
        "OPTForCausalLM",
        {k: v for k, v in TINY.items() if k != "intermediate_size"}
        | {"ffn_dim": 80, "word_embed_proj_dim": 48},
        [
            {"word_embed_proj_dim": 20},
            {"word_embed_proj_dim": 20, "do_layer_norm_before": False},
            {"_remove_final_layer_norm": True},
            {"enable_bias": False},
            {"layer_norm_elementwise_affine": False},
            *TIES,
        ],
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        TINY | {"num_experts": 6, "num_experts_per_tok": 2} | PADS,
        [GQA, *BIAS, *TIES],
    ),
    "stablelm": (
        "StableLmForCausalLM",
        TINY | MHA,
        [
            GQA,
            {"use_qkv_bias": True},
            {"qk_layernorm": True} | GQA,
            {"use_parallel_residual": True},
            *TIES,
        ],
    ),
    "cohere": ("CohereForCausalLM", TINY | PADS, [{"use_qk_norm": True} | GQA, *BIAS, *TIES]),
    "cohere2": ("Cohere2ForCausalLM", TINY | PADS, [GQA, *BIAS, *TIES]),
    "gpt_oss": (
        "GptOssForCausalLM",
        TINY | HEADS | {"num_local_experts": 6, "num_experts_per_tok": 2} | PADS,
        [{"attention_bias": False}, *TIES],
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        TINY | HEADS | EXPERTS | {"n_routed_experts": 6, "first_k_dense_replace": 2} | PADS,
        [
            *BIAS,
            {"use_qk_norm": True},
            {"n_shared_experts": 3},
            {"first_k_dense_replace": 0},
            {"num_nextn_predict_layers": 0},
            *TIES,
        ],
    ),
    "gptj": ("GPTJForCausalLM", OLD | {"rotary_dim": 4}, [{"n_inner": 90}, *TIES]),
    "falcon": (
        "FalconForCausalLM",
        {k: v for k, v in TINY.items() if k != "intermediate_size"},
        [
            {"multi_query": False},
            {"ffn_hidden_size": 90},
            {"bias": True},
            {"parallel_attn": False},
            {"alibi": True, "multi_query": False},
            {"new_decoder_architecture": True, "num_kv_heads": 2},
            {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
            {"num_ln_in_parallel_attn": 2},
            *TIES,
        ],
    ),
    "llama4_text": (
        "Llama4ForCausalLM",
        TINY | HEADS | {"num_local_experts": 6, "intermediate_size_mlp": 90} | PADS,
        [
            {"interleave_moe_layer_step": 2},
            {"moe_layers": [1, 4]},
            {"use_qk_norm": False},
            *BIAS,
            *TIES,
        ],
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        TINY
        | HEADS
        | EXPERTS
        | LINEAR
        | PADS
        | {"num_experts": 6, "shared_expert_intermediate_size": 40},
        [
            *BIAS,
            {"mlp_only_layers": [0, 3]},
            {"decoder_sparse_step": 2},
            {"layer_types": ["full_attention"] * 2 + ["linear_attention"] * 3},
            *TIES,
        ],
    ),
    "qwen2_vl_text": ("Qwen2VLTextModel", TINY | GQA | PADS, []),
    "bert": (
        "BertForMaskedLM",
        TINY,
        [{"type_vocab_size": 5}, "BertModel", "BertForPreTraining", "BertLMHeadModel"],
    ),
    "roberta": (
        "RobertaForMaskedLM",
        TINY,
        [{"type_vocab_size": 1}, "RobertaModel", "RobertaForCausalLM"],
    ),
    "vit": (
        "ViTForImageClassification",
        SMALL_VIT,
        [{"qkv_bias": False}, {"num_labels": 7}, "ViTModel"],
    ),
    "t5": (
        "T5ForConditionalGeneration",
        SMALL_T5,
        [{"feed_forward_proj": "gated-gelu"}, *TIES, "T5Model", "T5EncoderModel"],
    ),
    "whisper": ("WhisperForConditionalGeneration", SMALL_WHISPER, [*TIES, "WhisperModel"]),
    "mamba": (
        "MambaForCausalLM",
        {"hidden_size": 48, "num_hidden_layers": 5, "vocab_size": 101, "state_size": 7},
        [
            {"expand": 3},
            {"conv_kernel": 3},
            {"use_bias": True},
            {"use_conv_bias": False},
            {"time_step_rank": 5},
            *TIES,
        ],
    ),
}

NESTED = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text", {}),
    "llama4": ("Llama4ForConditionalGeneration", "llama4_text", {}),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", "qwen2_vl_text", {}),
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral", {"model_type": "mistral"}),
    "llava": ("LlavaForConditionalGeneration", "llama", {"model_type": "llama"}),
}
"""Models of images and text: class, the family of the language model, what names it."""
OWN = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""What a class's own sizes lack."""


def parameters(name, config):
    """The class called ``name`` made of ``config``, and its parameters."""
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    model.tie_weights()
    balancing = (b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    return sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in balancing)


def cases(kind):
    """Configs of a family as they are written, each with its parameters."""
    from transformers import CONFIG_MAPPING

    first, small, changes = CASES[kind]
    for change in ({}, *changes, None):
        name = change if isinstance(change, str) else first
        told = OWN.get(kind, {}) if change is None else small | ({} if change is name else change)
        config = CONFIG_MAPPING[kind](**told)
        count = parameters(name, config)
        written = {k: v for k, v in config.to_diff_dict().items() if k != "_name_or_path"}
        if kind != "qwen2_vl_text":
            written["architectures"] = [name]
        else:  # the language model has its output projection in the whole model
            count += config.vocab_size * config.hidden_size
            written["tie_word_embeddings"] = False
        yield written, count


def nested(kind):
    """The config, and the parameters of the language model however both of its configs tie the
    output projection."""
    import torch
    import transformers

    name, of, named = NESTED[kind]
    found = []
    for outer in ({}, *TIES):
        for inner in ({}, *TIES):
            text = CASES[of][1] | named | inner
            config = transformers.CONFIG_MAPPING[kind](text_config=text, **outer)
            with torch.device("meta"):
                model = getattr(transformers, name)(config)
            model.tie_weights()
            parts = ("language_model", "lm_head")
            mine = [p for n, p in model.named_parameters() if any(part in n for part in parts)]
            written = config.to_diff_dict()
            written["vision_config"] = {"model_type": written["vision_config"]["model_type"]}
            ties = [c.pop("tie_word_embeddings", None) for c in (written, written["text_config"])]
            found.append([*ties, sum(p.numel() for p in mine)])
    return {"config": {**written, "architectures": [name]}, "cases": found}


def family(kind):
    """The first config of a family, and the cases as what they change in it."""
    (base, count), *others = cases(kind)
    found = [[{}, count]]
    for config, parameters_ in others:
        keys = sorted(k for k in base | config if base.get(k, ...) != config.get(k, ...))
        if keys:
            found.append([{key: config.get(key) for key in keys}, parameters_])
    return {"config": base, "cases": found}


if __name__ == "__main__":
    for suffix, made, kinds in ((".json", family, CASES), ("_nested.json", nested, NESTED)):
        found = {kind: made(kind) for kind in kinds}
        lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(of)}" for kind, of in found.items())
        Path(__file__).with_name(f"transformers_counts{suffix}").write_text(f"{{\n{lines}\n}}\n")
