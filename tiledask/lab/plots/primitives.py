"""What figures are made of: boxes in lanes and in a plane, notes, legends, units of axes.

    lanes  a row for each name          plane  to scale, no axes
    d 1 | [F][F]...[B]                  [A][ B ]
    d 2 |    [F][F][B]                  [ C    ]

A figure makes a list of `Box`, has them drawn by ``lanes`` or ``plane``, and after
``figure.lay_out()``, which fixes how wide a box is, ``write`` puts words into those that have room.
Sizes that are not the data's are in points. ``**look`` goes to matplotlib as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiledask.lab.plots.style import INK, RED, ink_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
else:  # names for annotations: matplotlib is loaded by the first figure
    Axes = Figure = object

__all__ = [
    "BEHIND",
    "DASHED",
    "HEIGHT",
    "Axes",
    "Box",
    "Figure",
    "Look",
    "Place",
    "amount",
    "box",
    "boxes",
    "cells",
    "fitting_text",
    "lanes",
    "legend",
    "line_entry",
    "log_ticks",
    "mark_box",
    "mark_excess",
    "note",
    "patch_entry",
    "places",
    "plane",
    "points_per_unit",
    "span",
    "stack",
    "stacked_axes",
    "text_in",
    "ticks_as",
    "time_ticks",
    "write",
]

Look = dict[str, Any]
"""What goes to matplotlib as it is: colours, widths, hatches."""
Place = tuple[float, float, float, float]
"""x, y, width, height in data."""
HEIGHT = 0.72
"""Of a box or a bar, in rows."""
BEHIND: Look = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
"""Of words that shall be read over lines of the grid."""
DASHED: Look = {"color": INK, "linestyle": "--", "linewidth": 1.4}
"""Of a line at a limit: ``axes.axvline(capacity, **DASHED)``."""


class Box(NamedTuple):
    """A rectangle of a figure, and what may be written in it."""

    at: Place
    colour: Any
    words: str | tuple[str, ...] = ""
    """The first of them that fits is written."""
    gid: str = ""
    """What it is: the name of its artist."""
    look: Mapping[str, Any] = {}
    """Of its edge and hatch, beyond those that all boxes have."""


def span(
    row: float,
    start: float,
    end: float,
    colour: Any,
    words: str = "",
    gid: str = "",
    *,
    height: float = HEIGHT,
    look: Mapping[str, Any] | None = None,
) -> Box:
    """The box of a lane, from ``start`` to ``end``."""
    return Box((start, row - height / 2, end - start, height), colour, words, gid, look or {})


# -- axes ----------------------------------------------------------------------------------------


def stacked_axes(figure: "Figure", heights: Sequence[float], **options: Any) -> list["Axes"]:
    """Axes one above the other, as high as ``heights`` say; ``options``: of Figure.subplots."""
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, **options)
    return list(grid[:, 0])


def lanes(axes: "Axes", labels: Sequence[str], every: Iterable[Box] = (), step: int = 1) -> None:
    """A row for each label, the first at the top, every ``step``-th named, with ``every`` box."""
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    boxes(axes, every)


def plane(axes: "Axes", extent: Place, every: Iterable[Box] = (), **look: Any) -> None:
    """``extent`` to scale, the top at its first y, without ticks or frame, with ``every`` box."""
    left, top, width, height = extent
    axes.set(xlim=(left, left + width), ylim=(top + height, top), xticks=[], yticks=[])
    axes.set_aspect(**{"aspect": "equal", "anchor": "NW"} | look)
    axes.spines[:].set_visible(False)
    boxes(axes, every)


def cells(axes: "Axes", columns: Sequence[Any], rows: Sequence[Any]) -> None:
    """A cell, 1 x 1, for each of ``columns`` and ``rows``, the first row at the top."""
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def amount(words: Callable[[float], str]) -> Callable[[float], str]:
    """``words``, and "0" without a unit."""
    return lambda value: words(value) if value else "0"


def ticks_as(axis: "Axis", words: Callable[[float], str]) -> None:
    """Ticks with these words, such as those of ``format_bytes``, and 0 without a unit."""
    axis.set_major_formatter(lambda value, _: amount(words)(value))


def time_ticks(axes: "Axes", first: float, last: float) -> None:
    """The axis below from ``first`` to ``last`` seconds, in the unit that suits them."""
    units = (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")
    size, unit = next((each for each in units if last - first >= each[0]), units[-1])
    axes.set(xlim=(first, last), xlabel=f"time ({unit})")
    ticks_as(axes.xaxis, lambda seconds: f"{seconds / size:.6g}")


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


# -- boxes ---------------------------------------------------------------------------------------


def boxes(axes: "Axes", every: Iterable[Box]) -> None:
    """Draw boxes; those of one colour, gid and look as one collection, which is quick."""
    from matplotlib.collections import PolyCollection

    alike: dict[Any, list[Box]] = {}
    for each in every:
        alike.setdefault((each.colour, each.gid, *each.look.items()), []).append(each)
    for same in alike.values():
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for (x, y, w, h), *_ in same]
        first = same[0]
        look = {"edgecolor": "white", "linewidth": 0.8, "zorder": 2, "facecolor": first.colour}
        drawn = PolyCollection(corners, gid=first.gid, **look | dict(first.look))
        axes.add_collection(drawn, autolim=False)


def places(axes: "Axes", gid: str) -> list[Place]:
    """Where the boxes and bars with this gid are."""
    drawn = [each for each in axes.collections if each.get_gid() == gid]
    corners = [path.vertices for each in drawn for path in each.get_paths()]
    found = [(*c.min(axis=0).tolist(), *np.ptp(c, axis=0).tolist()) for c in corners]
    return found + [b.get_bbox().bounds for b in axes.patches if b.get_gid() == gid]


def box(axes: "Axes", at: Place, colour: Any, **look: Any) -> "Rectangle":
    """A single rectangle with a white edge; ``colour`` "none": the edge alone."""
    from matplotlib.patches import Rectangle

    look = {"edgecolor": "white", "linewidth": 0.8, "facecolor": colour} | look
    return axes.add_patch(Rectangle(at[:2], *at[2:], **look))


def stack(
    axes: "Axes",
    row: float,
    parts: Iterable[tuple[str, float, Any]],
    height: float = HEIGHT,
    **look: Any,
) -> list[Place]:
    """A bar of (name, length, colour), one behind the other; where they are."""
    left, made = 0.0, list[Place]()
    look = {"edgecolor": "white", "linewidth": 0.6} | look
    for name, length, colour in parts:
        axes.barh(row, length, height, left, color=colour, gid=name, **look)
        made.append((left, row - height / 2, length, height))
        left += length
    return made


def mark_box(axes: "Axes", at: Place, words: str) -> None:
    """Draw a red frame around what is wrong in the box ``at``."""
    box(axes, at, "none", edgecolor=RED, linewidth=2, zorder=6, gid=f"wrong {words}")


def mark_excess(
    axes: "Axes", row: float, limit: float, reached: float, height: float = HEIGHT, **look: Any
) -> None:
    """Hatch in red what the bar of a row has above its limit; nothing if it keeps to it."""
    if reached > limit * (1 + 1e-9):
        look = {"hatch": "xxxx", "edgecolor": RED, "gid": "wrong excess", "zorder": 4} | look
        axes.barh(row, reached - limit, height, limit, color="none", **look)


# -- words ---------------------------------------------------------------------------------------


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


def text_in(
    axes: "Axes", at: Place, words: str, colour: Any, size: float = 7.5, **look: Any
) -> None:
    """``words`` in the middle of the box ``at``, in the ink that can be read on ``colour``."""
    x, y, width, height = at
    look = {"ha": "center", "va": "center", "color": ink_on(colour), "fontsize": size} | look
    axes.text(x + width / 2, y + height / 2, words, **look)


def fitting_text(
    axes: "Axes", at: Place, words: str, colour: Any, size: float = 7.5, **look: Any
) -> bool:
    """Write ``words`` as `text_in` if they fit into the box; whether they do.

    Call it after ``figure.lay_out()``, which fixes what the data's units measure.
    """
    across, down = points_per_unit(axes)
    # an average DejaVu Sans character is 0.64 em wide; the rest is a margin
    wide = size * (0.64 * max(map(len, words.splitlines()), default=0) + 0.3)
    tall = size * 1.25 * len(words.splitlines())
    fits = bool(words) and wide <= abs(at[2]) * across and tall <= abs(at[3]) * down
    if fits:
        middle = "center" if "\n" in words else "center_baseline"
        look = {"va": middle, "clip_on": True, "gid": "in-box"} | look
        text_in(axes, at, words, colour, size, **look)
    return fits


def write(axes: "Axes", every: Iterable[Box], size: float = 7.5, **look: Any) -> None:
    """Into each box the first of its words that fit, none if none do."""
    for at, colour, words, *_ in every:
        for each in (words,) if isinstance(words, str) else words:
            if fitting_text(axes, at, each, colour, size, **look):
                break


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


def legend(figure: "Figure", entries: "Sequence[Any] | Axes", columns: int = 3, **look: Any) -> Any:
    """A legend below everything: of these entries, or of what the axes have with a label."""
    if not isinstance(entries, Sequence):
        entries, _ = entries.get_legend_handles_labels()
    columns = max(1, min(columns, len(entries)))
    where = {"loc": "outside lower left", "ncols": columns}
    return figure.legend(handles=entries, **where | look) if entries else None
