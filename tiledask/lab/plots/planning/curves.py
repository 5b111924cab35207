"""Curves of what was computed or measured at several sizes, on logarithmic axes."""

from collections.abc import Callable, Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import PALETTE, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["curves"]

_WORDS: dict[str, Callable[[float], str]] = {
    "bytes": draw.amount(format_bytes),
    "seconds": draw.amount(format_seconds),
}


@styled
def curves(
    series: Mapping[str, Mapping[float, float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
) -> "Figure":
    """A figure with a line for each of ``series``: name -> {x: y}, both above 0.

    A ``ylabel`` of "bytes" or "seconds" has ticks in the units that suit them; all values of x
    are ticks.

    >>> len(curves({"one core": {64: 1e-5, 128: 8e-5}}, xlabel="n", ylabel="seconds").axes)
    1
    """
    xs = sorted({x for line in series.values() for x in line})
    ys = [y for line in series.values() for y in line.values()]
    if not ys or min(xs) <= 0 or min(ys) <= 0:
        raise ConfigError(
            f"curves draws 1 line or more of numbers above 0, got {dict(series)}; "
            f"pass {{'one core': {{64: 1e-5, 128: 8e-5}}}}"
        )
    figure = canvas(3.2, title)
    axes = figure.subplots()
    for colour, (name, line) in zip(cycle(PALETTE), series.items(), strict=False):
        look = {"marker": "o", "label": name, "gid": name}
        draw.curve(axes, list(line), list(line.values()), colour, 2.0, **look)
    words = _WORDS.get(ylabel, "{:g}".format)
    draw.log_ticks(axes.yaxis, min(ys) / 2, 2 * max(ys), words, (1,))
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(xs, [f"{x:,}" for x in xs], minor=False)
    axes.set_xticks([], minor=True)
    draw.grid(axes)
    draw.legend_under(axes, len(series), -0.25)
    return figure
