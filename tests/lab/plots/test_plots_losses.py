"""Figures of trainings: what they draw is what was counted, and every word can be read."""

from types import SimpleNamespace

import numpy as np
import pytest
from oracles.figures import clipped, drawn_texts, overlaps

import tiledask as td
from tiledask.lab import plots
from tiledask.lab.precision.drift import SAFETY, likely

TEXT = td.load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=8, layers=2, heads=2, sequence=8)


@pytest.fixture(scope="module")
def trained():
    options = {"steps": 3, "batch": 4, "microbatches": 2, "progress": False, "clip": 1.0}
    shapes = {(1, 1, 1): 0, (2, 2, 2): 3}
    return {
        shape: td.train(MODEL, TEXT, shape, zero=zero, **options) for shape, zero in shapes.items()
    }


def curve(n=30, off=0.0, first=0):
    steps = np.arange(first, n)
    return SimpleNamespace(losses=4 * 0.95**steps * (1 + off * np.sin(steps)), first=first)


OF_EIGHT = {"dtype": "bfloat16"}
FIGURES = {
    "losses, one": lambda t: plots.losses({"one rank": t[1, 1, 1]}),
    "losses, two": lambda t: plots.losses(
        {str(shape): run for shape, run in t.items()}, dtype="float32"
    ),
    "losses, equal": lambda t: plots.losses({"first": curve(), "again": curve()}),
    "losses, many": lambda t: plots.losses(
        {f"dp={n}, tp=2, pp=2": curve(off=n * 1e-7) for n in range(7)}, **OF_EIGHT
    ),
    "losses, controls": lambda t: plots.losses(
        {"one device": curve(), "split": curve(off=1e-6)},
        controls=[curve(off=n * 1e-4) for n in range(3)],
        **OF_EIGHT,
    ),
    "losses, later": lambda t: plots.losses({"one": curve(), "later": curve(40, first=20)}),
    "curves": lambda t: plots.curves(
        {"within": {8: 1e-4, 4096: 3e-4}, "between": {8: 1e-4, 4096: 9e-4}},
        xlabel="bytes",
        ylabel="seconds",
    ),
    "curves, marks": lambda t: plots.curves(
        {"scale": {0: 24, 1: 23, 2: 22}},
        marks={"left out": {0: 24}},
        log="",
        xlabel="step",
        ylabel="power of two",
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FIGURES)
def test_every_word_can_be_read(name, trained):
    figure = FIGURES[name](trained)
    drawn = drawn_texts(figure)
    assert drawn
    assert not clipped(figure, drawn, by=1)
    for axes in figure.axes:  # a layout without room for the words lets the axes collapse
        assert axes.get_window_extent().height > 60, f"no room for {axes.get_title(loc='left')!r}"
    assert not overlaps(drawn)


def lines(axes):
    return {line.get_label().partition(":")[0]: line for line in axes.get_lines()}


def test_the_band_holds_all_controls_and_so_a_split_that_parts_no_farther():
    """With one of them alone, a run that parts as another control does looks faulty."""
    alone, near, far = curve(), curve(off=1e-7), curve(off=1e-3)
    split = {"one device": alone, "split": curve(off=5e-4)}
    steps, both = range(len(alone.losses)), np.array([near.losses, far.losses])
    apart = abs(alone.losses - far.losses) / np.maximum(alone.losses, far.losses)
    for controls in ([near, far], [far, near]):
        figure, heights = plots.losses(split, controls=controls), []
        for axes in figure.axes:
            (band,) = (c for c in axes.collections if c.get_gid() == "controls")
            corners = band.get_paths()[0].vertices
            heights.append([corners[corners[:, 0] == step, 1] for step in steps])
        above, below = heights
        assert [h.max() for h in above] == both.max(axis=0).tolist()
        assert [h.min() for h in above] == both.min(axis=0).tolist()
        assert [h.max() for h in below] == pytest.approx(apart)
        dots = dict(zip(*lines(figure.axes[1])["split"].get_data(), strict=True))
        assert all(dots[n] <= below[int(n)].max() for n in dots)


def test_losses_and_differences_are_drawn():
    first, second = curve(), curve(off=1e-6)
    figure = plots.losses({"one": first, "two": second})
    above, below = figure.axes
    for name, run in (("one", first), ("two", second)):
        assert lines(above)[name].get_ydata().tolist() == run.losses.tolist()
    off = np.abs(first.losses - second.losses) / np.maximum(first.losses, second.losses)
    drawn = lines(below)["two"]
    assert drawn.get_xdata().tolist() == np.flatnonzero(off).tolist()
    assert drawn.get_ydata().tolist() == off[off > 0].tolist()
    assert below.get_yscale() == "log"
    assert drawn.get_label() == f"two:\nat most {off.max():.1e}"


def test_the_envelope_is_that_of_the_theory(trained):
    runs = {str(shape): run for shape, run in trained.items()}
    below = plots.losses(runs, dtype="float32").axes[1]
    line = lines(below)[f"envelope, {SAFETY:g} x random walk\n(8 ranks, 2 layers)"]
    expected = [SAFETY * likely(n, "float32", 8, 2) for n in (1, 2, 3)]
    assert line.get_ydata().tolist() == pytest.approx(expected)
    assert not below.collections  # no band: nothing was run as a control
    (points,) = [each for name, each in lines(below).items() if name == "(2, 2, 2)"]
    assert (points.get_ydata() < expected[-1]).all()


def test_the_first_step_outside_of_the_envelope_is_marked():
    runs = {"one": curve(), "near": curve(off=1e-9), "far": curve(off=1e-2)}
    apart = abs(runs["one"].losses - runs["far"].losses) / runs["far"].losses
    runs["one"].shape, runs["one"].model = (2,), SimpleNamespace(layers=2)
    inside = [SAFETY * likely(n + 1, "float32", 2, 2) for n in range(len(apart))]
    first = int((apart > inside).argmax())
    (line,) = [
        each
        for name, each in lines(plots.losses(runs, dtype="float32").axes[1]).items()
        if name == "first outside"
    ]
    assert line.get_xdata() == [first, first]
    del runs["far"]
    assert "first outside" not in lines(plots.losses(runs, dtype="float32").axes[1])


@pytest.mark.parametrize(
    ("shape", "hosts", "across"),
    [
        ((2, 2, 2), "", {"dp": 0, "tp": 0, "pp": 0}),
        ((1, 2, 2), "AABB", {"tp": 2, "pp": 0}),
        ((1, 2, 2), "ABAB", {"tp": 0, "pp": 2}),
        ((2, 4, 1), "AABBAABB", {"dp": 0, "tp": 2}),
    ],
)
def test_a_group_is_a_line_through_its_ranks_red_where_it_lies_on_several_hosts(
    shape, hosts, across
):
    figure = plots.rank_groups(shape, hosts=hosts)
    top, *panels = figure.axes
    at = {text.get_text(): text.get_position()[0] for text in top.texts}
    assert [axes.get_ylabel() for axes in panels] == list(across)
    for axes in panels:
        groups = axes.get_lines()
        axis = ("dp", "tp", "pp").index(axes.get_ylabel())
        found = sorted(sorted(line.get_xdata()) for line in groups)
        grid = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axis, -1)
        ranks = grid.reshape(-1, shape[axis]).tolist()
        assert found == sorted(sorted(at[f"rank {r}"] for r in group) for group in ranks)
        assert sum(line.get_gid() == "across" for line in groups) == across[axes.get_ylabel()]
        rows = [(line.get_ydata()[0], *sorted(line.get_xdata())) for line in groups]
        for y, *xs in rows:  # no other group of this row begins within it
            assert not any(y == other and xs[0] < x[0] <= xs[-1] for other, *x in rows)
    drawn = drawn_texts(figure)
    assert not clipped(figure, drawn, by=1)
    assert not overlaps(drawn)
