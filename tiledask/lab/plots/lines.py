"""Curves of what was computed or measured at several sizes or steps."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import PALETTE, RED, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["curves"]

_FINE = 40
"""Points from which on a line is drawn without dots, and has no ticks of its own."""


@styled
def curves(
    series: Mapping[str, Mapping[float, float]],
    *,
    xlabel: str,
    ylabel: str,
    marks: Mapping[str, Mapping[float, float]] | None = None,
    log: str = "xy",
    title: str = "",
) -> Figure:
    """A figure with a line for each of ``series``: name -> {x: y}, and red crosses at ``marks``.

    On the axes that are logarithmic, ``log`` ("", "x", "y" or "xy"), numbers are above 0. There
    all values of x are ticks, and labels beginning with "bytes" or "seconds" have suitable units. A
    line of 40 points or more is one of a formula: it has no dots and no ticks. Where ``marks`` have
    several names, each stands left of its points, and they have no ticks.

    >>> len(curves({"one core": {64: 1e-5, 128: 8e-5}}, xlabel="n", ylabel="seconds").axes)
    1
    """
    marks = marks or {}
    every = [*series.values(), *marks.values()]
    xs = sorted({x for line in every for x in line})
    ys = [y for line in every for y in line.values()]
    if not ys or ("x" in log and min(xs) <= 0) or ("y" in log and min(ys) <= 0):
        raise ConfigError(
            f"curves draws 1 line or more, on logarithmic axes of numbers above 0, got "
            f"{dict(series)}; pass {{'one core': {{64: 1e-5, 128: 8e-5}}}}"
        )
    figure = canvas(3.2, title)
    axes = figure.subplots()
    for colour, (name, line) in zip(cycle(PALETTE), series.items(), strict=False):
        look: draw.Look = {} if len(line) >= _FINE else {"marker": "o", "markersize": 4}
        look |= {"linewidth": 2.0, "color": colour, "label": name, "gid": name}
        axes.plot([*line], [*line.values()], **look)
    beside = len(marks) > 1
    for name, line in marks.items():
        look = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8, "linestyle": "none"}
        look |= {"gid": name, "zorder": 5, "color": RED, "label": None if beside else name}
        axes.plot([*line], [*line.values()], **look)
        for at in line.items() if beside else ():
            draw.note(axes, at, name, (-4, 4), color=RED)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if "y" in log:
        axes.set(yscale="log", ylim=(min(ys) / 2, 2 * max(ys)))
        decades = max(ys) > 100 * min(ys)
        _log_ticks(axes.yaxis, (1,) if decades else (1, 2, 5), _words(ylabel, "{:g}".format))
    if "x" in log:
        axes.set(xscale="log")
        named = [*series.values(), *(() if beside else marks.values())]
        ticks = sorted({x for line in named if len(line) < _FINE for x in line})
        words = _words(xlabel, "{:,}".format if ticks else "{:,g}".format)
        _log_ticks(axes.xaxis, (1,), words)
        if ticks:
            axes.set_xticks(ticks, [words(x) for x in ticks])
    axes.grid()
    if beside and "x" not in log:
        axes.margins(x=0.18)  # for the words at the left
    if names := len(series) + (0 if beside else len(marks)):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=names)
    return figure


def _log_ticks(axis: Any, digits: tuple[int, ...], words: Callable[[float], str]) -> None:
    """Ticks at ``digits`` times powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axis.set_minor_locator(NullLocator())
    draw.ticks_as(axis, words)


def _words(label: str, other: Callable[[float], str]) -> Callable[[float], str]:
    """What a tick says of a value."""
    units = {"bytes": format_bytes, "seconds": format_seconds}
    return units.get(label.partition(" ")[0], other)
