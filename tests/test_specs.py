"""Models and clusters: exact counts, and every way of not being readable."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.data import names
from tiledask.plan.hardware import load_device
from tiledask.plan.model import Model, Weight, count
from tiledask.plan.specs import load_cluster, load_model, models

GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
    "n_ctx": 1024, "n_inner": None, "vocab_size": 50257, "architectures": ["GPT2LMHeadModel"],
    "activation_function": "gelu_new", "summary_first_dropout": 0.1, "use_cache": True,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "rope_theta": 5e5,
    "rope_scaling": {"factor": 8.0}, "torch_dtype": "bfloat16", "eos_token_id": [1, 2],
}  # fmt: skip

COUNTS = {  # what the model cards and checkpoints say
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "llama-2-7b": 6738415616,
    "llama-2-13b": 13015864320,
    "llama-2-70b": 68976648192,
    "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496,
    "llama-3.1-405b": 405853388800,
    "mistral-7b-v0.1": 7241732096,
    "mixtral-8x7b": 46702792704,
    "qwen2.5-7b": 7615616512,
    "qwen3-8b": 8190735360,
    "bloom-176b": 176247271424,
    "pythia-12b": 11846072320,
}


def write(folder, config, name="config.json"):
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("name", COUNTS)
def test_shipped_models_have_the_published_count(name):
    assert load_model(name).parameters == COUNTS[name]


@pytest.mark.parametrize("name", models())
def test_items_add_up_and_every_model_names_its_source(name):
    model = load_model(name)
    assert len(model.item_parameters) == model.layers + 2
    assert sum(model.item_parameters) == model.parameters
    assert model.source
    assert model.name == name


def test_the_course_model_is_200_billion_and_says_it_is_not_released():
    model = td.load_model("gpt-200b")
    assert abs(model.parameters / 200e9 - 1) < 1e-4
    assert "not a released model" in model.source
    assert model.heads % 8 == model.vocab % 8 == model.layers % 10 == 0


def test_active_parameters():
    mixtral = load_model("mixtral-8x7b")
    assert mixtral.active_parameters == 46702792704 - 6 * 3 * 4096 * 14336 * 32
    assert load_model("gpt2").active_parameters == load_model("gpt2").parameters


def test_tensor_parallel_shares_cover_the_model_and_copy_what_is_not_cut():
    model = load_model("llama-3.1-8b")
    for tp in (1, 2, 4, 8):
        cut = [w for w in model.layer if w.split]
        assert count(tuple(cut), tp) * tp == count(tuple(cut))
    norms = sum(w.count(8) for w in model.layer if not w.split)
    assert norms == 2 * 4096
    key = next(w for w in model.layer if w.name == "key")
    assert key.count(16) == key.count(8) == 128 * 4096  # 8 heads on 16 devices: copied
    assert Weight("ffn", units=10, size=3).count(4) == 9  # the fullest of 3, 3, 3, 1


def test_a_local_config_is_read_from_its_file_or_folder(tmp_path):
    path = write(tmp_path, GPT2)
    assert load_model(path).parameters == load_model(tmp_path).parameters == 124439808
    assert load_model(str(path)).dropout
    assert not load_model(write(tmp_path, LLAMA, "llama.json")).dropout


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


BAD = {
    "not JSON": ("{", "not JSON"),
    "not an object": ("[1]", "must be a JSON object, got a list"),
    "twice": ('{"model_type": "gpt2", "model_type": "gpt2"}', "'model_type' stands there twice"),
    "NaN": ('{"model_type": "gpt2", "n_embd": NaN}', "NaN is not JSON"),
    "infinite": ('{"model_type": "gpt2", "n_embd": -Infinity}', "-Infinity is not JSON"),
    "too deep": ("[" * 100_000, "not JSON"),
    "family": ({**LLAMA, "model_type": "deepseek_v3"}, "'model_type' is 'deepseek_v3'"),
    "no family": ({"n_embd": 4}, "'model_type' is missing"),
    "missing": ({k: v for k, v in GPT2.items() if k != "n_layer"}, "'num_hidden_layers' is miss"),
    "text": ({**GPT2, "n_layer": "12"}, "'n_layer' must be an integer of 1 or more, got text"),
    "float": ({**GPT2, "n_layer": 12.0}, "'n_layer' must be an integer"),
    "boolean": ({**GPT2, "n_layer": True}, "'n_layer' must be an integer .* got a boolean"),
    "negative": ({**GPT2, "n_layer": -12}, "'n_layer' must be 1 or more, got -12"),
    "zero": ({**GPT2, "vocab_size": 0}, "'vocab_size' must be 1 or more, got 0"),
    "tie": ({**LLAMA, "tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
    "rate": ({**GPT2, "attn_pdrop": 1e999}, "Infinity is not JSON"),
    "negative rate": ({**GPT2, "attn_pdrop": -0.1}, "'attn_pdrop' must be a finite number of 0"),
    "unknown key": ({**LLAMA, "kv_lora_rank": 512}, "'kv_lora_rank' is not understood"),
    "prefix": ({**LLAMA, "name_experts": 8}, "'name_experts' is not understood"),
    "experts": ({**LLAMA, "num_local_experts": 8}, "'num_local_experts' is not understood"),
    "cross": ({**GPT2, "add_cross_attention": True}, "'add_cross_attention' is True"),
    "class": ({**GPT2, "architectures": ["GPT2ForSequenceClassification"]}, "'architectures'"),
    "class type": ({**GPT2, "architectures": "GPT2"}, "'architectures' must be a list of texts"),
    "heads": ({**GPT2, "n_head": 7}, r"hidden \(768\) must be a multiple of heads \(7\)"),
    "groups": ({**LLAMA, "num_key_value_heads": 5}, r"heads \(32\) must be a multiple of kv_heads"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_cannot_be_read_without_guessing_names_file_and_key(tmp_path, case):
    config, message = BAD[case]
    path = write(tmp_path, config)
    with pytest.raises(ConfigError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)


def test_top_k_beyond_the_experts(tmp_path):
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}
    with pytest.raises(ConfigError, match="top_k=9, experts=8"):
        load_model(write(tmp_path, config))


def test_missing_files_and_unknown_names(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not JSON"):
        load_model(tmp_path / "bytes.json")
    with pytest.raises(ConfigError, match=r"did you mean 'llama-3\.1-70b'"):
        load_model("llama-3.1-70")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden must be an integer of 1 or more, got 0"),
        ({"layers": True}, "layers must be an integer"),
        ({"mlp": "moe"}, "mlp must be one of"),
        ({"qk_norm": "some"}, "qk_norm must be one of"),
        ({"heads": 5}, "must be a multiple of"),
    ],
)
def test_model_fields_are_checked(change, message):
    model = Model(hidden=64, layers=2, heads=4, ffn=256, vocab=100)
    with pytest.raises(ConfigError, match=message):
        replace(model, **{"head_dim": 0, "kv_heads": 0, **change})
    with pytest.raises(FrozenInstanceError):
        model.hidden = 1


def test_a_norm_without_parameters_counts_none():
    model = Model(hidden=64, layers=2, heads=4, ffn=256, vocab=100, norm="none")
    assert not [w for w in (*model.layer, *model.head) if w.kind == "norm"]


# clusters ----------------------------------------------------------------------------------


def test_load_cluster_by_count_and_name():
    cluster = td.load_cluster("80xA100-40GB")
    assert (cluster.devices, cluster.nodes, cluster.devices_per_node) == (80, 10, 8)
    assert cluster.device.memory_bytes == 40_000_000_000
    assert cluster.device.memory_mib * 2**20 == 42_949_672_960
    assert td.load_cluster("1 x h100-80gb").device.name == "H100"
    assert load_cluster("9xH200").nodes == 2


@pytest.mark.parametrize("name", names("hardware"))
def test_every_device_is_complete_and_names_its_datasheet(name):
    device = load_device(name)
    assert "NVIDIA" in device.source
    assert re.search(r"opened itself|docs\.nvidia\.com", device.checked)
    assert device.memory_bandwidth > 1e11
    assert device.peak("fp16") > device.peak("fp32")
    # drivers hide a little or show binary gigabytes
    assert 0.99 < device.memory_mib * 2**20 / device.memory_bytes < 1.08
    with pytest.raises(ConfigError, match="no peak for 'int1'"):
        device.peak("int1")


@pytest.mark.parametrize("name", names("hardware"))
def test_half_the_width_is_twice_the_dense_peak(name):
    peaks = dict(load_device(name).peak_flops)
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    for narrow, wide in (("fp8", "fp16"), ("fp16", "tf32")):  # 4: one of them with sparsity
        if {narrow, wide} <= peaks.keys():
            assert peaks[narrow] / peaks[wide] == pytest.approx(2, rel=0.03)


LANES = {  # of one direction: lanes or links, times what each carries, in bytes per second
    "PCIe 3.0 x16": 16 * 8e9 * 128 / 130 / 8,
    "PCIe 4.0 x16": 16 * 16e9 * 128 / 130 / 8,
    "NVLink 3": 12 * 25e9,
    "NVLink 4": 18 * 25e9,
    "NVLink 5": 18 * 50e9,
    "Ethernet 100 Gb/s": 100e9 / 8,
    "InfiniBand HDR, one adapter per GPU": 200e9 / 8,
    "InfiniBand NDR, one adapter per GPU": 400e9 / 8,
}


@pytest.mark.parametrize("name", names("hardware"))
def test_links_count_one_direction(name):
    cluster = load_cluster(f"1x{name}")
    for link in (cluster.within_node, cluster.between_nodes):
        assert link.bytes_per_second == pytest.approx(LANES[link.name], rel=1e-3)


def test_the_ridge_of_an_h200():
    h200 = load_device("H200")
    assert round(h200.peak("fp32") / h200.memory_bandwidth) == 14  # FLOP per byte


def test_a_cluster_file_overrides_the_node(tmp_path):
    path = write(tmp_path, {"devices": 6, "device": "T4", "devices_per_node": 2}, "c.json")
    assert load_cluster(path).nodes == 3
    own = json.loads((td.plan.data._root() / "hardware" / "t4.json").read_text())
    own |= {"name": "mine", "memory_bytes": 10**9, "aliases": [], "checked": "by hand"}
    cluster = load_cluster(write(tmp_path, {"devices": 2, "device": own}, "d.json"))
    assert (cluster.device.name, cluster.device.memory_bytes) == ("mine", 10**9)
    assert cluster.device.checked == "by hand"
    del own["checked"], own["memory_mib"]  # a file of one's own needs neither
    cluster = load_cluster(write(tmp_path, {"devices": 2, "device": own}, "h.json"))
    assert (cluster.device.checked, cluster.device.memory_mib) == ("", None)
    bad = write(tmp_path, {"devices": 2, "device": {**own, "memory_bytes": -1}}, "e.json")
    with pytest.raises(ConfigError, match=r"e\.json.*'memory_bytes' must be 1 or more, got -1"):
        load_cluster(bad)
    bad = write(tmp_path, {"devices": 2, "device": {**own, "peak": 1}}, "f.json")
    with pytest.raises(ConfigError, match="'peak' is not known"):
        load_cluster(bad)
    bad = write(tmp_path, {"devices": 2, "device": "T4", "speed": 1}, "g.json")
    with pytest.raises(ConfigError, match="'speed' is not known"):
        load_cluster(bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A100", "cannot read 'A100' as a cluster"),
        ("0xA100-40GB", "1 device or more"),
        ("8xA100", "no hardware description is called 'A100'"),
        ("8xK80", "no hardware description is called 'K80'"),
        ("-1xT4", "cannot read"),
    ],
)
def test_clusters_that_cannot_be_read(text, message):
    with pytest.raises(ConfigError, match=message):
        load_cluster(text)
