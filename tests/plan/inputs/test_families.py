"""Every family against the parameters that transformers itself counts."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiledask as td
from tiledask.plan.data import Fields, data_file
from tiledask.plan.inputs.hf_config import KEYS, families, model_from_config


def model_of(config):
    return model_from_config(Fields(config, "config.json"), "test")


# what transformers itself counts; its version stands in the files
ORACLES = Path(__file__).parents[2] / "oracles"
COUNTS = json.loads(gzip.decompress((ORACLES / "transformers_counts.json.gz").read_bytes()))
POSTED = json.loads(gzip.decompress((ORACLES / "posted_configs.json.gz").read_bytes()))
RUNS = json.loads((ORACLES / "hybrid_runs.json").read_text())
ELSEWHERE = {"mimo", "nemotron-nas"}  # families that transformers lacks: in POSTED
NESTED = json.loads((ORACLES / "transformers_counts_nested.json").read_text())


@pytest.mark.parametrize("kind", sorted(families.keys() - ELSEWHERE))
def test_every_family_has_the_parameters_that_transformers_counts(kind):
    assert kind in COUNTS, "count it: tests/oracles/transformers_counts.py --add"
    base, cases = COUNTS[kind]["config"], COUNTS[kind]["cases"]
    assert len(cases) > 1  # two sizes at least
    for change, parameters in cases:
        model = model_of(base | change)
        assert model.parameters == parameters, change
        assert sum(model.item_parameters) == parameters
        assert "no such key" not in model.source  # all that transformers writes is understood


def test_no_family_fixes_what_a_switch_that_it_inherits_sets():
    for kind, own in KEYS["families"].items():
        like = own.get("like", [])
        switches = {}
        for above in [like] if isinstance(like, str) else like:
            switches |= (KEYS["parts"] | families)[above].get("switches", {})
        for key in switches.keys() - own.get("switches", {}).keys():
            values = switches[key]
            sets = {*values.get("sets", ()), *values.get("true", {}), *values.get("false", {})}
            assert not sets & own.get("fixed", {}).keys(), f"{kind}: {key} sets it; redefine {key}"


@pytest.mark.parametrize("row", POSTED, ids=[row["names"][0] for row in POSTED])
def test_a_posted_model_is_counted_and_planned(row):
    """Of 86 files that aiconfigurator ships the keys that decide the count; and 20 like others."""
    model, layout = model_of(row["config"]), td.Layout(dp=32, pp=4, zero=1, microbatches=8)
    assert model.parameters == row["parameters"], row["by"]
    fit = td.fits(model, layout, "128xB200", sequence=4096)
    assert fit.memory.peak > 2 * model.parameters / 128
    assert 0 < fit.step.mfu < 1


def test_published_runs_of_hybrids_lie_within_the_band():
    """None is fitted; and FLOP of a token are those that NVIDIA counts."""
    posted = {name: row["config"] for row in POSTED for name in row["names"]}
    program, ratios = {"recipe": "mixed-adam-18-fp8", "framework": "megatron-bridge-2026"}, []
    for row in RUNS["rows"]:
        model = replace(model_of(posted[row["model"]]), mtp_layers=row["mtp_layers"])
        run, s = (model, td.Layout(**row["layout"]), row["run"]), row["sequence"]
        step = td.estimate_step(*run, sequence=s, **program)
        assert step.flops / step.layout.sequences / s == pytest.approx(row["flop"], rel=0.03)
        assert step.band[0] < row["seconds"] < step.band[1], row
        ratios.append(step.total / row["seconds"] - 1)
    assert np.mean(np.abs(ratios)) < 0.15


@pytest.mark.parametrize("kind", NESTED)
def test_the_language_model_of_images_and_text_is_the_one_that_transformers_counts(kind):
    """However both configs tie the output projection; in older files neither may say it."""
    config, cases = NESTED[kind]["config"], NESTED[kind]["cases"]
    assert len({parameters for *_, parameters in cases}) == 2
    for outer, inner, parameters in cases:
        text = config["text_config"] | {"tie_word_embeddings": inner}
        told = config | {"tie_word_embeddings": outer, "text_config": text}
        model = model_of(told)
        assert (model.parameters, model.name) == (parameters, "test, text alone"), (outer, inner)
    odd = model_of(told | {"text_config": text | {"odd_size": 1}})
    assert (odd.parameters, odd.notes[0][:10]) == (parameters, "text alone")
    assert odd.notes[-1].endswith("no such key: odd_size")


def test_an_older_file_has_both_models_keys_side_by_side():
    config = json.loads(data_file("models", "qwen2.5-7b.json").read_text())
    config |= {"model_type": "qwen2_vl", "vision_config": {"depth": 32}}
    config |= {"architectures": ["Qwen2VLForConditionalGeneration"], "video_token_id": 1}
    assert model_of(config).parameters == 7_615_616_512  # of Qwen2-7B


WINDOWS = {
    "mistral": ({"sliding_window": 7}, 7, 5),
    "phi3": ({"sliding_window": None}, 0, 0),
    "gemma2": ({"sliding_window": 9, "layer_types": None}, 9, 3),
    "gemma3_text": ({"sliding_window": 9, "layer_types": None, "sliding_window_pattern": 3}, 9, 4),
    "gpt_oss": ({}, 128, 3),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_sliding_window_is_that_of_the_layers_that_have_it(kind):
    change, window, layers = WINDOWS[kind]
    model = model_of(COUNTS[kind]["config"] | change)
    assert (model.window, model.windowed_layers) == (window, layers)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 100, 1000])
def test_what_a_window_leaves_is_what_is_counted_of_a_mask(causal, window):
    s, llama = 400, model_of(COUNTS["llama"]["config"])
    model = replace(llama, window=window, windowed_layers=2, causal=causal)
    ahead = np.arange(s)[:, None] - np.arange(s)
    masks = [ahead >= 0 if causal else ahead > -s] * 3
    masks += [(ahead >= 0 if causal else ahead > -window) & (ahead < window)] * 2
    counted = np.mean([mask.mean() for mask in masks])
    assert model.visible(s) == pytest.approx(counted, abs=1.5 / s)


def test_heads_and_groups_of_a_scan_are_dealt_out_as_those_of_attention():
    mamba = model_of(COUNTS["mamba2"]["config"])  # 6 heads of 2 groups
    assert [tp for tp in range(1, 7) if mamba.allows_tp(tp)] == [1, 2, 6]
