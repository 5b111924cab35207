"""Schedules against each other: utilisation against N, bubble against latency, memory against
bubble. The numbers come from tiledask.lab.sweep, or from a measurement."""

from collections.abc import Callable, Mapping
from itertools import cycle, pairwise

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.labels import dense, place_words
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, INK, LINES, canvas, styled
from tiledask.plan.arrays import unbeaten

__all__ = ["bubble_against_latency", "memory_against_bubble", "utilisation_against"]

Curves = Mapping[str, Mapping[float, float]]
"""Name -> x -> y."""


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
        words, ys = f"formula: {formula_name}", [formula(n) for n in fine]
        draw.curve(axes, fine, ys, INK, 0.8, gid="formula", label=words, zorder=4)
    cross = {"marker": "x", "markersize": 7, "markeredgewidth": 1.6, "zorder": 5, "clip_on": False}
    for name, points in (measured or {}).items():
        words = {"gid": f"measured {name}", "label": f"{name}, measured"}
        draw.curve(axes, list(points), list(points.values()), INK, 0, **words, **cross)
    if every[-1] >= 8 * every[0] > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(every, [f"{n:g}" for n in every])
    axes.minorticks_off()
    axes.set_xlabel(x)
    _percent(axes, "utilisation: busy / (devices x makespan)", 1.05)
    draw.legend(figure, axes, 5)
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
    lines = [(dense(line.get_xydata()), 4.0) for line in axes.lines]
    ring = {"marker": "o", "markersize": 9, "fillstyle": "none", "zorder": 6, "clip_on": False}
    for x, y in taken:
        draw.curve(axes, x, y, INK, 0, gid="crossing", **ring)
    longest = max(c for curve in curves.values() for c in curve)
    axes.set(xlim=(0, longest), xlabel="latency: time from one device to the next (s)")
    _percent(axes, "idle / (devices x makespan)", min(1.0, 1.08 * highest))
    draw.legend(figure, axes, 5)
    figure.lay_out()
    marks = []
    for (x, y), names in sorted(taken.items()):
        since = f"from about {x:.2g} s" if x else "at any latency"
        marks.append((x, y, f"{reference} is ahead of\n{', '.join(names)} {since}"))
    place_words(axes, marks, lines)
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
    best = [list(spots)[n] for n in unbeaten(np.array(list(spots)))]
    xs, ys = zip(*best, strict=True)
    words = "along the line: no schedule is better in both"
    stairs = {"drawstyle": "steps-post", "zorder": 2, "gid": "unbeaten", "label": words}
    draw.curve(axes, xs, ys, GREY, 1.0, **stairs)
    for spot, colour in zip(spots, cycle(LINES), strict=False):
        look = {"marker": "o", "markersize": 7, "zorder": 3, "gid": ", ".join(spots[spot])}
        draw.curve(axes, *spot, colour, 0, **look)
    _logarithmic(axes.xaxis, [bubble for bubble, _ in spots], lambda x: f"{100 * x:.0f} %")
    _logarithmic(axes.yaxis, [memory for _, memory in spots], "{:g}".format)
    draw.grid(axes)
    axes.set(xlabel="idle / (devices x makespan)", ylabel=unit)
    draw.legend(figure, axes)
    figure.lay_out()
    marks = [(*spot, ", ".join(names)) for spot, names in sorted(spots.items())]
    corners = [(b, m) for (_, m), (b, _) in pairwise(best)]  # of the line's steps
    stairs = np.array(sorted([*best, *corners], key=lambda spot: (spot[0], -spot[1])))
    place_words(axes, marks, [(np.array(list(spots)), 200.0), (dense(stairs), 2.0)])
    return figure


def _logarithmic(axis, values: list[float], words: Callable[[float], str]) -> None:
    """Room for all of ``values``; each doubling has the same length, unless there is a 0."""
    low, high = min(values), max(values) or 1
    if low > 0:
        draw.log_ticks(axis, low / 1.7, high * 1.7, words)
        return
    axis.axes.set(**{f"{axis.axis_name}lim": (-0.06 * high, 1.2 * high)})
    draw.ticks_as(axis, words)


def _check(what: str, curves: Curves) -> None:
    if not curves or not all(curves.values()):
        raise ConfigError(
            f"{what} draws 1 curve or more of 1 point or more, got "
            f"{ {name: len(curve) for name, curve in curves.items()} }; pass {{'gpipe': {{x: y}}}}"
        )


def _lines(axes: "Axes", curves: Curves, marker: str = "o") -> None:
    widths = draw.falling_widths(5.5, len(curves))
    for (name, points), colour, width in zip(curves.items(), cycle(LINES), widths, strict=False):
        xs, look = sorted(points), {"marker": marker, "markersize": 3 + width, "zorder": 3}
        ys = [points[x] for x in xs]
        draw.curve(axes, xs, ys, colour, width, label=name, gid=name, solid_capstyle="butt", **look)


def _percent(axes: "Axes", label: str, top: float) -> None:
    axes.set(ylim=(0, top), ylabel=label)
    draw.percent_ticks(axes.yaxis)
    draw.grid(axes)
