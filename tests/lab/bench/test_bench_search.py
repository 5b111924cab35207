"""The bench of searches: the space it asks for, and what it says of goals.

Holds `tiledask.lab.bench.search_peer`.
"""

import json
import os
from pathlib import Path

import pytest

from tiledask.lab.bench import search as bench
from tiledask.plan.choosing.search import search
from tiledask.plan.inputs.load import load_cluster

GPT = {"hidden": 512, "feedforward": 2048, "seq_size": 256, "attn_heads": 8, "num_blocks": 12}


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(GPT))
    return bench.model_of(file)


def test_a_model_of_theirs_has_every_divisor_in_its_space(model):
    assert (model.name, model.hidden, model.layers, model.ffn) == ("small", 512, 12, 2048)
    space = bench.space_of(model, 24, 48)
    assert list(space.tp) == [1, 2, 4, 8]
    assert list(space.pp) == list(space.interleave) == [1, 2, 3, 4, 6, 12]
    plans = search(model, load_cluster("24xA100-80GB"), 48, sequence=256, space=space)
    keys = bench._key(plans)
    assert len(keys) == len(plans)
    assert (3, 4, 2, 1, 3, 1, "selective", True) in keys  # dp tp pp b v zero recompute sp


def test_goals_are_met_or_not():
    row = {"model": "m", "devices": 8, "speed": 99.0, "missing here": 1}
    big = {"model": "b", "devices": 10_000, "seconds": 0.5}
    assert [g["met"] for g in bench.goals([row], big)] == [False, False, True]
    row = {**row, "speed": 101.0, "missing here": 0}
    assert [g["met"] for g in bench.goals([row], {**big, "seconds": 1.5})] == [True, True, False]


def test_the_same_layouts_through_calculon():
    checkout = os.environ.get("TILEDASK_CALCULON", "")
    if not (Path(checkout) / "calculon").is_dir():
        pytest.skip("TILEDASK_CALCULON names no checkout of github.com/calculon-ai/calculon")
    row = bench.compare(checkout, "gpt3-175B", 16, 32, sample=2, rounds=1)
    assert row["missing here"] == 0
    assert row["layouts of calculon"] > 500
    assert row["calculon, a layout"] > 0
