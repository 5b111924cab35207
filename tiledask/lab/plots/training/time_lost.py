"""What saving and failures cost, against how often is saved: a valley, and where one is in it."""

from collections.abc import Mapping
from itertools import cycle

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import INK, LINES, canvas, styled

__all__ = ["time_lost"]

Curves = Mapping[str, Mapping[float, float]]
"""Name -> steps from one save to the next -> share of the work's time that is added."""

_MARKS = ("o", "x", "s", "^")


@styled
def time_lost(
    curves: Curves,
    points: Curves | None = None,
    *,
    best: Mapping[str, float] | None = None,
    unit: str = "steps",
    title: str = "What saving and failures cost",
) -> "Figure":
    """A figure of the time lost against the steps, or another ``unit``, from one save to the next:
    a line for each of ``curves``, marks for each of ``points``, a dotted line at each of ``best``;
    all by name. A curve that is equal to an earlier one is dashed, so that both are seen."""
    points = points or {}
    every = [*curves.values(), *points.values()]
    if not curves or not all(every):
        raise ConfigError(
            f"time_lost draws 1 curve or more of 1 point or more, got "
            f"{ {name: len(curve) for name, curve in {**curves, **points}.items()} }; pass "
            f"{{'formula': {{steps: share}}}}"
        )
    if any(x <= 0 or y <= 0 for curve in every for x, y in curve.items()):
        raise ConfigError("time_lost draws steps and shares above 0, on logarithmic axes, got 0")
    figure = canvas(4.2, title)
    axes = figure.subplots()
    drawn: list[Mapping[float, float]] = []
    for (name, curve), colour in zip(curves.items(), cycle(LINES), strict=False):
        xs = sorted(curve)
        style, ys = "--" if curve in drawn else "-", [curve[x] for x in xs]
        draw.curve(axes, xs, ys, colour, 2.0, label=name, gid=name, linestyle=style, zorder=3)
        drawn.append(curve)
    for (name, curve), mark in zip(points.items(), cycle(_MARKS), strict=False):
        look = {"marker": mark, "markersize": 7, "markeredgewidth": 1.6, "fillstyle": "none"}
        words = {"label": name, "gid": name, "zorder": 5, "clip_on": False}
        draw.curve(axes, list(curve), list(curve.values()), INK, 0, **words, **look)
    for name, x in (best or {}).items():
        look = {"linestyle": ":", "linewidth": 1.2, "gid": name, "label": name}
        draw.limit_line(axes, x, **look)
    xs = [x for curve in every for x in curve]
    ys = [y for curve in every for y in curve.values()]
    draw.log_ticks(axes.xaxis, min(xs) / 1.15, max(xs) * 1.15, lambda x: f"{x:,g}")
    digits = (1, 2, 5) if max(ys) > 20 * min(ys) else (1, 1.5, 2, 3, 4, 5, 7)
    low, high = min(ys) / 1.2, max(ys) * 1.2
    draw.log_ticks(axes.yaxis, low, high, lambda share: f"{100 * share:,.4g} %", digits)
    draw.grid(axes)
    axes.set(xlabel=f"{unit} from one save to the next", ylabel="time lost / time of the work")
    draw.legend(figure, axes, 3)
    return figure
