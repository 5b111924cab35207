"""Watching a training: every step is told, nothing waits for a listener, layers add up.

Holds `tiledask.distributed.training.by_layer`, `tiledask.distributed.training.job` and
`tiledask.distributed.training.reports`.
"""

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.training import GPT, Progress, progress, train
from tiledask.distributed.training.by_layer import place_of
from tiledask.errors import ConfigError
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = load_text("tales")
MODEL = GPT(50, hidden=8, layers=2, heads=2, sequence=8, tied=True)
STEPS, BATCH = 4, 6


def run(shape=(1, 2, 2), progress=None, steps=STEPS, **options):
    options = {"batch": BATCH, "microbatches": 2, "timeout": 240} | options
    return train(MODEL, TEXT, shape, steps=steps, progress=progress, **options)


def assert_told(seen: list[Progress], got, tokens=BATCH * MODEL.sequence):
    """Every step once, in order, with what the records say of it."""
    frame = got.to_frame()
    assert [p.step for p in seen] == list(frame.index)
    assert {p.steps for p in seen} == {got.first + len(got.losses)}
    np.testing.assert_allclose([p.loss for p in seen], got.losses, rtol=1e-13)
    for name in ("sent", "messages", "barriers"):
        column = "bytes_sent" if name == "sent" else name
        assert [getattr(p, name) for p in seen] == frame[column].tolist()
    assert all(p.seconds > 0 and p.tokens == tokens and p.floor == TEXT.floor for p in seen)


# -- being told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1, 1), {}),
        ((2, 2, 1), {"zero": 3}),
        ((2, 1, 2), {"zero": 1, "clip": 0.5}),
        ((1, 2, 2), {"sequence_parallel": True}),
        ((3, 1, 1), {"dtype": "float64"}),
    ],
    ids=str,
)
def test_every_step_is_told(shape, options):
    seen: list[Progress] = []
    begun = time.time()
    got = run(shape, seen.append, **options)
    ended = time.time()
    assert_told(seen, got)
    assert sum(p.seconds for p in seen) < ended - begun  # no moment is counted twice
    records = [r for r in got.records if r.step is not None]
    if records:  # the steps' seconds add up to the time from the first begin to the last end
        assert sum(p.seconds for p in seen) >= max(r.end for r in records) - min(
            r.begin for r in records
        )


def test_a_bar_says_how_far_it_is():
    bar = progress.Bar()
    assert bar._look() == (0, None, "first step")
    bar(Progress(6, 10, 2.5, 0.5, 64, 0, 0, 0))
    assert bar._look() == (7, 10, "loss 2.5000  128 tokens/s")


@pytest.mark.parametrize("wrong", [3, "bar", [print]])
def test_what_cannot_listen_is_refused(wrong):
    words = f"progress is None, True, False .* got {type(wrong).__name__}"
    with pytest.raises(ConfigError, match=words):
        run(progress=wrong)


# -- listeners that fail -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "at", "words"),
    [
        (ZeroDivisionError("of my own"), 1, "raised ZeroDivisionError at step 1: of my own"),
        (SystemExit(3), 0, "raised SystemExit at step 0"),
        (KeyboardInterrupt(), 0, "raised KeyboardInterrupt at step 0"),
    ],
    ids=["of its own", "exit", "interrupt"],
)
def test_a_listener_that_raises_is_called_no_more_and_ends_nothing(error, at, words):
    seen = []

    def broken(p):
        seen.append(p.step)
        if p.step == at:
            raise error

    with pytest.warns(RuntimeWarning, match=words):
        got = run(progress=broken)
    assert seen == [*range(at + 1)]
    assert len(got.losses) == STEPS


def test_steps_do_not_wait_for_a_listener(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    last, through = threading.Event(), []

    class Told:
        """A text that says when its last batch is taken."""

        vocabulary, floor = TEXT.vocabulary, TEXT.floor

        def batch(self, seed, step, *rest):
            if step == 4:
                last.set()
            return TEXT.batch(seed, step, *rest)

    def slow(p):
        through.append((p.step, last.wait(240)))

    train(MODEL, Told(), (1, 2, 1), steps=5, batch=4, progress=slow)
    assert through == [(step, True) for step in range(5)]


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


def test_a_missing_collective_is_seen_by_layer():
    """The planted fault of all: what is counted is not what is predicted."""
    got = run((1, 2, 1), False)
    text = "\n".join(
        line
        for line in got.program.to_text().splitlines()
        if "all_reduce" not in line or "layer 1/mlp/w_2/forward" not in line
    )
    frame = replace(got, program=td.Program.from_text(text)).layers()
    wrong = frame[frame["bytes"] != frame["predicted_bytes"]]
    assert wrong.index.tolist() == [("layer 1/mlp/w_2", "forward")]
    assert wrong["predicted_barriers"].tolist() == [0]


# -- on workers --------------------------------------------------------------------------------


@pytest.mark.cluster
def test_workers_tell_too(cluster):
    seen: list[Progress] = []
    got = run(td.Mesh(cluster, (2, 1, 2)), seen.append, zero=1)
    assert_told(seen, got)
