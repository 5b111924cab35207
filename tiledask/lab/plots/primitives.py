"""What figures are made of: rows and boxes, bars, curves, limits, notes, legends, units of an axis.

All sizes beside the data's are in points. What takes ``**look`` hands it on to matplotlib, and has
the look of all figures without it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.lab.plots.style import GREY, INK, PALE, RED, ink_on
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
else:  # names for annotations: matplotlib is loaded by the first figure
    Axes = Figure = object

__all__ = [
    "BEHIND",
    "HEIGHT",
    "Axes",
    "Box",
    "Figure",
    "amount",
    "arrow",
    "bare",
    "box",
    "boxes",
    "byte_ticks",
    "cells",
    "curve",
    "fitting_text",
    "grid",
    "label_right",
    "lanes",
    "legend",
    "legend_under",
    "limit_line",
    "line_entry",
    "log_ticks",
    "mark_box",
    "mark_excess",
    "note",
    "number_entry",
    "patch_entry",
    "percent_ticks",
    "points_per_unit",
    "second_ticks",
    "stack",
    "stacked_axes",
    "text_in",
    "ticks_as",
    "time_ticks",
    "whole_ticks",
]

Box = tuple[float, float, float, float]
"""x, y, width, height in data."""
HEIGHT = 0.72
"""Of a box or a bar, in rows."""


# -- axes ----------------------------------------------------------------------------------------


def stacked_axes(figure: "Figure", heights: Sequence[float], **options: Any) -> list["Axes"]:
    """Axes one above the other, as high as ``heights`` say; ``options``: of Figure.subplots."""
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, **options)
    return list(grid[:, 0])


def lanes(axes: "Axes", labels: Sequence[str], step: int = 1) -> None:
    """A row for each label, the first at the top, every ``step``-th named, and no line at left."""
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def cells(axes: "Axes", columns: Sequence[Any], rows: Sequence[Any]) -> None:
    """A cell, 1 x 1, for each of ``columns`` and ``rows``, the first row at the top."""
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def bare(axes: "Axes") -> None:
    """No ticks, and no lines around."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def label_right(axes: "Axes", at: Sequence[float], words: Sequence[str], colour=GREY) -> None:
    """Small ``words`` at the right of the axes, at these heights."""
    right = axes.secondary_yaxis("right")
    right.set_yticks(at, words)
    right.tick_params(axis="y", length=0, labelsize=7.5, labelcolor=colour)
    right.spines[:].set_visible(False)


def grid(*every: "Axes") -> None:
    """Pale lines below what is drawn."""
    for axes in every:
        axes.grid(color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)


def ticks_as(axis: "Axis", words: Callable[[float], str]) -> None:
    """Ticks with these words."""
    axis.set_major_formatter(lambda value, _: words(value))


def amount(words: Callable[[float], str]) -> Callable[[float], str]:
    """``words``, and "0" without a unit."""
    return lambda value: words(value) if value else "0"


def byte_ticks(axis: "Axis") -> None:
    ticks_as(axis, amount(format_bytes))


def second_ticks(axis: "Axis") -> None:
    ticks_as(axis, amount(format_seconds))


def percent_ticks(axis: "Axis") -> None:
    ticks_as(axis, lambda share: f"{100 * share:.4g} %")


def time_ticks(axes: "Axes", first: float, last: float) -> None:
    """The axis below from ``first`` to ``last`` seconds, in the unit that suits them."""
    units = (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")
    size, unit = next((each for each in units if last - first >= each[0]), units[-1])
    axes.set(xlim=(first, last), xlabel=f"time ({unit})")
    ticks_as(axes.xaxis, lambda seconds: f"{seconds / size:.6g}")


def whole_ticks(axis: "Axis") -> None:
    """Ticks at whole numbers only."""
    axis.get_major_locator().set_params(integer=True)


def log_ticks(
    axis: "Axis",
    low: float,
    high: float,
    words: Callable[[float], str],
    digits: Sequence[float] = (1, 2, 5),
) -> None:
    """A logarithmic axis from ``low`` to ``high``, with ticks at ``digits`` times powers of ten."""
    from matplotlib.ticker import FixedLocator, NullLocator

    name = axis.axis_name
    axis.axes.set(**{f"{name}scale": "log"})
    axis.axes.set(**{f"{name}lim": (low, high)})
    ticks = [digit * 10.0**power for power in range(-7, 19) for digit in digits]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    ticks_as(axis, words)


# -- bars and boxes ------------------------------------------------------------------------------


def box(axes: "Axes", at: Box, colour: Any, **look: Any) -> "Rectangle":
    """A rectangle with a white edge; ``colour`` "none": the edge alone."""
    from matplotlib.patches import Rectangle

    look = {"edgecolor": "white", "linewidth": 0.8, "facecolor": colour} | look
    return axes.add_patch(Rectangle(at[:2], *at[2:], **look))


def boxes(axes: "Axes", every: Iterable[Box], **look: Any) -> None:
    """Many rectangles of one look, as one collection: quick to draw."""
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in every]
    look = {"edgecolor": "white", "linewidth": 0.5, "zorder": 2} | look
    axes.add_collection(PolyCollection(corners, **look), autolim=False)


def stack(
    axes: "Axes",
    row: float,
    parts: Iterable[tuple[str, float, Any]],
    height: float = HEIGHT,
    **look: Any,
) -> list[Box]:
    """A bar of (name, length, colour), one behind the other; their boxes."""
    left, made = 0, []
    look = {"edgecolor": "white", "linewidth": 0.6} | look
    for name, length, colour in parts:
        axes.barh(row, length, height, left, color=colour, gid=name, **look)
        made.append((left, row - height / 2, length, height))
        left += length
    return made


def arrow(
    axes: "Axes", start: tuple[float, float], end: tuple[float, float], colour: Any, **look: Any
) -> None:
    """An arrow from one point to another, bent if ``look`` does not say otherwise."""
    from matplotlib.patches import FancyArrowPatch

    bent = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.25", "mutation_scale": 10}
    look = {"linewidth": 1.6, "zorder": 3} | bent | look
    look |= {"shrinkA": 3, "shrinkB": 3, "color": colour}
    axes.add_patch(FancyArrowPatch(start, end, **look))


def mark_box(axes: "Axes", at: Box, words: str) -> None:
    """Draw a red frame around what is wrong in the box ``at``."""
    box(axes, at, "none", edgecolor=RED, linewidth=2, zorder=6, gid=f"wrong {words}")


def mark_excess(
    axes: "Axes", row: float, limit: float, reached: float, height: float = HEIGHT, **look: Any
) -> None:
    """Hatch in red what the bar of a row has above its limit; nothing if it keeps to it."""
    if reached > limit * (1 + 1e-9):
        look = {"hatch": "xxxx", "edgecolor": RED, "gid": "wrong excess", "zorder": 4} | look
        axes.barh(row, reached - limit, height, limit, color="none", **look)


# -- curves and limits ---------------------------------------------------------------------------


def curve(axes: "Axes", xs: Any, ys: Any, colour: Any, width: float = 1.6, **look: Any) -> None:
    """A line through the points, or marks without one if the width is 0."""
    look = {"color": colour, "linewidth": width, "linestyle": "-" if width else "none"} | look
    axes.plot(xs, ys, **look)


def limit_line(axes: "Axes", x: float | None = None, y: float | None = None, **look: Any) -> None:
    """A dashed line across the axes at ``x`` or at ``y``."""
    look = {"color": INK, "linestyle": "--", "linewidth": 1.4} | look
    axes.axhline(y, **look) if x is None else axes.axvline(x, **look)


# -- words ---------------------------------------------------------------------------------------

BEHIND: dict[str, Any] = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
"""Of words that shall be read over lines of the grid."""


def note(
    axes: "Axes",
    at: tuple[float, float],
    words: str,
    offset: tuple[float, float] = (6, 0),
    size: float = 8.5,
    **look: Any,
) -> None:
    """``words`` beside the point ``at``, to the side that ``offset`` (right, up) says."""
    across, up = np.sign(offset).astype(int).tolist()
    aligned = {
        "ha": {1: "left", 0: "center", -1: "right"}[across],
        "va": {1: "bottom", 0: "center", -1: "top"}[up],
    }
    axes.annotate(words, at, offset, textcoords="offset points", fontsize=size, **aligned | look)


def text_in(axes: "Axes", at: Box, words: str, colour: Any, size: float = 7.5, **look: Any) -> None:
    """``words`` in the middle of the box ``at``, in the ink that can be read on ``colour``."""
    x, y, width, height = at
    look = {"ha": "center", "va": "center", "color": ink_on(colour), "fontsize": size} | look
    axes.text(x + width / 2, y + height / 2, words, **look)


def fitting_text(
    axes: "Axes", at: Box, words: str, colour: Any, size: float = 7.5, **look: Any
) -> bool:
    """Write ``words`` as `text_in` if they fit into the box; whether they do.

    Call it after ``figure.lay_out()``, which fixes what the data's units measure.
    """
    across, down = points_per_unit(axes)
    # an average DejaVu Sans character is 0.64 em wide; the rest is a margin
    wide = size * (0.64 * max(map(len, words.splitlines())) + 0.3)
    tall = size * 1.25 * len(words.splitlines())
    fits = wide <= abs(at[2]) * across and tall <= abs(at[3]) * down
    if fits:
        middle = "center" if "\n" in words else "center_baseline"
        look = {"va": middle, "clip_on": True, "gid": "in-box"} | look
        text_in(axes, at, words, colour, size, **look)
    return fits


def points_per_unit(axes: "Axes") -> tuple[float, float]:
    """Points per unit of linear data, across and down."""
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    return abs(x1 - x0) * 72 / axes.figure.dpi, abs(y1 - y0) * 72 / axes.figure.dpi


# -- legends -------------------------------------------------------------------------------------


def patch_entry(label: str, colour: Any, **look: Any) -> "Patch":
    """A line of a legend: a patch of ``colour``, "none" for one that is hatched alone."""
    from matplotlib.patches import Patch

    return Patch(**{"facecolor": colour, "edgecolor": colour} | look, label=label)


def line_entry(label: str, colour: Any = INK, **look: Any) -> "Line2D":
    """A line of a legend: a line; a mark without one if ``look`` says so."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": colour} | look)


def number_entry(what: str) -> "Line2D":
    """The line of a legend that says what the number in a box is."""
    look = {"marker": "$3$", "markersize": 6, "linestyle": "none"}
    return line_entry(f"number in a box: {what}", **look)


def legend(
    figure: "Figure", entries: "Sequence[Any] | Axes", columns: int = 3, **look: Any
) -> "Legend":
    """A legend below everything: of these entries, or of what the axes have with a label."""
    if not isinstance(entries, Sequence):
        entries, _ = entries.get_legend_handles_labels()
    columns = max(1, min(columns, len(entries)))
    return figure.legend(handles=entries, loc="outside lower left", ncols=columns, **look)


def legend_under(axes: "Axes", columns: int = 1, low: float = -0.2, **look: Any) -> None:
    """A legend of what the axes have with a label, centred ``low`` of their height below them."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, low), ncols=columns, **look)
