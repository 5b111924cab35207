"""Bars from one number to another, on an axis with a name."""

from collections.abc import Mapping

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, INK, canvas, styled

__all__ = ["ranges"]


@styled
def ranges(
    bars: Mapping[str, tuple[float, float]],
    *,
    x: str,
    points: Mapping[str, float] | None = None,
    limit: tuple[str, float] | None = None,
    title: str = "Ranges",
) -> "Figure":
    """A figure with a bar from low to high for each of ``bars``, the first at the top; a dot in
    those that ``points`` names; a dashed line at ``limit`` (its name, where it is).

    >>> len(ranges({"A": (0, 3), "B": (1, 2)}, x="seconds").axes[0].patches)
    2
    """
    if not bars or any(low > high for low, high in bars.values()):
        raise ConfigError(
            f"ranges draws 1 bar or more, each from a number to one no smaller, got {dict(bars)}; "
            f"pass {{'plan': (2.5, 2.7)}}"
        )
    figure = canvas(1.0 + 0.3 * len(bars) + 0.5 * bool(limit), title)
    axes = figure.subplots()
    for row, (name, (low, high)) in enumerate(bars.items()):
        draw.box(axes, (low, row - 0.32, high - low, 0.64), BLUE, gid=name, alpha=0.55)
        if name in (points or {}):
            look = {"marker": "o", "markersize": 5, "zorder": 5}
            draw.curve(axes, [points[name]], [row], INK, 0, **look)  # type: ignore[index]
    draw.lanes(axes, list(bars))
    low, high = min(at for at, _ in bars.values()), max(at for _, at in bars.values())
    if limit:
        draw.limit_line(axes, limit[1], gid=limit[0], label=limit[0])
        low, high = min(low, limit[1]), max(high, limit[1])
    room = 0.03 * (high - low or 1)
    axes.set(xlim=(low - (room if low else 0), high + room), xlabel=x)
    if high >= 10_000:
        draw.ticks_as(axes.xaxis, "{:,.0f}".format)
    if limit:
        draw.legend(figure, axes, 1)
    return figure
