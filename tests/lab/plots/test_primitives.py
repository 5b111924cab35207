"""What figures are made of: where it stands, and that no figure goes past it."""

import ast
from pathlib import Path

import pytest

import tiledask as td
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, RED, canvas

LAB = Path(td.__file__).parent / "lab"
APART = {"primitives.py", "picture.py"}
RAW = {
    *("add_collection", "add_patch", "annotate", "axhline", "axvline", "plot"),
    *("secondary_yaxis", "set_major_formatter"),
}
"""Methods of matplotlib that have a primitive."""
CLASSES = ("matplotlib.collections", "matplotlib.lines", "matplotlib.patches")


def past_primitives(source: str) -> list[str]:
    """What of ``source`` draws with matplotlib's own methods or classes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found += [node.func.attr] if node.func.attr in RAW else []
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] if node.module in CLASSES else []
    return found


@pytest.mark.long
def test_no_figure_of_the_lab_draws_past_the_primitives():
    files = [path for path in LAB.rglob("*.py") if path.name not in APART]
    assert len(files) > 100
    wrong = {str(path): past_primitives(path.read_text("utf-8")) for path in files}
    assert {path: found for path, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("axes.plot([0], [1])", ["plot"]),
        ("figure.axes[0].axvline(3)", ["axvline"]),
        ("from matplotlib.patches import Patch", ["matplotlib.patches"]),
        ("draw.curve(axes, [0], [1], BLUE)", []),
    ],
)
def test_what_draws_past_the_primitives_is_seen(source, found):
    assert past_primitives(source) == found


@pytest.fixture
def axes():
    return canvas(3, "a title").subplots()


def bars(axes, gid: str) -> list[tuple[float, ...]]:
    return [patch.get_bbox().bounds for patch in axes.patches if patch.get_gid() == gid]


def test_a_stack_returns_the_boxes_that_it_draws(axes):
    boxes = draw.stack(axes, 2, [("a", 3, BLUE), ("b", 4, RED)], 0.5)
    assert boxes == [(0, 1.75, 3, 0.5), (3, 1.75, 4, 0.5)]
    assert bars(axes, "a") + bars(axes, "b") == boxes


def test_groups_of_bars_are_centred_on_their_index_and_none_is_no_bar(axes):
    series = [("a", [1, None]), ("b", [2, 3])]
    found = draw.grouped_bars(axes, series, (BLUE, RED), width=0.8, fill=1.0)
    places = [x for x, _ in found]
    assert places == pytest.approx([-0.2, 0.8, 0.2, 1.2])
    assert [value for _, value in found] == [1, None, 2, 3]
    assert bars(axes, "a") == [pytest.approx((-0.4, 0, 0.4, 1))]
    assert len(bars(axes, "b")) == 2


@pytest.mark.parametrize(
    ("offset", "aligned"),
    [((6, 0), ("left", "center")), ((-4, 3), ("right", "bottom")), ((0, -2), ("center", "top"))],
)
def test_a_note_stands_on_the_side_that_its_offset_says(axes, offset, aligned):
    draw.note(axes, (0.5, 0.5), "words", offset)
    (text,) = axes.texts
    assert (text.get_ha(), text.get_va()) == aligned


@pytest.mark.parametrize(
    ("first", "last", "label"),
    [(0, 2, "time (s)"), (1, 1.02, "time (ms)"), (0, 3e-5, "time (µs)"), (0, 1e-9, "time (µs)")],
)
def test_time_is_in_a_unit_that_suits_it(axes, first, last, label):
    draw.time_ticks(axes, first, last)
    assert axes.get_xlabel() == label
    assert axes.get_xlim() == (first, last)


def test_logarithmic_ticks_are_round_numbers_within_the_limits(axes):
    draw.log_ticks(axes.yaxis, 3, 150, "{:g}".format)
    assert axes.get_yticks().tolist() == [5, 10, 20, 50, 100]
    assert not len(axes.yaxis.get_minorticklocs())


def test_what_is_within_its_limit_has_no_hatch(axes):
    draw.mark_excess(axes, 0, 2, 2)
    assert not axes.patches
    draw.mark_excess(axes, 0, 2, 3)
    assert bars(axes, "wrong excess") == [pytest.approx((2, -0.36, 1, 0.72))]


def test_words_are_written_only_where_they_fit(axes):
    axes.figure.lay_out()
    assert draw.fitting_text(axes, (0, 0, 1, 1), "fits", BLUE)
    assert not draw.fitting_text(axes, (0, 0, 0.01, 1), "does not fit", BLUE)
    assert [text.get_text() for text in axes.texts] == ["fits"]


def test_a_polygon_has_its_corners_and_a_white_edge(axes):
    corners = [(0, 0), (2, 1), (2, 3), (0, 2)]
    draw.polygon(axes, corners, "red", gid="side")
    (side,) = (patch for patch in axes.patches if patch.get_gid() == "side")
    assert [tuple(corner) for corner in side.get_xy()[:4]] == corners
    assert side.get_edgecolor() == (1, 1, 1, 1)
