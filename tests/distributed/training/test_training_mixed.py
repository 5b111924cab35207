"""Halves with masters and loss scaling in a training: bytes, refusals, steps that are left out.

That halves, clipping and scaling do what one device does is in test_training_envelope.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from oracles.planned_calls import assert_planned
from oracles.single_gpt import TEXT

from tiledask.distributed.training import GPT, train
from tiledask.tile.optimizers import SGD, Adam, LossScale

pytestmark = pytest.mark.usefixtures("one_thread")

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
