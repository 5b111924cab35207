"""Schedules against each other: utilisation against N, bubble against latency, memory against
bubble. The numbers come from tiledask.lab.sweep, or from a measurement."""

from collections.abc import Callable, Mapping
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import GREY, INK, PALE, PALETTE, YELLOW, canvas, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bubble_against_latency", "memory_against_bubble", "utilisation_against"]

Curves = Mapping[str, Mapping[float, float]]
"""Name -> x -> y."""

_COLOURS = tuple(colour for colour in PALETTE if colour != YELLOW)  # too pale for a line


@styled
def utilisation_against(
    curves: Curves,
    *,
    x: str = "micro-batches m",
    formula: Callable[[float], float] | None = None,
    formula_name: str = "m / (m + p - 1)",
    measured: Curves | None = None,
    title: str = "Utilisation",
) -> "Figure":
    """A figure of simulated utilisation, a line per schedule: ``{name: {N: share of 1}}``.

    ``formula``: N -> share, drawn as a thin line. ``measured``: as ``curves``, drawn as crosses.
    """
    _check("utilisation_against", curves)
    figure = canvas(4.2, title)
    axes = figure.subplots()
    _lines(axes, curves)
    every = sorted({n for curve in curves.values() for n in curve})
    if formula is not None:
        fine = np.geomspace(every[0], every[-1], 200) if every[0] > 0 else every
        axes.plot(
            fine,
            [formula(n) for n in fine],
            color=INK,
            linewidth=0.8,
            gid="formula",
            label=f"formula: {formula_name}",
            zorder=4,
        )
    for name, points in (measured or {}).items():
        axes.plot(
            list(points),
            list(points.values()),
            "x",
            color=INK,
            markersize=7,
            markeredgewidth=1.6,
            gid=f"measured {name}",
            zorder=5,
            clip_on=False,
            label=f"{name}, measured",
        )
    if every[-1] >= 8 * every[0] > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(every, [f"{n:g}" for n in every])
    axes.minorticks_off()
    axes.set_xlabel(x)
    _percent(axes, "utilisation: busy / (devices x makespan)", 1.05)
    _legend(figure, axes)
    return figure


@styled
def bubble_against_latency(
    curves: Curves, *, reference: str | None = "gpipe", title: str = "Idle share against latency"
) -> "Figure":
    """A figure of the idle share against the seconds between two devices, a line per schedule:
    ``{name: {seconds: share of 1}}``; a ring where ``reference`` gets ahead of another (None: no
    rings)."""
    _check("bubble_against_latency", curves)
    figure = canvas(4.2, title)
    axes = figure.subplots()
    _lines(axes, curves, marker="")
    highest = max(y for curve in curves.values() for y in curve.values())
    taken: dict[tuple[float, float], list[str]] = {}
    for name, curve in curves.items():
        if name != reference and reference in curves:
            where = crossing(curves[reference], curve)
            if where is not None:
                taken.setdefault((round(where[0], 6), round(where[1], 6)), []).append(name)
    lines = [(_dense(line.get_xydata()), 4.0) for line in axes.lines]
    for x, y in taken:
        axes.plot(
            x,
            y,
            "o",
            markersize=9,
            color=INK,
            fillstyle="none",
            gid="crossing",
            zorder=6,
            clip_on=False,
        )
    longest = max(c for curve in curves.values() for c in curve)
    axes.set_xlim(0, longest)
    axes.set_xlabel("latency: time from one device to the next (s)")
    _percent(axes, "idle / (devices x makespan)", min(1.0, 1.08 * highest))
    _legend(figure, axes)
    figure.lay_out()
    marks = []
    for (x, y), names in sorted(taken.items()):
        since = f"from about {x:.2g} s" if x else "at any latency"
        marks.append((x, y, f"{reference} is ahead of\n{', '.join(names)} {since}"))
    _place(axes, marks, lines)
    return figure


def crossing(
    first: Mapping[float, float], second: Mapping[float, float]
) -> tuple[float, float] | None:
    """(x, y) from where on ``first`` stays below ``second``, straight lines between the points;
    None if it never does, or if it is below from the beginning.

    >>> crossing({0: 2, 1: 3}, {0: 1, 1: 4})
    (0.5, 2.5)
    >>> crossing({0: 2, 1: 3}, {0: 2, 1: 4}), crossing({0: 2, 1: 3}, {0: 3, 1: 4})
    ((0, 2), None)
    """
    xs = sorted(first.keys() & second.keys())
    gaps = [second[x] - first[x] for x in xs]
    for (a, before), (b, after) in reversed(list(pairwise(zip(xs, gaps, strict=True)))):
        if after <= 1e-12:
            return None
        if before <= 1e-12:
            share = max(0.0, -before) / (after + max(0.0, -before))
            x = a + share * (b - a) if share else a
            return x, first[a] + share * (first[b] - first[a]) if share else first[a]
    return None


@styled
def memory_against_bubble(
    points: Mapping[str, tuple[float, float]],
    *,
    unit: str = "micro-batches kept on the fullest device",
    title: str = "What less idle time costs in memory",
) -> "Figure":
    """A figure with a point per schedule: ``{name: (idle share of 1, memory)}``. The line goes
    through those that no other beats in both."""
    if not points:
        raise ConfigError("memory_against_bubble draws 1 schedule or more, got 0")
    figure = canvas(4.6, title)
    axes = figure.subplots()
    spots: dict[tuple[float, float], list[str]] = {}
    for name, (bubble, memory) in points.items():
        spots.setdefault((round(bubble, 9), round(memory, 9)), []).append(name)
    best = _unbeaten(list(spots))
    xs, ys = zip(*best, strict=True)
    axes.plot(
        xs,
        ys,
        drawstyle="steps-post",
        color=GREY,
        linewidth=1.0,
        zorder=2,
        gid="unbeaten",
        label="along the line: no schedule is better in both",
    )
    for spot, colour in zip(spots, cycle(_COLOURS), strict=False):
        axes.plot(*spot, "o", color=colour, markersize=7, zorder=3, gid=", ".join(spots[spot]))
    _logarithmic(axes.xaxis, [bubble for bubble, _ in spots], "{:.0%}")
    _logarithmic(axes.yaxis, [memory for _, memory in spots], "{:g}")
    axes.grid(color=PALE, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel("idle / (devices x makespan)")
    axes.set_ylabel(unit)
    _legend(figure, axes)
    figure.lay_out()
    marks = [(*spot, ", ".join(names)) for spot, names in sorted(spots.items())]
    corners = [(b, m) for (_, m), (b, _) in pairwise(best)]  # of the line's steps
    stairs = np.array(sorted([*best, *corners], key=lambda spot: (spot[0], -spot[1])))
    _place(axes, marks, [(np.array(list(spots)), 200.0), (_dense(stairs), 2.0)])
    return figure


def _logarithmic(axis, values: list[float], words: str) -> None:
    """Room for all of ``values``; each doubling has the same length, unless there is a 0."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = min(values), max(values) or 1
    if low <= 0:
        axis.axes.set(**{f"{axis.axis_name}lim": (-0.06 * high, 1.2 * high)})
        axis.set_major_formatter(lambda value, _: words.format(value))
        return
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(lambda value, _: words.format(value))
    axis.axes.set(**{f"{axis.axis_name}lim": (low / 1.7, high * 1.7)})
    ticks = [d * 10.0**e for e in range(-6, 12) for d in (1, 2, 5)]
    axis.set_major_locator(FixedLocator([t for t in ticks if low / 1.7 <= t <= high * 1.7]))
    axis.set_minor_locator(NullLocator())


def _unbeaten(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points with no other at most as large in both, from left to right."""
    kept: list[tuple[float, float]] = []
    for spot in sorted(spots):
        if not kept or spot[1] < kept[-1][1]:
            kept.append(spot)
    return kept


def _check(what: str, curves: Curves) -> None:
    if not curves or not all(curves.values()):
        raise ConfigError(
            f"{what} draws 1 curve or more of 1 point or more, got "
            f"{ {name: len(curve) for name, curve in curves.items()} }; pass {{'gpipe': {{x: y}}}}"
        )


def _lines(axes: "Axes", curves: Curves, marker: str = "o") -> None:
    """The earlier, the thicker: where lines lie upon each other all of them are seen."""
    widths = np.geomspace(5.5, 1.2, len(curves)) if len(curves) > 1 else [2.0]
    for (name, curve), colour, width in zip(curves.items(), cycle(_COLOURS), widths, strict=False):
        xs = sorted(curve)
        axes.plot(
            xs,
            [curve[x] for x in xs],
            marker=marker,
            color=colour,
            label=name,
            gid=name,
            linewidth=width,
            markersize=3 + width,
            zorder=3,
            solid_capstyle="butt",
        )


def _percent(axes: "Axes", label: str, top: float) -> None:
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    axes.grid(color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel(label)


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside lower left", ncols=min(5, len(handles)))


def _place(axes: "Axes", marks: list[tuple[float, float, str]], avoid: list[tuple]) -> None:
    """Write each word near its point, inside the axes and on no other word; a thin line leads to
    one that is far. ``avoid``: (points [n, 2] in data, what it costs to cover one of them)."""
    marked = axes.transData.transform([(x, y) for x, y, _ in marks])
    dots = np.concatenate([axes.transData.transform(points) for points, _ in avoid])
    costs = np.concatenate([np.full(len(points), cost) for points, cost in avoid])
    inside, pixels = axes.get_window_extent(), axes.figure.dpi / 72
    taken: list[np.ndarray] = []
    for x, y, words in marks:
        middle = axes.transData.transform((x, y))
        sample = axes.text(x, y, words, fontsize=8)
        extent = sample.get_window_extent()
        sample.remove()

        def cost_of(offset, size=(extent.width, extent.height), middle=middle) -> float:
            x0, y0, x1, y1 = box = _box(middle, offset, size, pixels)
            if x0 < inside.x0 or y0 < inside.y0 or x1 > inside.x1 or y1 > inside.y1:
                return np.inf
            if any((box[:2] < o[2:]).all() and (o[:2] < box[2:]).all() for o in taken):
                return np.inf
            covered = ((box[:2] <= dots) & (dots <= box[2:])).all(axis=1)
            nearer = np.sum(_apart(box, marked) < _apart(box, middle) + 3 * pixels) - 1
            return float(np.hypot(*offset) + costs[covered].sum() + 60 * nearer)

        offset = min(_OFFSETS, key=cost_of)
        if np.hypot(*offset) > 12:
            leader = {
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
            }
            axes.annotate("", (x, y), offset, textcoords="offset points", arrowprops=leader)
        axes.annotate(
            words,
            (x, y),
            offset,
            textcoords="offset points",
            fontsize=8,
            ha={0.0: "left", 1.0: "right", 0.5: "center"}[_aligned(offset[0])],
            va={0.0: "bottom", 1.0: "top", 0.5: "center"}[_aligned(offset[1])],
        )
        taken.append(_box(middle, offset, (extent.width, extent.height), pixels))


_OFFSETS = [
    (far * np.cos(angle), far * np.sin(angle))
    for far in (9, 16, 25, 35, 48, 65, 85)
    for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False)
]
"""Points from a mark to the nearest edge of its word."""


def _aligned(offset: float) -> float:
    """The share of a word that lies before its anchor: it always goes away from the mark."""
    return 0.0 if offset > 2 else 1.0 if offset < -2 else 0.5


def _box(middle, offset, size, pixels: float) -> np.ndarray:
    """(x0, y0, x1, y1) in pixels of a word of that size, with a margin."""
    low = [m + pixels * o - _aligned(o) * s for m, o, s in zip(middle, offset, size, strict=True)]
    return np.array([low[0] - 3, low[1] - 2, low[0] + size[0] + 3, low[1] + size[1] + 2])


def _apart(box: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Pixels from the box to each of the points [..., 2]."""
    return np.hypot(*np.maximum(0, np.maximum(box[:2] - points, points - box[2:])).T)


def _dense(line: np.ndarray) -> np.ndarray:
    """Points along ``line`` [n, 2] close enough that no word slips between two."""
    share = np.linspace(0, 1, 24)[:, None]
    return np.concatenate([line, *(a + share * (b - a) for a, b in pairwise(line))])
