"""Curves of what was computed or measured at several sizes or steps."""

from collections.abc import Callable, Mapping
from itertools import cycle

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
    beside = len(marks) > 1
    every = [*series.values(), *marks.values()]
    xs, ys = [x for line in every for x in line], [y for line in every for y in line.values()]
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
    for name, line in marks.items():
        look = {"markersize": 7, "markeredgewidth": 1.8, "gid": name, "zorder": 5, "color": RED}
        axes.plot([*line], [*line.values()], "x", label=None if beside else name, **look)
        for at in line.items() if beside else ():
            draw.note(axes, at, name, (-4, 4), color=RED)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if "y" in log:
        axes.set(yscale="log", ylim=(min(ys) / 2, 2 * max(ys)))
        digits = (1,) if max(ys) > 100 * min(ys) else (1, 2, 5)
        _log_ticks(axes.yaxis, digits, ylabel, "{:g}".format)
    if "x" in log:
        axes.set(xscale="log")
        named = [*series.values(), *(() if beside else marks.values())]
        _log_ticks(axes.xaxis, (1,), xlabel, lambda x: f"{x:,.0f}" if x % 1 == 0 else f"{x:.3g}")
        if ticks := sorted({x for line in named if len(line) < _FINE for x in line}):
            axes.set_xticks(ticks)
    elif beside:
        axes.margins(x=0.18)  # for the words at the left
    axes.grid()
    if names := len(series) + (0 if beside else len(marks)):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=names)
    return figure


def _log_ticks(
    axis: draw.Axes, digits: tuple[int, ...], label: str, other: Callable[[float], str]
) -> None:
    """Ticks at ``digits`` times powers of ten, in the unit that ``label`` begins with, if any."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=digits, numticks=20))
    axis.set_minor_locator(NullLocator())
    units = {"bytes": format_bytes, "seconds": format_seconds}
    draw.ticks_as(axis, units.get(label.partition(" ")[0], other))
