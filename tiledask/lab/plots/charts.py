"""Plain charts: curves through points, and bars from one number to another, with named axes."""

from collections.abc import Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, INK, LINES, RED, canvas, styled

__all__ = ["lines", "ranges"]

Points = Mapping[float, float]
"""x -> y."""


@styled
def lines(
    curves: Mapping[str, Points],
    *,
    x: str,
    y: str,
    marks: Mapping[str, Points] | None = None,
    log: str = "",
    title: str = "Curves",
) -> "Figure":
    """A figure with a line through the points of each of ``curves``, and red crosses at those of
    ``marks``, both by name. ``x``, ``y``: the axes' names; ``log``: the axes that are logarithmic,
    "", "x", "y" or "xy".

    >>> lines({"latency": {8: 1e-4, 64: 2e-4}}, x="bytes", y="seconds").axes[0].get_xlabel()
    'bytes'
    """
    every = {**curves, **(marks or {})}
    if not curves or not all(curves.values()):
        sizes = {name: len(points) for name, points in every.items()}
        raise ConfigError(
            f"lines draws 1 curve or more of 1 point or more, got {sizes}; pass {{'run': {{0: 1}}}}"
        )
    figure = canvas(3.0, title)
    axes = figure.subplots()
    for (name, points), colour in zip(curves.items(), cycle(LINES), strict=False):
        xs = sorted(points)
        look = {"label": name, "gid": name, "marker": "o", "markersize": 3}
        draw.curve(axes, xs, [points[at] for at in xs], colour, 1.8, **look)
    for name, points in (marks or {}).items():
        look = {"label": name, "gid": name, "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
        draw.curve(axes, list(points), list(points.values()), RED, 0, zorder=5, **look)
    for axis in log:
        axes.set(**{f"{axis}scale": "log"})
    draw.grid(axes)
    axes.set(xlabel=x, ylabel=y)
    if len(every) > 1:
        draw.legend(figure, axes, 3)
    return figure


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
    if limit:
        draw.legend(figure, axes, 1)
    return figure
