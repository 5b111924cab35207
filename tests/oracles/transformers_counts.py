"""Count the parameters of small models with transformers, for tests/plan/inputs/test_families.py.

    python tests/oracles/transformers_counts.py                all families again
    python tests/oracles/transformers_counts.py lfm2 bamba     these anew, each key changed alone

Needs torch and transformers, in an environment of their own; nothing is allocated. The balancing
biases of routers, which are buffers in transformers, are counted with the parameters.
"""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

ORACLES = Path(__file__).parent
FILE = ORACLES / "transformers_counts.json.gz"
FAMILIES = json.loads((ORACLES.parents[1] / "data" / "families.json").read_text())
SMALL: dict[str, Any] = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 80}
SMALL |= {"num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2}
SMALL |= {"num_experts": 6, "num_local_experts": 6, "n_routed_experts": 6, "moe_num_experts": 6}
SMALL |= {"num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "moe_k": 2}
SMALL |= {"top_k_experts": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20}
SMALL |= {"shared_intermediate_size": 28, "dense_intermediate_size": 72, "share_expert_dim": 20}
SMALL |= {"kv_lora_rank": 16, "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8}
SMALL |= {"v_head_dim": 10, "n_group": 1, "topk_group": 1, "num_expert_group": 1}
SMALL |= {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 8, "global_head_dim": 32}
SMALL |= {"linear_num_value_heads": 6, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
SMALL |= {"linear_value_head_dim": 12, "linear_num_heads": 6, "linear_head_dim": 8}
SMALL |= {"mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 8}
SMALL |= {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8}
SMALL |= {"mamba_d_ssm": 96, "mamba_dt_rank": 3, "moe_shared_expert_intermediate_size": 20}
SMALL |= {"vocab_size_per_layer_input": 90, "hidden_size_per_layer_input": 12, "laurel_rank": 4}
SMALL |= {"o_groups": 2, "o_lora_rank": 10, "hc_mult": 3, "sliding_window": 7, "pad_token_id": 0}
SMALL |= {"num_kv_shared_layers": 0, "head_dim": 16, "first_k_dense_replace": 1}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v4": {"num_key_value_heads": 1},
    "gemma4_text": {"enable_moe_block": True, "num_key_value_heads": 2},
    "gemma3n_text": {"activation_sparsity_pattern": [0.0] * 6, "intermediate_size": [80] * 6},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"] * 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"] * 2},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba", "moe"]},
    "bamba": {"attn_layer_indices": [1, 4]},
    "lfm2": {"full_attn_idxs": [1, 4]},
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "dots1": {"n_shared_experts": 1},
    "helium": {"head_dim": 8},
    "mamba2": {"num_heads": 6, "head_dim": 16, "state_size": 8, "n_groups": 2},
    "mimo_v2_flash": {"num_attention_heads": 8, "num_key_value_heads": 1},
}
FOLLOW = ("head_dim", "qk_head_dim", "num_key_value_heads")
"""Keys that follow from others in latent attention."""
FIXED = ("num_hidden_layers", "use_cache", "pretraining_tp")
WITHIN = {"step3p7": "step3p7", "qwen2_vl_text": "qwen2_vl"}
"""Family -> the model_type of the wrapper that alone has it in transformers."""
SAME = {"minimax_m3": "minimax_m3_vl_text"}


def class_of(kind: str, wrapper: bool = False) -> Any:
    """The class of a family's config, or of the wrapper that alone has it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind in WITHIN:
        whole = CONFIG_MAPPING[WITHIN[kind]]
        return whole if wrapper else type(whole().get_text_config())
    return CONFIG_MAPPING[SAME.get(kind, kind)]


def counted(kind: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """(the config as transformers writes it, parameters of its language model)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    given = {
        key: value for key, value in values.items() if key not in ("model_type", "architectures")
    }
    config = class_of(kind)(**given)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
            parts = [model]
        except ValueError:  # of a wrapper the decoder, and its output projection
            model = AutoModelForImageTextToText.from_config(class_of(kind, True)(text_config=given))
            parts = [
                model.model.language_model,
                *[model.lm_head] * (not config.tie_word_embeddings),
            ]
    many = sum(each.numel() for part in parts for each in part.parameters())
    buffers = (pair for part in parts for pair in part.named_buffers())
    biases = sum(
        buffer.numel() for name, buffer in buffers if re.search("(correction|expert)_bias", name)
    )
    return config.to_dict() | {"architectures": [type(model).__name__]}, many + biases


def anew(kind: str) -> dict[str, Any]:
    """A small config of a family, and its count with each key changed that the family reads."""
    known = class_of(kind)().to_dict()
    base = {key: value for key, value in SMALL.items() if key in known} | OWN.get(kind, {})
    if "kv_lora_rank" in known:
        base = {key: value for key, value in base.items() if key not in FOLLOW}
    config, _ = counted(kind, base)
    for key in FOLLOW if "kv_lora_rank" in config else ():
        config.pop(key, None)
    row = FAMILIES["families"][kind]
    refused = [*row.get("neutral", ()), *FIXED, *(key for _, key, _ in row.get("rules", ()))]
    parameters = counted(kind, config)[1]
    cases: list[Any] = [[{}, parameters]]
    for key, value in config.items():
        if type(value) not in (bool, int) or key in refused or key.endswith("_id"):
            continue
        change = {key: not value if type(value) is bool else 3 if value == 2 else 2 * value or 1}
        try:
            cases.append([change, counted(kind, config | change)[1]])
        except Exception:  # whatever its class raises for sizes that do not go together
            continue
    return {
        "config": config,
        "cases": [case for case in cases if case[1] != parameters or not case[0]],
    }


def main(kinds: list[str]) -> None:
    found = json.loads(gzip.decompress(FILE.read_bytes()))
    found = {kind: found[kind] for kind in found if kind in FAMILIES["families"]}
    for kind in kinds or found:
        if kinds:
            found[kind] = anew(kind)
        else:
            base = found[kind]["config"]
            found[kind]["cases"] = [
                [change, counted(kind, base | change)[1]] for change, _ in found[kind]["cases"]
            ]
        print(kind, len(found[kind]["cases"]), flush=True)
    text = (
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"
    )
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
