"""The roofline at every level of the memory, with the ladder of kernels that climbs it."""

from collections.abc import Mapping, Sequence

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, canvas, styled
from tiledask.plan.units import format_bytes
from tiledask.tile.choice import Prediction

__all__ = ["roofline"]

_LEVELS = {  # name -> colour, marker
    "DRAM -> L2": (BLUE, "o"),
    "L2 -> shared memory": (GREEN, "s"),
    "shared memory -> registers": (PINK, "^"),
}
_COLOURS = (ORANGE, RED, INK, "#8C6D31", "#5254A3", GREY)


@styled
def roofline(
    predictions: Sequence[Prediction],
    *,
    measured: Mapping[str, float] | None = None,
    title: str | None = None,
) -> "Figure":
    """A figure of `td.tile.predict`'s bounds of one device: slanted roofs are bandwidths, flat
    ones are peaks, and each kernel is a line at its bound, with a mark under each level's roof at
    the intensity it has there. The mark that is filled is on its roof: that level binds.

    ``measured``: FLOP/s by kernel name, drawn as crosses.
    """
    if not predictions:
        raise ConfigError("roofline draws 1 prediction or more, got 0")
    devices = {prediction.levels.device.name for prediction in predictions}
    if len(devices) > 1:
        raise ConfigError(f"a roofline is of 1 device, got {', '.join(sorted(devices))}")
    figure = canvas(5.2, title or f"What bounds each kernel on {devices.pop()}")
    axes = figure.subplots()
    spots = [level.intensity for p in predictions for level in p.levels.levels]
    left, right = min(spots) / 2, max(*spots, 1000) * 2
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    _roofs(axes, predictions, left, right)
    for number, prediction in enumerate(predictions):
        _kernel(axes, prediction, _COLOURS[number % len(_COLOURS)], measured or {})
    axes.set_xlabel("arithmetic intensity: FLOP per byte that crosses the level")
    axes.set_ylabel("TFLOP/s")
    draw.log_ticks(axes.yaxis, *axes.get_ylim(), lambda speed: f"{speed / 1e12:g}")
    draw.log_ticks(axes.xaxis, left, right, "{:g}".format)
    draw.grid(axes)
    if any(prediction.config.kernel in (measured or {}) for prediction in predictions):
        look = {"marker": "x", "markersize": 8, "markeredgewidth": 1.8, "label": "measured"}
        draw.curve(axes, [], [], GREY, 0, **look)
    draw.legend(figure, axes, 2, fontsize=8)
    return figure


def _roofs(axes: "Axes", predictions: Sequence[Prediction], left: float, right: float) -> None:
    device = predictions[0].levels.device
    peaks = {p.config.peak: device.peak(p.config.peak) for p in predictions}
    top = max(peaks.values())
    for level in predictions[0].levels.levels:
        if level.name not in _LEVELS:
            continue
        colour, marker = _LEVELS[level.name]
        if not level.bandwidth:
            words, look = f"{level.name}: bandwidth unknown, no roof", {"markeredgecolor": colour}
            draw.curve(axes, [], [], "none", marker=marker, label=words, **look)
            continue
        # the marks are for the legend
        look = {"marker": marker, "markerfacecolor": "white", "markevery": []}
        look |= {"label": f"{level.name}: {format_bytes(level.bandwidth)}/s"}
        xs, ys = [left, top / level.bandwidth], [left * level.bandwidth, top]
        draw.curve(axes, xs, ys, colour, 1.4, gid=f"roof {level.name}", **look)
    slowest = min(p.flops_per_second for p in predictions)
    axes.set_ylim(min(slowest / 3, top / 10), top * 1.8)  # a decade, so that there are ticks
    for name, peak in peaks.items():
        draw.curve(axes, [left, right], [peak, peak], GREY, 1.2, gid=f"peak {name}")
        draw.note(axes, (right, peak), f"peak {name}: {peak / 1e12:g} TFLOP/s", (-4, 3))


def _kernel(
    axes: "Axes", prediction: Prediction, colour: str, measured: Mapping[str, float]
) -> None:
    speed, kernel = prediction.flops_per_second, prediction.config.kernel
    levels = [level for level in prediction.levels.levels if level.name in _LEVELS]
    xs = [level.intensity for level in levels]
    block = "x".join(map(str, prediction.config.block))
    words = f"{kernel} {block}: at most\n{speed / 1e12:.4g} TFLOP/s, by {prediction.binding}"
    ends = [min(xs), max(xs)]
    draw.curve(axes, ends, [speed, speed], colour, zorder=3, gid=kernel, label=words)
    for level in levels:
        fill = "full" if level.name == prediction.binding else "none"
        look = {"marker": _LEVELS[level.name][1], "markersize": 7, "fillstyle": fill}
        gid = f"{kernel} {level.name}"
        draw.curve(axes, level.intensity, speed, colour, 0, zorder=4, gid=gid, **look)
    if kernel in measured:
        look = {"marker": "x", "markersize": 8, "markeredgewidth": 1.8, "zorder": 5}
        draw.curve(axes, xs[0], measured[kernel], colour, 0, gid=f"{kernel} measured", **look)
