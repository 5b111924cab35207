"""Watching a training: its bar, who is called, and what is counted layer by layer.

Holds `tiledask.distributed.training.by_layer`, `tiledask.distributed.training.job` and
`tiledask.distributed.training.progress`.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.training import GPT, progress, train
from tiledask.distributed.training.by_layer import place_of
from tiledask.distributed.training.run import configured
from tiledask.errors import ConfigError
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = load_text("tales")
MODEL = GPT(50, hidden=8, layers=2, heads=2, sequence=8, tied=True)
STEPS, BATCH = 4, 6


def run(shape=(1, 2, 2), progress=None, steps=STEPS, **options):
    options = {"batch": BATCH, "microbatches": 2, "timeout": 240} | options
    return train(MODEL, TEXT, shape, steps=steps, progress=progress, **options)


def assert_told(seen, got):
    """Every step once, in order, with what the records say of it."""
    frame = got.to_frame()
    assert [p.step for p in seen] == list(frame.index)
    np.testing.assert_allclose([p.loss for p in seen], got.losses, rtol=1e-13)
    for name, column in {"sent": "bytes_sent", "messages": None, "barriers": None}.items():
        assert [getattr(p, name) for p in seen] == frame[column or name].tolist()
    assert {(p.steps, p.tokens, p.floor) for p in seen} == {(STEPS, 48, TEXT.floor)}
    assert all(p.seconds > 0 for p in seen)


@pytest.mark.parametrize(
    ("shape", "options"),
    [((1, 1, 1), {}), ((2, 2, 1), {"zero": 3}), ((2, 1, 2), {"zero": 1, "clip": 0.5})],
    ids=str,
)
def test_every_step_is_told(shape, options):
    seen = []
    assert_told(seen, run(shape, seen.append, **options))


@pytest.mark.cluster
def test_workers_tell_too(cluster):
    seen = []
    assert_told(seen, run(td.Mesh(cluster, (2, 1, 2)), seen.append, zero=1))


@pytest.mark.parametrize("error", [ZeroDivisionError("of my own"), KeyboardInterrupt()], ids=repr)
def test_a_function_that_raises_is_called_no_more_and_ends_nothing(error):
    seen = []

    def broken(p):
        seen.append(p.step)
        if p.step == 1:
            raise error

    with pytest.warns(RuntimeWarning, match=f"raised {type(error).__name__} at step 1"):
        got = run(progress=broken)
    assert (seen, len(got.losses)) == ([0, 1], STEPS)


def test_a_bar_says_how_far_it_is():
    config = replace(configured(MODEL, (2, 1, 1), batch=BATCH), steps=10, first=5)
    steps = progress._WholeSteps(config)
    assert steps.look() == (0, None, "first step")
    for rank, loss in enumerate((1.0, 1.5)):
        rows = [(rank, "step", n, loss, 0, 0, 0, n) for n in (5, 6)]
        steps.reports.put({"spans": rows, "counted": [(rank, {"begin": 4.0})]})
    assert steps.look() == (7, 10, "loss 2.5000  48 tokens/s")


@pytest.mark.parametrize("wrong", [3, "bar", [print]])
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(ConfigError, match="progress is None, True, False or a function"):
        run(progress=wrong)


# -- by layer ----------------------------------------------------------------------------------

AXES = {"tensor": (1,), "data": (0,), "pipeline": (2,)}


@pytest.mark.few(3)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 2, 2), {"zero": 3, "sequence_parallel": True}),
        ((2, 1, 2), {"zero": 2}),
        ((2, 2, 1), {"zero": 1, "clip": 1.0}),
        ((1, 2, 2), {}),
    ],
    ids=str,
)
def test_layers_add_up(shape, options, schedule):
    got = run(shape, False, schedule=schedule, **options)
    frame = got.layers()
    whole = got.to_frame()
    assert frame["bytes"].sum() == whole["bytes_sent"].iloc[0]
    assert frame["messages"].sum() == whole["messages"].iloc[0]
    for what in ("barriers", "bytes", "messages"):
        assert frame[what].tolist() == frame[f"predicted_{what}"].tolist()
    waits = Counter()
    for r in got.records.where(step=0):
        layer, when, _ = place_of(r.label, r.kind)
        waits[layer, when, r.rank] += r.barrier is not None
    for layer, when in frame.index:  # ranks wait at the same time: not those of all together
        most = max(waits[layer, when, rank] for rank in range(len(got.held)))
        assert frame.loc[(layer, when), "barriers"] == most
    ranks = [got.layers(rank) for rank in range(len(got.held))]
    assert max(each["barriers"].sum() for each in ranks) == whole["barriers"].iloc[0]
    for what in ("bytes", "messages"):
        assert sum(each[what].sum() for each in ranks) == frame[what].sum()
        assert all(each[what].tolist() == each[f"predicted_{what}"].tolist() for each in ranks)
    seconds = sum(r.seconds for r in got.records if r.step is not None) / STEPS
    assert 0 < frame["seconds"].sum() <= seconds


@pytest.mark.few(2)
@pytest.mark.parametrize("zero", range(4))
def test_a_label_says_along_which_axis_it_is(zero):
    got = run((2, 2, 2), False, zero=zero, sequence_parallel=True, steps=1)
    units = {*MODEL.units, "tied table", "stages 0-1"}
    for r in got.records.where(step=0):
        place = place_of(r.label, r.kind)
        assert AXES[place.parallel] == r.axes, r.label
        assert place.unit in units, r.label
        assert (place.when in ("gradients", "weights")) == (
            place.parallel == "data" or place.unit == "tied table"
        ), r.label
