"""Curves of what was computed or measured at several sizes or steps."""

from collections.abc import Callable, Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import PALETTE, RED, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["curves"]

_WORDS: dict[str, Callable[[float], str]] = {
    "bytes": draw.amount(format_bytes),
    "seconds": draw.amount(format_seconds),
}
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
) -> "Figure":
    """A figure with a line for each of ``series``: name -> {x: y}, and red crosses at ``marks``.

    On the axes that are logarithmic, ``log`` ("", "x", "y" or "xy"), numbers are above 0. There
    all values of x are ticks, and labels beginning with "bytes" or "seconds" have suitable units. A
    line of 40 points or more is one of a formula: it has no dots and no ticks. Where ``marks`` have
    several names, each stands left of its points, and they have no ticks.

    >>> len(curves({"one core": {64: 1e-5, 128: 8e-5}}, xlabel="n", ylabel="seconds").axes)
    1
    """
    every = [*series.values(), *(marks or {}).values()]
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
        dots = {} if len(line) >= _FINE else {"marker": "o", "markersize": 4}
        look = {**dots, "label": name, "gid": name}
        draw.curve(axes, list(line), list(line.values()), colour, 2.0, **look)
    marks = marks or {}
    beside = len(marks) > 1
    for name, line in marks.items():
        look = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8, "gid": name}
        look |= {} if beside else {"label": name}
        draw.curve(axes, list(line), list(line.values()), RED, 0, zorder=5, **look)
        for at in line.items() if beside else ():
            draw.note(axes, at, name, (-4, 4), color=RED)
    if "y" in log:
        words = _words(ylabel, "{:g}".format)
        digits = (1,) if max(ys) > 100 * min(ys) else (1, 2, 5)
        draw.log_ticks(axes.yaxis, min(ys) / 2, 2 * max(ys), words, digits)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if "x" in log:
        told = [*series.values(), *(() if beside else marks.values())]
        ticks = sorted({x for line in told if len(line) < _FINE for x in line})
        if ticks:
            words = _words(xlabel, "{:,}".format)
            axes.set(xscale="log")
            axes.set_xticks(ticks, [words(x) for x in ticks], minor=False)
            axes.set_xticks([], minor=True)
        else:
            words = _words(xlabel, "{:,g}".format)
            draw.log_ticks(axes.xaxis, xs[0], xs[-1], words, (1,))
    draw.grid(axes)
    if beside and "x" not in log:
        axes.margins(x=0.18)  # for the words at the left
    if named := len(series) + (0 if beside else len(marks)):
        draw.legend_under(axes, named, -0.25)
    return figure


def _words(label: str, other: Callable[[float], str]) -> Callable[[float], str]:
    return _WORDS.get(label.partition(" ")[0], other)
