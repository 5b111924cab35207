"""Every family against transformers' own count, and its checkpoint's tensors one by one."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.data import Fields
from tiledask.plan.fitting.activations import layer_bytes
from tiledask.plan.inputs.hf_config import families, model_from_config
from tiledask.plan.inputs.load import load_model, models
from tiledask.plan.timing.flops import step_flops


def shipped(name):
    return json.loads(td.plan.data.data_file("models", f"{name}.json").read_text())


def model_of(config):
    return model_from_config(Fields(config, "config.json"), "test")


QWEN_MOE = shipped("qwen3-30b-a3b") | {"num_experts": 6}
DEEPSEEK = shipped("deepseek-v3") | {"num_experts_per_tok": 2}
del DEEPSEEK["topk_method"]  # each of its families has its own


def tensors(c):
    """Shape of every trainable tensor, as the transformers class of the model_type makes them."""
    kind = c["model_type"]
    h, v = c.get("hidden_size") or c.get("n_embd") or c["n_embed"], c["vocab_size"]
    layers = c.get("num_hidden_layers") or c["n_layer"]
    yield v, h
    if kind == "gpt2":
        yield c["n_positions"], h
    if kind == "bloom":
        yield from [(h,), (h,)]
    for i in range(layers):
        if kind in ("gpt2", "gpt_neox", "bloom"):
            yield from gpt_layer(h, c.get("intermediate_size") or c.get("n_inner") or 4 * h)
            continue
        yield from [(h,), (h,)]
        yield from deepseek_attention(c, h) if kind.startswith("deepseek") else attention(c, h)
        yield from mixture(c, h) if has_experts(c, i) else mlp(h, c["intermediate_size"])
    yield (h,)
    if kind in ("gpt2", "gpt_neox", "bloom"):
        yield (h,)
    if not c.get("tie_word_embeddings", kind in ("gpt2", "bloom", "smollm3")):
        yield v, h


def gpt_layer(h, f):
    yield from [(h,)] * 4  # two norms
    yield from [(3 * h, h), (3 * h,), (h, h), (h,)]
    yield from [(f, h), (f,), (h, f), (h,)]


def attention(c, h):
    kind, a = c["model_type"], c["num_attention_heads"]
    e = c.get("head_dim") or h // a
    g = c.get("num_key_value_heads") or a
    yield from [(a * e, h), (g * e, h), (g * e, h), (h, a * e)]
    if c.get("attention_bias") or kind.startswith("qwen2"):
        yield from [(a * e,), (g * e,), (g * e,)]
    if c.get("attention_bias"):
        yield (h,)
    if kind.startswith("qwen3"):
        yield from [(e,), (e,)]
    if kind == "olmo2":
        yield from [(a * e,), (g * e,)]


def deepseek_attention(c, h):
    a, q, kv, rope = (
        c[k] for k in ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim")
    )
    qk, v = c["qk_nope_head_dim"] + rope, c["v_head_dim"]
    yield from [(q, h), (q,), (a * qk, q)] if q else [(a * qk, h)]
    yield from [(kv + rope, h), (kv,), (a * (c["qk_nope_head_dim"] + v), kv), (h, a * v)]
    if c.get("attention_bias"):
        yield from [(q,)] if q else []
        yield from [(kv + rope,), (h,)]


def has_experts(c, i):
    if c["model_type"].startswith("deepseek"):
        every = c.get("moe_layer_freq", 1)
        return bool(c["n_routed_experts"]) and i >= c["first_k_dense_replace"] and i % every == 0
    if c["model_type"] == "mixtral":
        return True
    sparse = (i + 1) % c.get("decoder_sparse_step", 1) == 0
    return "num_experts" in c and i not in c.get("mlp_only_layers", []) and sparse


def mlp(h, f):
    return [(f, h), (f, h), (h, f)]


def mixture(c, h):
    n = c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"]
    f = c.get("moe_intermediate_size") or c["intermediate_size"]
    yield n, h
    for _ in range(n):
        yield from mlp(h, f)
    if c["model_type"] == "deepseek_v3":
        yield (n,)
    if c.get("n_shared_experts"):
        yield from mlp(h, c["n_shared_experts"] * f)
    if c.get("shared_expert_intermediate_size"):
        yield from mlp(h, c["shared_expert_intermediate_size"])
        yield 1, h


@pytest.mark.parametrize("name", models())
def test_every_shipped_model_has_the_tensors_of_its_checkpoint(name):
    assert load_model(name).parameters == sum(map(prod, tensors(shipped(name))))


mixtures = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.integers(1, 12),
        "decoder_sparse_step": st.integers(1, 4),
        "mlp_only_layers": st.lists(st.integers(0, 15), max_size=4),
        "attention_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "num_experts_per_tok": st.integers(1, 6),
        "head_dim": st.sampled_from([4, 16]),
    }
)
latents = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.integers(1, 9),
        "q_lora_rank": st.sampled_from([None, 7]),
        "attention_bias": st.booleans(),
        "first_k_dense_replace": st.integers(0, 10),
        "moe_layer_freq": st.integers(1, 3),
        "n_shared_experts": st.sampled_from([None, 1, 3]),
        "n_routed_experts": st.sampled_from([None, 2, 6]),
        "v_head_dim": st.sampled_from([6, 10]),
        "model_type": st.sampled_from(["deepseek_v2", "deepseek_v3"]),
    }
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(mixtures)
def test_qwen_mixtures_agree_with_the_reference(change):
    config = QWEN_MOE | change
    assert model_of(config).parameters == sum(map(prod, tensors(config)))
    config |= {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 40}
    del config["head_dim"], config["attention_bias"]
    assert model_of(config).parameters == sum(map(prod, tensors(config)))


@settings(max_examples=60, deadline=None)
@given(latents)
def test_deepseek_agrees_with_the_reference(change):
    config = DEEPSEEK | change
    model = model_of(config)
    assert model.parameters == sum(map(prod, tensors(config))) == sum(model.item_parameters)


# what transformers itself counts, its weights made on torch's meta device; tied weights once
COUNTS = json.loads(
    Path(__file__).parents[2].joinpath("oracles/transformers_counts.json").read_text()
)


@pytest.mark.parametrize("kind", families)
def test_every_family_has_the_parameters_that_transformers_counts(kind):
    base, cases = COUNTS[kind]["config"], COUNTS[kind]["cases"]
    assert len(cases) > 1  # two sizes at least
    for change, parameters in cases:
        model = model_of(base | change)
        assert model.parameters == parameters, change
        assert sum(model.item_parameters) == parameters


NESTED = json.loads(
    Path(__file__).parents[2].joinpath("oracles/transformers_counts_nested.json").read_text()
)


@pytest.mark.parametrize("kind", NESTED)
def test_the_language_model_of_images_and_text_is_the_one_that_transformers_counts(kind):
    """However both configs tie the output projection; in older files neither may say it."""
    config, cases = NESTED[kind]["config"], NESTED[kind]["cases"]
    assert len({parameters for *_, parameters in cases}) == 2
    for outer, inner, parameters in cases:
        text = config["text_config"] | {"tie_word_embeddings": inner}
        told = config | {"tie_word_embeddings": outer, "text_config": text}
        model = model_of(drop_nones(told | {"text_config": drop_nones(text)}))
        assert (model.parameters, model.name) == (parameters, "test, text alone"), (outer, inner)
    with pytest.raises(ConfigError, match=r"config\.json, text_config: key 'odd' is not"):
        model_of(told | {"text_config": drop_nones(text) | {"odd": 1}})


def drop_nones(config):
    return {key: value for key, value in config.items() if value is not None}


def test_an_older_file_has_both_models_keys_side_by_side():
    """Qwen2-VL-7B's, as it was published."""
    config = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    config |= {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    config |= {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}
    config |= {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    config |= {"tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 32768}
    config |= {"hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 1e6}
    config |= {f"{name}_token_id": 1 for name in ("vision_start", "vision_end", "vision", "image")}
    model = model_of(config | {"video_token_id": 1, "vision_config": {"depth": 32}})
    assert model.parameters == 7_615_616_512  # of Qwen2-7B
    assert model.name == "test, text alone"


OLDER = {
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
    "gpt_oss": {"experts_per_token": 2, "quantization_config": {"quant_method": "mxfp4"}},
    "gptj": {"rotary": True, "scale_attn_weights": True, "n_inner": None},
    "bert": {"position_embedding_type": "absolute", "pooler_fc_size": 768},
    "gemma2": {"sliding_window_size": 4096, "hidden_act": "gelu", "cache_implementation": "hybrid"},
    "cohere2": {"use_parallel_block": True, "order_of_interleaved_layers": "local_attn_first"},
}


@pytest.mark.parametrize("kind", OLDER)
def test_keys_of_published_files_change_nothing(kind):
    config = COUNTS[kind]["config"]
    assert model_of(config | OLDER[kind]).parameters == COUNTS[kind]["cases"][0][1]


# parameters of published checkpoints, from sizes that their papers and cards give
PUBLISHED = {
    "google/gemma-2-9b": (
        9_241_705_984,
        "gemma2",
        {
            "hidden_size": 3584,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "head_dim": 256,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 256000,
        },
    ),
    "microsoft/phi-2": (
        2_779_683_840,
        "phi",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 10240,
            "vocab_size": 51200,
        },
    ),
    "tiiuae/falcon-7b": (
        6_921_720_704,
        "falcon",
        {
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "ffn_hidden_size": None,
            "vocab_size": 65024,
        },
    ),
    "openai/gpt-oss-20b": (
        20_914_757_184,
        "gpt_oss",
        {
            "hidden_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 2880,
            "vocab_size": 201088,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "layer_types": None,
        },
    ),
    "facebook/opt-350m": (
        331_196_416,
        "opt",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "ffn_dim": 4096,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
        },
    ),
    "google-bert/bert-base-uncased": (
        109_514_298,
        "bert",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 30522,
            "max_position_embeddings": 512,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_have_as_many(name):
    parameters, kind, sizes = PUBLISHED[name]
    assert model_of(COUNTS[kind]["config"] | sizes).parameters == parameters


def test_an_encoder_computes_all_scores_and_a_side_by_side_layer_keeps_one_input():
    bert = model_of(COUNTS["bert"]["config"])
    assert not bert.causal
    assert bert.dropout
    flops, causal = (step_flops(replace(bert, causal=c), 4, 32) for c in (False, True))
    assert flops.causal == flops.model == causal.model > causal.causal
    layout, cluster = td.Layout(flash_attention=True), td.load_cluster("1xH100")
    large = replace(bert, hidden=768, heads=12, head_dim=0, ffn=3072, learned_pos=4096)
    ours, half = (
        td.estimate_step(replace(large, causal=c), layout, cluster, sequence=4096).compute
        for c in (False, True)
    )
    assert ours > half
    h, one, two, four = 48, *(replace(bert, layer_norms=n) for n in (1, 2, 4))
    kept = [layer_bytes(m, td.Layout(), sequence=10) for m in (one, two, four)]
    assert kept[1] - kept[0] == kept[2] - kept[1] == 2 * (10 * 2 * h)  # two tensors a step


TIED = {"gpt2", "bloom", "smollm3"}


SOME = """gpt2 bloom-3b smollm3-3b llama-3.2-1b pythia-1b qwen2.5-0.5b qwen3-4b olmo-2-1b
    deepseek-v2-lite mistral-7b-v0.1"""


@pytest.mark.parametrize("name", SOME.split())
def test_whether_the_head_is_the_embedding_if_the_config_does_not_say(name):
    config = {k: v for k, v in shipped(name).items() if k != "tie_word_embeddings"}
    assert model_of(config).tied == (config["model_type"] in TIED)


WINDOWS = {
    "mistral": ({"sliding_window": 7}, 7, 5),
    "phi3": ({"sliding_window": None}, 0, 0),
    "gemma2": ({"sliding_window": 9, "layer_types": None}, 9, 3),
    "gemma3_text": ({"sliding_window": 9, "layer_types": None, "sliding_window_pattern": 3}, 9, 4),
    "cohere2": ({}, 4096, 4),
    "gpt_oss": ({}, 128, 3),
    "qwen2": ({"sliding_window": 9, "use_sliding_window": False}, 0, 0),
    "llama": ({}, 0, 0),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_sliding_window_is_that_of_the_layers_that_have_it(kind):
    change, window, layers = WINDOWS[kind]
    model = model_of(COUNTS[kind]["config"] | change)
    assert (model.window, model.windowed_layers) == (window, layers)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 10, 100, 400, 1000])
def test_what_a_window_leaves_is_what_is_counted_of_a_mask(causal, window):
    s, model = 400, model_of(COUNTS["llama"]["config"])
    model = replace(model, window=window, windowed_layers=2, causal=causal)
    at = np.arange(s)
    ahead = at[:, None] - at[None, :]
    masks = [ahead >= 0 if causal else ahead > -s] * 3
    masks += [(ahead >= 0 if causal else ahead > -window) & (ahead < window)] * 2
    counted = np.mean([mask.mean() for mask in masks])
    assert model.visible(s) == pytest.approx(counted, abs=1.5 / s)


@pytest.mark.parametrize("kind", ["phi", "gemma2", "bert", "opt", "gpt_oss"])
def test_what_is_unlike_a_gpt_is_planned(kind):
    change = {"word_embed_proj_dim": 20} if kind == "opt" else {}
    plans = td.search(model_of(COUNTS[kind]["config"] | change), "2xH100", 4, sequence=32)
    assert plans.best.verdict == "fits"
    assert plans.best.seconds > 0
