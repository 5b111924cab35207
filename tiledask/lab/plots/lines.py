"""Curves of what was computed or measured at several sizes or steps, and losses of trainings."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import PALETTE, RED, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["curves", "losses"]

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
    words = units.get(label.partition(" ")[0], other)
    return lambda value: words(value) if value else "0"


# -- losses --------------------------------------------------------------------------------------

_LINE = 0.19
"""Inches of a line of a legend."""
_MARKS = "oxs^Dv"
_DASHES = ("-", (0, (5, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))


@styled
def losses(
    runs: Mapping[str, Any],
    *,
    title: str = "Loss",
) -> Figure:
    """A figure of the losses of ``runs``: name -> a `Trained`, or losses from step 0 on.

    Below are the differences of all others from the first, relative to the larger loss; where two
    are equal to the bit there is nothing to draw.
    """
    lines = {name: np.asarray(getattr(run, "losses", run), float) for name, run in runs.items()}
    if not any(map(len, lines.values())):
        raise ConfigError(
            f"losses draws 1 run or more with 1 step or more, got {len(lines)} runs with 0 steps; "
            "pass {'one rank': trained}"
        )
    first, *others = lines
    # beside each panel as many lines of its legend as there are
    panel = max(2.0, 0.6 + _LINE * 2 * len(others))
    heights = [panel, panel] if others else [2.6]
    figure = canvas(0.8 + sum(heights), title)
    axes = draw.stacked_axes(figure, heights, sharex=True)
    for n, (name, y) in enumerate(lines.items()):
        # the first is wide and pale, so that those that lie on it can be seen; one step is a dot
        under = bool(others) and not n
        look: draw.Look = {"linewidth": 5.0, "alpha": 0.35} if under else {"linewidth": 1.6}
        look |= {"linestyle": _DASHES[n % len(_DASHES)], "color": PALETTE[n % len(PALETTE)]}
        axes[0].plot(y, label=name, marker="o" if len(y) == 1 else None, **look)
    axes[0].set_ylabel("loss (nats)")
    axes[-1].set_xlabel("step")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    if others:
        axes[1].set_title(f"difference from {first}, relative; none: equal to the bit")
        _differences(axes[1], lines)
    for each in axes:  # beside: lines may be anywhere
        each.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _differences(axes: Any, lines: Mapping[str, np.ndarray]) -> None:
    """A mark for each step: between two of them there may be steps with no difference."""
    first, *others = lines.values()
    for n, (name, y) in enumerate(zip([*lines][1:], others, strict=True), 1):
        steps = min(len(first), len(y))
        a, b = first[:steps], y[:steps]
        larger = np.maximum(np.abs(a), np.abs(b))
        with np.errstate(invalid="ignore"):
            off = np.abs(a - b) / np.where(larger == 0, 1.0, larger)
        some, wrong = np.flatnonzero(np.isfinite(off) & (off > 0)), int((~np.isfinite(off)).sum())
        words = f"at most {off.max():.1e}" if off.any() else "equal to the bit"
        words = f"not finite in {wrong} of {len(off)}" if wrong else words
        # open shapes, so that one is seen on another; small where there are many
        look: draw.Look = {"fillstyle": "none", "linestyle": "none"}
        look |= {"marker": _MARKS[(n - 1) % len(_MARKS)], "color": PALETTE[n % len(PALETTE)]}
        size = 7 if len(off) < _FINE else 3
        axes.plot(some, off[some], label=f"{name}:\n{words}", markersize=size, **look)
        if len(some):
            axes.set_yscale("log")
