"""Kernels of one device: the roofs of its levels and what bounds each kernel, level by level."""

from collections.abc import Mapping, Sequence

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.curves import curves
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, RED, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice import Levels, Prediction
from tiledask.tile.choice.hierarchy import LEVELS

__all__ = ["roofline", "tile_levels"]


def roofline(
    predictions: Sequence[Prediction],
    *,
    measured: Mapping[str, float] | None = None,
    title: str | None = None,
) -> "Figure":
    """A figure of `td.tile.predict`'s bounds of one device: a line for each level of its memory,
    slanted where the bandwidth bounds and flat at the highest peak, and a cross for each kernel at
    its bound, at the intensity that it has at the level that binds.

    ``measured``: FLOP/s by kernel name, drawn as red dots.
    """
    if len({prediction.levels.device.name for prediction in predictions}) != 1:
        raise ConfigError("roofline draws 1 prediction or more, all of 1 device")
    measured = measured or {}
    device, bounds = predictions[0].levels.device, dict[str, tuple[float, float]]()
    peak = max(device.peak(each.config.peak) for each in predictions)
    for each in predictions:
        by_name = {level.name: level.intensity for level in each.levels.levels}
        at = by_name.get(each.binding, max(by_name.values()))
        bounds[each.config.kernel] = at, each.flops_per_second / 1e12
    spots = [x for x, _ in bounds.values()]
    ends, roofs = (min(spots) / 4, max(*spots, 1000) * 2), {}
    for level in predictions[0].levels.levels:
        if level.bandwidth:
            xs = sorted({*ends, min(max(peak / level.bandwidth, ends[0]), ends[1])})
            roof = {x: min(x * level.bandwidth, peak) / 1e12 for x in xs}
            roofs[f"{level.name}: {format_bytes(level.bandwidth)}/s"] = roof
    mark = "a kernel at its bound" + "; a dot: as measured" * bool(measured)
    figure = curves(
        roofs,
        marks={mark: dict(bounds.values())},
        xlabel="arithmetic intensity: FLOP per byte that crosses the level",
        ylabel="TFLOP/s",
        title=title or f"What bounds each kernel on {device.name}",
    )
    figure.set_figheight(4.6)
    (axes,) = figure.axes
    draw.log_ticks(axes.xaxis, *ends, "{:g}".format)
    for each, (x, y) in zip(predictions, bounds.values(), strict=True):
        words = f"{each.config.kernel}, by {each.binding}"
        draw.note(axes, (x, y), words, (8, -2), 8, **draw.BEHIND)
        if each.config.kernel in measured:
            gid, speed = f"{each.config.kernel} measured", measured[each.config.kernel] / 1e12
            axes.plot(x, speed, "o", color=RED, gid=gid)
    return figure


@styled
def tile_levels(levels: Levels, *, title: str | None = None) -> "Figure":
    """A figure of `td.tile.levels_of`: for each level its tile, what is moved and how often it is
    used, and the time that its bytes take at full bandwidth, beside that of the arithmetic.

    Bytes between workers are those of all workers, and are said to be."""
    at = f", one of {levels.workers[0]} x {levels.workers[1]} workers" if levels.workers else ""
    what = f"{levels.m} x {levels.n} x {levels.k} on {levels.device.name}{at}\nby {levels.config}"
    figure = canvas(1.6 + 0.5 * len(levels.levels), title or what)
    names, boxes, axes = ["arithmetic"], [], figure.subplots()
    for level in levels.levels:
        whose = f", {levels.workers[0] * levels.workers[1]} workers" if levels.workers else ""
        whose = whose if level.name == LEVELS[0] else ""
        what = "in whole reads" if level.name == LEVELS[3] else f"moved{whose}"
        names.append(
            f"{level.name}: {level.tile[0]} x {level.tile[1]}\n"
            f"{format_bytes(level.moved)} {what}, {level.intensity:.4g} FLOP/byte"
        )
    for row, name in enumerate(["arithmetic", *(level.name for level in levels.levels)]):
        seconds, binding = levels.times[name], name == levels.binding
        colour = RED if binding else ORANGE if not row else BLUE
        boxes.append(draw.span(row, 0, seconds, colour, gid=name))
        words = format_seconds(seconds) if seconds else "not known: no bandwidth"
        words += ", the longest" * binding
        # beyond the line of the arithmetic, which would cross the words
        draw.note(axes, (max(seconds, levels.compute), row), words, **draw.BEHIND)
    draw.lanes(axes, names, boxes)
    axes.axvline(levels.compute, **draw.DASHED | {"color": GREY, "linewidth": 0.8, "zorder": 0})
    axes.set_xlim(0, 1.3 * levels.seconds)
    draw.ticks_as(axes.xaxis, format_seconds)
    axes.set_xlabel("time at full bandwidth and peak, on the busiest multiprocessor; all overlap")
    return figure
