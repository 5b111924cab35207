"""What a training keeps: by ZeRO the plain replica's weights and the planner's bytes; halves with
masters, and steps that are left out.

Holds `tiledask.plan.collectives.shards` and `tiledask.plan.program.making.zero`.
"""

from dataclasses import replace

import numpy as np
import pytest
from oracles.planned_calls import assert_planned
from oracles.single_gpt import TEXT

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.tile.optimizers import SGD, Adam, LossScale

pytestmark = pytest.mark.usefixtures("one_thread")


MODEL = GPT(59, hidden=8, layers=1, heads=2, sequence=4)
SIZES = {unit: sum(p.size for p in MODEL.parameters(unit).values()) for unit in MODEL.units}
WHOLE = td.load_recipe("fp32-adam")
MIXED = td.load_recipe("mixed-adam-16")
RECIPES = {
    "float64 Adam": ("float64", None, Adam(0.05)),
    "float64 momentum": ("float64", None, SGD(0.05, momentum=0.9)),
    "float64 SGD": ("float64", None, SGD(0.05)),
    "fp32-adam": ("float32", WHOLE, None),
    "mixed-adam-16": ("float16", MIXED, None),
    "mixed-adam-18": ("bfloat16", td.load_recipe("mixed-adam-18"), None),
    "fp16-sgd": ("float16", td.load_recipe("fp16-sgd"), SGD(0.05)),
}
"""Type, recipe and rule of trainings."""


def run_zero(name, stage, ranks, batch=6, steps=3, **options):
    dtype, recipe, rule = RECIPES[name]
    options = {"timeout": 240, "progress": False} | options
    return td.train(
        MODEL, TEXT, (ranks, 1, 1), steps=steps, batch=batch, zero=stage, dtype=dtype,
        recipe=recipe, rule=rule, **options,
    )  # fmt: skip


def assert_same(got, other):
    assert got.losses.tolist() == other.losses.tolist()
    for name, w in got.weights.items():
        assert w.tobytes() == other.weights[name].tobytes(), name


@pytest.mark.few(4)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_the_plain_replicas_to_the_bit(name, stage):
    assert_same(run_zero(name, stage, 4, batch=9), run_zero(name, 0, 4, batch=9))


@pytest.mark.few(8)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["fp32-adam", "mixed-adam-16", "mixed-adam-18", "fp16-sgd"])
def test_bytes_held_are_the_planners(name, stage, ranks):
    """Momentum is sharded from ZeRO-1 on, gradients from 2, weights from 3."""
    got, (_, recipe, _) = run_zero(name, stage, ranks, steps=1), RECIPES[name]
    planned = state_bytes(MODEL.size, recipe, stage, ranks)
    assert {tensor: max(held[tensor] for held in got.held) for tensor in got.held[0]} == planned
    for state in recipe.states:
        copies = 1 if state.sharded(stage) and ranks > 1 else ranks
        assert sum(h[state.tensor] for h in got.held) == state.bytes * MODEL.size * copies


SMALL = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
RULE = SGD(0.5, momentum=0.9)
BATCH, STEPS = 7, 4


def run(model=SMALL, shape=(1, 1, 1), data=TEXT, **options):
    usual = {"steps": STEPS, "batch": BATCH, "microbatches": 2, "rule": RULE, "dtype": "float64"}
    return train(model, data, shape, **usual | {"timeout": 240} | options)


# -- halves ----------------------------------------------------------------------------------------


def test_gradients_in_single_precision_travel_so():
    """mixed-adam-18 sums over dp in float32: twice the bytes, and no sum that overflows."""
    sent = {}
    for name in ("mixed-adam-16", "mixed-adam-18"):
        got = run(shape=(2, 1, 1), dtype="float16", recipe=name, rule=None, steps=1)
        assert_planned(got)
        rows = got.records.where("gradients", rank=0)
        sent[name] = sum(r.sent for r in rows)
        assert {r.dtype for r in rows} == {"float16" if name[-1] == "6" else "float32"}
    assert sent["mixed-adam-18"] == 2 * sent["mixed-adam-16"] > 0


def test_masters_keep_what_halves_lose():
    """Steps far below a half's spacing: without masters no weight of 1 ever moves."""
    options = {"dtype": "float16", "rule": SGD(1e-3), "steps": 8, "batch": 4}
    lost = run(recipe="fp16-sgd", **options)
    kept = run(**options)
    assert "master weights" not in lost.held[0]
    assert "master weights" in kept.held[0]
    single = run(**options | {"dtype": "float32"})
    moved = np.abs(single.weights["layer 0.norm_1.w"] - 1).max()
    assert 8 * 2.0**-15 < moved < 8 * 2.0**-12  # of eight steps; one is below half a spacing
    assert set(lost.weights["layer 0.norm_1.w"].tolist()) == {1.0}
    assert min(kept.weights["layer 0.norm_1.w"].tolist()) == 1 - 2.0**-11


# -- steps that are left out -----------------------------------------------------------------------


def test_a_step_that_is_left_out_changes_nothing(tmp_path):
    """Not the weights, not the moments, not the count of steps that Adam divides by."""
    options = {"dtype": "float16", "rule": Adam(1e-2), "shape": (1, 2, 1)}
    twice = LossScale(2.0**24, interval=2000, backoff=2.0**-8)
    got = run(steps=5, scale=twice, **options)
    assert got.skipped == [0]

    class Later:
        vocabulary = TEXT.vocabulary

        def batch(self, seed, step, *rest):
            return TEXT.batch(seed, step + 1, *rest)

    once = replace(twice, scale=2.0**16)
    without = run(steps=4, data=Later(), scale=once, **options)
    assert got.losses[1:].tolist() == without.losses.tolist()
    for name, w in without.weights.items():
        assert np.array_equal(got.weights[name], w), name
