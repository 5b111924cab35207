"""Watching a training: its bar, who is called, and what is counted layer by layer."""

from collections import Counter
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.training import GPT, progress, train
from tiledask.distributed.training.by_layer import place_of
from tiledask.distributed.training.run import configured
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = load_text("tales")
MODEL = GPT(50, hidden=8, layers=2, heads=2, sequence=8, tied=True)
STEPS, BATCH = 4, 6


def run(shape=(1, 2, 2), progress=False, steps=STEPS, **options):
    options = {"batch": BATCH, "microbatches": 2, "timeout": 240} | options
    return train(MODEL, TEXT, shape, steps=steps, progress=progress, **options)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1, 1), {}),
        ((2, 2, 1), {"zero": 3}),
        ((2, 1, 2), {"zero": 1, "clip": 0.5}),
        pytest.param((2, 1, 2), {"zero": 1}, marks=pytest.mark.cluster),
    ],
    ids=str,
)
def test_every_step_is_told_once_in_order_with_what_the_records_say_of_it(shape, options, request):
    marked, seen = request.node.get_closest_marker("cluster"), []
    ranks = td.Mesh(request.getfixturevalue("cluster"), shape) if marked else shape
    got = run(ranks, seen.append, **options)
    frame = got.to_frame()
    assert [p.step for p in seen] == list(frame.index) == [*range(STEPS)]
    np.testing.assert_allclose([p.loss for p in seen], got.losses, rtol=1e-13)
    for name, column in {"sent": "bytes_sent", "messages": None, "barriers": None}.items():
        assert [getattr(p, name) for p in seen] == frame[column or name].tolist()
    assert {(p.steps, p.tokens, p.floor) for p in seen} == {(STEPS, 48, TEXT.floor)}
    assert all(p.seconds > 0 for p in seen)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_raises_is_called_no_more_and_ends_nothing():
    seen = []

    def broken(p):
        seen.append(p.step)
        if p.step == 1:
            raise ZeroDivisionError

    got = run(progress=broken)
    assert (seen, len(got.losses)) == ([0, 1], STEPS)


def test_a_bar_says_how_far_it_is():
    config = replace(configured(MODEL, (2, 1, 1), batch=BATCH), steps=10, first=5)
    reports, latest = SimpleQueue(), []
    assert progress._look(latest) == (0, None, "first step")
    for rank, loss in enumerate((1.0, 1.5)):
        rows = [(rank, "step", n, loss, 0, 0, 0, n) for n in (5, 6)]
        reports.put({"spans": rows, "counted": [(rank, {"begin": 4.0})]})
    reports.put({})
    progress._follow(config, reports, latest.append)
    assert progress._look(latest) == (7, 10, "loss 2.5000  48 tokens/s")


AXES = {"tensor": (1,), "data": (0,), "pipeline": (2,), "all ranks": (0, 1, 2)}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 2, 2), {"zero": 3, "sequence_parallel": True}),
        ((2, 2, 2), {"zero": 0, "sequence_parallel": True, "schedule": "gpipe"}),
        ((2, 1, 2), {"zero": 2}),
        ((1, 2, 2), {"schedule": "gpipe"}),
        ((2, 2, 1), {"zero": 1, "clip": 1.0}),
    ],
    ids=str,
)
def test_layers_add_up_and_a_label_says_along_which_axis_it_is(shape, options):
    got = run(shape, **options)
    frame, whole = got.layers(), got.to_frame()
    assert repr(got).startswith(f"Trained({STEPS} steps on {len(got.held)} ranks (dp={shape[0]}, ")
    assert "bytes_sent" in got._repr_html_()
    assert whole.bytes_sent[0] == sum(r.sent for r in got.records if r.step == 0) > 0
    assert frame["bytes"].sum() == whole["bytes_sent"].iloc[0]
    assert frame["messages"].sum() == whole["messages"].iloc[0]
    for what in ("barriers", "bytes", "messages"):
        assert frame[what].tolist() == frame[f"predicted_{what}"].tolist()
    waits, units = Counter(), {*MODEL.units, "tied table", "stages 0-1", "all layers"}
    for r in got.records.where(step=0):
        layer, when, parallel = place_of(r.label, r.kind)
        waits[layer, when, r.rank] += r.barrier is not None
        assert layer.partition("/")[0] in units, r.label
        assert AXES[parallel] == r.axes, r.label
        of_weights = parallel == "data" or layer == "tied table"
        assert (when in ("gradients", "weights")) == of_weights, r.label
    for layer, when in frame.index:  # ranks wait at the same time: not those of all together
        most = max(waits[layer, when, rank] for rank in range(len(got.held)))
        assert frame.loc[(layer, when), "barriers"] == most
    seconds = sum(r.seconds for r in got.records if r.step is not None) / STEPS
    assert 0 < frame["seconds"].sum() <= seconds
