"""What figures are made of: boxes in lanes and in a plane, notes, legends, units of axes.

    lanes  a row for each name          plane  to scale, no axes
    d 1 | [F][F]...[B]                  [A][ B ]
    d 2 |    [F][F][B]                  [ C    ]

A figure makes a list of `Box`, has them drawn by ``lanes`` or ``plane``, and ``write`` puts words
into those that have room. Sizes that are not the data's are in points. ``**look`` goes to
matplotlib as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tiledask.lab.plots.style import INK, RED, canvas, ink_on

# matplotlib's, which is loaded by the first figure
Axes: TypeAlias = Any
Figure: TypeAlias = Any

Place: TypeAlias = tuple[float, float, float, float]
"""x, y, width, height in data."""
HEIGHT = 0.72
"""Of a box or a bar, in rows."""
Look = dict[str, Any]
"""What goes to matplotlib as it is: colours, widths, hatches."""
UNITS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
DASHED: Look = {"color": INK, "linestyle": "--", "linewidth": 1.4}
"""Of a line at a limit: ``axes.axvline(capacity, **DASHED)``."""


def unit_of(kind: str, extent: float) -> tuple[float, str]:
    """The unit of an axis of so much, of a ``kind`` of UNITS or of none: its size, its name."""
    units = UNITS.get(kind, ((1.0, kind),))
    return next((each for each in units if extent >= each[0]), units[-1])


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
    words: str | tuple[str, ...] = "",
    gid: str = "",
    *,
    height: float = HEIGHT,
    look: Mapping[str, Any] | None = None,
) -> Box:
    """The box of a lane, from ``start`` to ``end``."""
    return Box((start, row - height / 2, end - start, height), colour, words, gid, look or {})


# -- axes ----------------------------------------------------------------------------------------


def lane_figure(
    title: str,
    panels: Sequence[tuple[str, Sequence[str], Sequence[Box]]],
    entries: Sequence[Any] = (),
    *,
    xlabel: str,
    across: tuple[float, float] | None = None,
    pitch: float = 0.34,
    step: int = 1,
) -> tuple[Figure, list[Axes]]:
    """A figure of lanes, and its panels: (title, names of rows, boxes), one above the other.

    ``across``: where all begin and end; none: each panel has limits of its own. An ``xlabel`` of
    "time" is in seconds, and shown in the unit that suits them. ``pitch``: inches of a row.
    """
    rows = [len(names) for _, names, _ in panels]
    titled = any(name for name, *_ in panels)
    inches = 0.7 + 0.18 * title.count("\n") + sum(0.15 + 0.3 * titled + pitch * n for n in rows)
    figure = canvas(inches, title)
    shared: Look = {"squeeze": False, "height_ratios": rows, "sharex": across is not None}
    every = list(figure.subplots(len(rows), 1, **shared)[:, 0])
    for axes, (name, names, drawn) in zip(every, panels, strict=True):
        lanes(axes, names, drawn, step)
        axes.set_title(name)
    axes.set_xlabel(xlabel)
    if across:
        axes.set_xlim(across)
    if across and xlabel == "time":
        size, unit = unit_of("s", across[1] - across[0])
        axes.set_xlabel(f"time ({unit})")
        ticks_as(axes.xaxis, lambda seconds: f"{seconds / size:.6g}")
    legend(figure, entries)
    return figure, every


def lanes(axes: Axes, labels: Sequence[str], boxes: Iterable[Box] = (), step: int = 1) -> None:
    """A row for each label, the first at the top, every ``step``-th named, with boxes in them."""
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _draw(axes, boxes)


def plane(axes: Axes, extent: Place, boxes: Iterable[Box] = (), **look: Any) -> None:
    """``extent`` to scale, the top at its first y, without ticks or frame, and the boxes in it."""
    left, top, width, height = extent
    axes.set(xlim=(left, left + width), ylim=(top + height, top), xticks=[], yticks=[])
    axes.set_aspect(**{"aspect": "equal", "anchor": "NW"} | look)
    axes.spines[:].set_visible(False)
    _draw(axes, boxes)


def _draw(axes: Axes, boxes: Iterable[Box]) -> None:
    """Boxes of one colour, gid and look are one collection, which is quick."""
    from matplotlib.collections import PolyCollection

    alike: dict[Any, list[Box]] = {}
    for each in boxes:
        alike.setdefault((each.colour, each.gid, *each.look.items()), []).append(each)
    for (colour, gid, *own), same in alike.items():
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for (x, y, w, h), *_ in same]
        look = {"edgecolor": "white", "linewidth": 0.8, "zorder": 2, "facecolor": colour}
        axes.add_collection(PolyCollection(corners, gid=gid, **look | dict(own)), autolim=False)


def ticks_as(axis: Any, words: Callable[[float], str]) -> None:
    """Ticks with these words, such as those of ``format_bytes``, and 0 without a unit."""
    axis.set_major_formatter(lambda value, _: words(value) if value else "0")


def mark_box(axes: Axes, at: Place, words: str) -> None:
    """Draw a red frame around what is wrong in the box ``at``."""
    from matplotlib.patches import Rectangle

    look: Look = {"facecolor": "none", "edgecolor": RED, "linewidth": 2, "zorder": 6}
    axes.add_patch(Rectangle(at[:2], *at[2:], gid=f"wrong {words}", **look))


def mark_excess(axes: Axes, row: float, limit: float, reached: float, **look: Any) -> None:
    """Hatch in red what the bar of a row has above its limit; nothing if it keeps to it."""
    if reached > limit * (1 + 1e-9):
        look = {"hatch": "xxxx", "edgecolor": RED, "gid": "wrong excess", "zorder": 4} | look
        axes.barh(row, reached - limit, HEIGHT, limit, color="none", **look)


# -- words ---------------------------------------------------------------------------------------


def note(
    axes: Axes,
    at: tuple[float, float],
    words: str,
    offset: tuple[float, float] = (6, 0),
    size: float = 9.0,
    **look: Any,
) -> None:
    """``words`` beside the point ``at``, to the side that ``offset`` (right, up) says."""
    across, up = np.sign(offset).astype(int).tolist()
    aligned = {
        "ha": ("center", "left", "right")[across],
        "va": ("center", "bottom", "top")[up],
    }
    axes.annotate(words, at, offset, textcoords="offset points", fontsize=size, **aligned | look)


def text_in(axes: Axes, at: Place, words: str, colour: Any, size: float = 8.0, **look: Any) -> None:
    """``words`` in the middle of the box ``at``, in the ink that can be read on ``colour``; no
    hatch or line runs through them."""
    x, y, width, height = at
    look = {"ha": "center", "va": "center", "color": ink_on(colour), "fontsize": size} | look
    look |= {"zorder": 6, "bbox": {"facecolor": colour, "linewidth": 0, "pad": 0}}
    axes.text(x + width / 2, y + height / 2, words, **look)


def write(figure: Figure, drawn: Iterable[tuple[Axes, Iterable[Box]]], size: float = 8.0) -> Figure:
    """The figure, laid out; in each box of its axes the first of its words that fit, if any do."""
    figure.lay_out()  # it fixes what the data's units measure
    for axes, boxes in drawn:
        write_in(axes, boxes, size)
    return figure


def write_in(axes: Axes, boxes: Iterable[Box], size: float) -> None:
    """In each box the first of its words that fit, if any do; of axes that have their place."""
    across, down = points_per_unit(axes)
    for at, colour, words, *_ in boxes:
        for each in filter(None, (words,) if isinstance(words, str) else words):
            if size_of_words(each, abs(at[2]) * across, abs(at[3]) * down) >= size * (1 - 1e-9):
                va = "center" if "\n" in each else "center_baseline"
                text_in(axes, at, each, colour, size, va=va, clip_on=True, gid="in-box")
                break


def size_of_words(words: str, width: float, height: float) -> float:
    """The largest size, in points, in which they fit into so many points."""
    lines = words.split("\n")
    # an average DejaVu Sans character is 0.64 em wide; the rest is a margin
    tall = 1.25 * len(lines) if lines[1:] else 1.0
    return min(width / (0.64 * max(map(len, lines)) + 0.3), height / tall)


def points_per_unit(axes: Axes) -> tuple[float, float]:
    """Points per unit of linear data, across and down."""
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    return abs(x1 - x0) * 72 / axes.figure.dpi, abs(y1 - y0) * 72 / axes.figure.dpi


# -- legends -------------------------------------------------------------------------------------


def patch_entry(label: str, colour: Any, **look: Any) -> Any:
    """A line of a legend: a patch of ``colour``, "none" for one that is hatched alone."""
    from matplotlib.patches import Patch

    return Patch(**{"facecolor": colour, "edgecolor": colour} | look, label=label)


def line_entry(label: str, colour: Any = INK, **look: Any) -> Any:
    """A line of a legend: a line; a mark without one if ``look`` says so."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": colour} | look)


def legend(figure: Figure, entries: Sequence[Any]) -> None:
    """A legend below everything, for which the figure becomes higher."""
    if not entries:
        return
    # inches: of a character of 9 points, and of a mark and the space around it
    wide = 0.075 * max(len(entry.get_label()) for entry in entries) + 0.55
    columns = min(max(1, int((figure.get_figwidth() - 0.1) / wide)), len(entries))
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.2 * -(-len(entries) // columns))
    figure.legend(handles=entries, loc="outside lower left", ncols=columns)
