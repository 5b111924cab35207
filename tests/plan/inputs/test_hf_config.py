"""A config.json as a model: what is understood, what is refused, and every bad file.

Holds `tiledask.plan.data`.
"""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.data import LARGEST, Fields
from tiledask.plan.inputs.hf_config import model_from_config
from tiledask.plan.inputs.load import load_model

GPT2 = json.loads("""{
  "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
  "n_ctx": 1024, "n_inner": null, "vocab_size": 50257, "architectures": ["GPT2LMHeadModel"],
  "activation_function": "gelu_new", "summary_first_dropout": 0.1, "use_cache": true
}""")
LLAMA = json.loads("""{
  "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
  "tie_word_embeddings": false, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0},
  "torch_dtype": "bfloat16", "eos_token_id": [1, 2]
}""")
QWEN_MOE = json.loads("""{
  "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 8,
  "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160, "vocab_size": 99,
  "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
  "architectures": ["Qwen3MoeForCausalLM"]
}""")
DEEPSEEK = json.loads("""{
  "model_type": "deepseek_v3", "hidden_size": 60, "num_hidden_layers": 5,
  "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 150, "vocab_size": 99,
  "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 6,
  "v_head_dim": 10, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2,
  "moe_intermediate_size": 20, "first_k_dense_replace": 2, "num_nextn_predict_layers": 1,
  "scoring_func": "sigmoid", "ep_size": 1,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}
}""")


def shipped(name):
    return json.loads(td.plan.data.data_file("models", f"{name}.json").read_text())


def model_of(config):
    return model_from_config(Fields(config, "config.json"), "test")


def write(folder, config, name="config.json"):
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_a_local_config_is_read_from_its_file_or_folder(tmp_path):
    path = write(tmp_path, GPT2)
    assert load_model(path).parameters == load_model(tmp_path).parameters == 124439808
    assert load_model(str(path)).dropout
    assert not load_model(write(tmp_path, LLAMA, "llama.json")).dropout
    path.write_text(json.dumps(GPT2), encoding="utf-8-sig")  # a byte order mark is no obstacle
    assert load_model(tmp_path).parameters == 124439808


@pytest.mark.parametrize(
    ("short", "long"), [("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers")]
)
def test_aliases(tmp_path, short, long):
    config = {**GPT2, long: GPT2[short]}
    del config[short]
    assert load_model(write(tmp_path, config)).parameters == 124439808
    config[short] = config[long] + 1
    with pytest.raises(ConfigError, match="says otherwise than"):
        load_model(write(tmp_path, config))


# keys of a published file beside those that are shipped
REAL = json.loads("""{
  "aux_loss_alpha": 0.001, "ep_size": 1, "n_group": 8, "norm_topk_prob": false, "topk_group": 3,
  "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": true,
  "auto_map": {"AutoModel": "modeling_deepseek.DeepseekV2Model"},
  "rope_scaling": {"type": "yarn", "factor": 40}, "architectures": ["DeepseekV2ForCausalLM"]
}""")


def test_the_keys_of_a_published_file_are_understood():
    assert model_of(shipped("deepseek-v2") | REAL).parameters == 235_741_434_880


def test_keys_that_say_nothing_are_passed_over_and_others_than_the_classes_named(tmp_path):
    said = {"qkv_bias": False, "shared_experts": 0, "adapters": [], "internal_version": "a1"}
    path = write(tmp_path, json.dumps(LLAMA | said)[:-1] + ', "router_z_loss_coef": Infinity}')
    found = load_model(str(path))
    assert found.parameters == model_of(LLAMA).parameters
    assert found.source.endswith("no such key: internal_version")


BAD = {
    "not JSON": ("{", "cannot be read as JSON"),
    "twice": ('{"model_type": "gpt2", "model_type": "gpt2"}', "'model_type' stands there twice"),
    "too deep in a key": ('{"a":' * 800_000, "cannot be read as JSON"),
    "family": (
        {**LLAMA, "model_type": "rwkv"},
        r"'model_type' is 'rwkv'; the families .* td\.Model\(",
    ),
    "missing": ({k: v for k, v in GPT2.items() if k != "n_layer"}, "'num_hidden_layers' is miss"),
    "layers": ({**GPT2, "n_layer": 10**30}, r"layers must be at most 4,096, got 10{30}"),
    "cross": ({**GPT2, "add_cross_attention": True}, "'add_cross_attention' is True"),
    "experts missing": (
        {k: v for k, v in QWEN_MOE.items() if k != "num_experts"},
        "'num_local_experts' is missing; add it, or write it as num_experts",
    ),
    "latent head": ({**DEEPSEEK, "head_dim": 7}, r"'head_dim' must be 6 or 18 in"),
    "first": (
        {k: v for k, v in DEEPSEEK.items() if k != "first_k_dense_replace"},
        "'first_k_dense_replace' is missing",
    ),
    "mlp bias": ({**DEEPSEEK, "mlp_bias": True}, "'mlp_bias' is True, which changes"),
    "own code": ({**LLAMA, "internal": 1, "auto_map": {"AutoModel": "m.M"}}, "'internal' is not"),
    "packed within": (
        {"model_type": "llava", "text_config": LLAMA, "quantization_config": {"quant_method": "x"}},
        "quant_method 'x'",
    ),
    "text of no family": (
        {"model_type": "a", "text_config": {"model_type": "b"}},
        "'model_type' is 'a'; the families",
    ),
    "packed": ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_cannot_be_read_without_guessing_names_file_and_key(tmp_path, case):
    config, message = BAD[case]
    path = write(tmp_path, config)
    with pytest.raises(ConfigError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 600


KEYS = sorted({*GPT2, *LLAMA, *QWEN_MOE, *DEEPSEEK})
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([GPT2, LLAMA, QWEN_MOE, DEEPSEEK]),
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), anything, max_size=3),
)
def test_any_values_make_a_model_or_a_config_error(part, config, change):
    try:
        model = model_of(config | change)
    except ConfigError:
        return
    assert model.parameters == sum(model.item_parameters) > 0


def test_a_gigabyte_is_refused_by_its_size_alone(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**30)  # sparse: nothing is written
    with pytest.raises(ConfigError, match=f"1,073,741,824 bytes; .* at most {LARGEST:,}"):
        load_model(path)


def test_what_is_no_regular_file_is_refused_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero"):
        with pytest.raises(ConfigError, match=r"a regular \.json file"):
            load_model(path)
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_bytes(json.dumps(GPT2).encode("utf-16"))
    with pytest.raises(ConfigError, match="cannot be read as JSON in UTF-8: "):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "named by text or by a path"),
        *((spec, "named by text or by a path") for spec in (None, b"gpt2")),
        *((spec, None) for spec in ("x" * 100_000 + ".json", "a\0.json")),
        ("/nowhere/nothing.json", "cannot be read: No such file"),
        ("llama-3.1-70", r"did you mean 'llama-3\.1-70b'"),
    ],
)
def test_what_names_no_model(spec, words):
    with pytest.raises(ConfigError, match=words) as error:
        load_model(spec)
    assert len(str(error.value)) < 3000
