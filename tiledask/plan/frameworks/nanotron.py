"""nanotron's YAML: its Llama, and its Qwen2, which has mixtures and biases."""

import json
from typing import Any

from tiledask.plan.frameworks.job import Job, Settings

__all__ = ["write"]

RECIPES: dict[str, Settings] = {
    "mixed-adam-20": {"dtype": "bfloat16", "accumulate_grad_in_fp32": True},
    "bf16-adam": {"dtype": "bfloat16", "accumulate_grad_in_fp32": False},
    "fp32-adam": {"dtype": "float32", "accumulate_grad_in_fp32": False},
}


def write(job: Job) -> str:
    """The YAML, whose rates, steps, tokenizer and data are to be set."""
    model, layout, lost = job.model, job.layout, job.lost
    precision = job.of_recipe(RECIPES, "mixed-adam-20")
    for field, given, words in (
        ("zero", layout.zero > 1, f"nanotron has ZeRO 1; zero={layout.zero} is written as 1"),
        ("interleave", layout.interleave > 1, "stages have one chunk of layers each"),
        (
            "schedule",
            layout.pp > 1 and layout.schedule not in ("1f1b", "gpipe"),
            f"pp_engine is 1f1b or afab (gpipe); {layout.schedule} has no counterpart",
        ),
        ("partition", layout.pp > 1, "nanotron cuts the layers itself, by their cost"),
        (
            "recompute",
            layout.recompute not in ("none", "full"),
            f"recompute_layer recomputes all; {layout.recompute} has no counterpart",
        ),
        ("expert_tp", layout.expert_slices != layout.tp, "experts are sliced by tp there"),
        ("flash_attention", not layout.flash_attention, "its attention keeps no scores"),
        ("unshard", layout.unshard is not None, "weights are not sharded over the copies"),
        (
            "model",
            model.mlp != "swiglu" or model.norm != "rmsnorm" or model.latent or model.learned_pos,
            "nanotron has Llama's and Qwen2's layers: gated, RMSNorm, rotary, no latent attention",
        ),
        ("qk_norm", model.qk_norm is not None, "norms of query and key have no counterpart"),
        (
            "head_dim",
            not model.latent and model.head_dim * model.heads != model.hidden,
            "the width of a head is hidden / heads there",
        ),
    ):
        if given:
            lost[field] = words
    is_qwen = bool(model.experts) or model.qkv_bias
    sizes: Settings = {
        ("is_qwen2_config" if is_qwen else "is_llama_config"): True,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": job.sequence,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied,
    }
    if is_qwen:
        sizes["attention_bias"] = model.qkv_bias
    if model.experts:
        sizes["moe_config"] = {
            "num_experts": model.experts,
            "top_k": model.top_k,
            "moe_intermediate_size": model.expert_ffn,
            "shared_expert_intermediate_size": model.shared_ffn,
            "enable_shared_expert": bool(model.shared_ffn),
            "layers": [i for i in range(model.layers) if model.is_mixture(i)],
        }
    return _yaml(
        {
            "general": {"project": model.name, "run": str(layout).replace(" ", "_")},
            "parallelism": {
                "dp": layout.dp,
                "tp": layout.tp,
                "pp": layout.pp,
                "context_parallel_size": layout.cp,
                "expert_parallel_size": layout.ep,
                "pp_engine": "afab" if layout.schedule == "gpipe" else "1f1b",
                "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
                "tp_linear_async_communication": layout.sequence_parallel,
                "recompute_layer": layout.recompute == "full",
            },
            "model": {
                "dtype": precision["dtype"],
                "init_method": {"std": 0.02},
                "make_vocab_size_divisible_by": 1,
                "model_config": sizes,
            },
            "tokens": {
                "sequence_length": job.sequence,
                "micro_batch_size": layout.microbatch,
                "batch_accumulation_per_replica": layout.microbatches,
                "train_steps": 100,
            },
            "optimizer": {
                "zero_stage": min(layout.zero, 1),
                "accumulate_grad_in_fp32": precision["accumulate_grad_in_fp32"],
                "weight_decay": 0.1,
                "clip_grad": 1.0,
                "optimizer_factory": {
                    "name": "adamW",
                    "adam_beta1": 0.9,
                    "adam_beta2": 0.95,
                    "adam_eps": 1e-8,
                    "torch_adam_is_fused": True,
                },
                "learning_rate_scheduler": {
                    "learning_rate": 3e-4,
                    "lr_warmup_steps": 10,
                    "lr_warmup_style": "linear",
                    "lr_decay_style": "cosine",
                },
            },
        }
    )


def _yaml(table: dict[str, Any], indent: str = "") -> str:
    """Tables in tables; what JSON writes of a value is YAML."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        elif isinstance(value, float):
            mantissa, _, power = f"{value:e}".partition("e")  # YAML 1.1 wants the point
            lines.append(f"{indent}{key}: {float(mantissa)}e{power}\n")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
