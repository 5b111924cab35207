"""A config.json as a model: what is understood, what is refused, and every bad file."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask import load_model
from tiledask.errors import ConfigError
from tiledask.plan.data import LARGEST, Fields
from tiledask.plan.inputs.hf_config import model_from_config


def shipped(name):
    return json.loads(td.plan.data.data_file("models", f"{name}.json").read_text())


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
GPT2 = shipped("gpt2") | {"n_inner": None, "n_ctx": 1024, "architectures": ["GPT2LMHeadModel"]}
LLAMA = shipped("llama-3.1-8b") | {"rope_scaling": {"factor": 8.0}, "torch_dtype": "bfloat16"}
QWEN_MOE, DEEPSEEK = shipped("qwen3-30b-a3b"), shipped("deepseek-v3") | FP8
FILE = Path(__file__).parents[2] / "oracles" / "posted_configs.json.gz"
POSTED = [row["config"] for row in json.loads(gzip.decompress(FILE.read_bytes()))]
HYBRIDS = [one for one in POSTED if one.get("model_type") in ("nemotron_h", "deepseek_v4")]


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


def test_all_complaints_come_at_once_and_other_files_are_known():
    wrong = {"architectures": ["LlamaForTokenClassification"], "vocab_size": None}
    with pytest.raises(ConfigError) as error:
        model_of({**LLAMA, **wrong, "num_key_value_heads": "8", "attention_bias": 3})
    told = str(error.value)
    keys = "architectures", "vocab_size", "num_key_value_heads", "attention_bias"
    assert all(f"key '{key}'" in told for key in keys)
    assert told.index("architectures") < told.index("vocab_size")
    with pytest.raises(
        ConfigError, match="'FluxTransformer2DModel' is a part of a pipeline of dif"
    ):
        model_of({"_class_name": "FluxTransformer2DModel", "num_layers": 19})
    with pytest.raises(ConfigError, match="text_config: key 'model_type' is 'foo'; the families"):
        model_of({"model_type": "foo_vl", "text_config": {"model_type": "foo"}})


def test_a_wrapper_leaves_to_the_class_what_it_does_not_say():
    """Gemma-3-4B as posted: 3,880,263,168 parameters of text."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    packed = {"quantization_config": {"quant_method": "modelopt"}}
    found = model_of({"model_type": "gemma3", "vision_config": {}, "text_config": text} | packed)
    assert found.parameters == 3_880_263_168
    notes = "; ".join(found.notes)
    assert re.search("text alone.*quantized.*num_attention_heads.* those of transformers", notes)


def test_keys_that_say_nothing_are_passed_over_and_others_than_the_classes_named(tmp_path):
    said = {"qkv_bias": False, "shared_experts": 0, "adapters": [], "internal_version": "a1"}
    said |= {"auto_map": {"AutoModel": "m.M"}, "full_attn_mod": 1}
    path = write(tmp_path, json.dumps(LLAMA | said)[:-1] + ', "router_z_loss_coef": Infinity}')
    found = load_model(str(path))
    assert found.parameters == model_of(LLAMA).parameters
    assert found.source.endswith("no such key: internal_version, full_attn_mod")


BAD = {
    "not JSON": ("{", "cannot be read as JSON"),
    "twice": ('{"model_type": "gpt2", "model_type": "gpt2"}', "'model_type' stands there twice"),
    "too deep": ('{"a":' * 800_000, "cannot be read as JSON"),
    "family": ({**LLAMA, "model_type": "foo"}, r"is .foo.; the families .* td\.Model\("),
    "known": ({**LLAMA, "model_type": "zamba2"}, "whose layers share blocks of weights"),
    "missing": ({**GPT2, "n_layer": None}, "'num_hidden_layers' is miss"),
    "layers": ({**GPT2, "n_layer": 10**30}, r"layers must be at most 4,096, got 10{30}"),
    "experts": ({**QWEN_MOE, "num_experts": None}, "missing; add it, or write it as num_experts"),
    "latent head": ({**DEEPSEEK, "head_dim": 7}, r"'head_dim' must be 64 or 192 in"),
    "mlp bias": ({**DEEPSEEK, "mlp_bias": True}, "'mlp_bias' is True, which changes"),
    "other alias": ({**GPT2, "hidden_size": 769}, "says otherwise than"),
    "typing error": (
        {**LLAMA, "num_key_value_heads": None, "num_key_value_head": 2},
        "is not understood .* did you mean",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_cannot_be_read_without_guessing_names_file_and_key(tmp_path, case):
    config, message = BAD[case]
    path = write(tmp_path, config)
    with pytest.raises(ConfigError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 600


BASES = [GPT2, LLAMA, QWEN_MOE, DEEPSEEK, *HYBRIDS]
KEYS = sorted({key for base in BASES for key in base})
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(
    st.sampled_from(BASES),
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), anything, max_size=3),
)
def test_any_values_make_a_model_or_a_config_error(config, change):
    try:
        model = model_of(config | change)
    except ConfigError:
        return
    assert model.parameters == sum(model.item_parameters) > 0


def test_what_names_no_model_or_no_regular_file_is_refused_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero"):
        with pytest.raises(ConfigError, match=r"a regular \.json file"):
            load_model(path)
    for spec, words in (
        (tmp_path, r"holds no config\.json"),
        (b"gpt2", "named by text or by a path"),
        ("a\0.json", None),
        ("/nowhere/nothing.json", "cannot be read: No such file"),
        ("llama-3.1-70", r"did you mean 'llama-3\.1-70b'"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_model(spec)
    path = tmp_path / "config.json"
    path.write_bytes(json.dumps(GPT2).encode("utf-16"))
    with pytest.raises(ConfigError, match="cannot be read as JSON in UTF-8: "):
        load_model(tmp_path)
    with path.open("wb") as file:
        file.truncate(2**30)  # sparse: nothing is written
    with pytest.raises(ConfigError, match=f"1,073,741,824 bytes; .* at most {LARGEST:,}"):
        load_model(path)
