"""The levels of a tiled product: which tile shares what it loads, and how long its bytes take."""

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, PALE, RED, SKY, canvas, styled
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice import Level, Levels
from tiledask.tile.choice.hierarchy import LEVELS

__all__ = ["tile_levels"]

_MOST = 8
"""Inner tiles side by side that are drawn of an outer one."""


@styled
def tile_levels(levels: Levels, *, title: str | None = None) -> "Figure":
    """A figure of `td.tile.levels_of`: above, each level's tile within the one above it; below,
    the time that its bytes take at full bandwidth, beside that of the arithmetic.

    Bytes between workers are those of all workers, and are said to be. An outer tile runs on beyond
    its panel where the inner one could not be seen in the whole of it."""
    count = len(levels.levels)
    at = f", one of {levels.workers[0]} x {levels.workers[1]} workers" if levels.workers else ""
    what = f"{levels.m} x {levels.n} x {levels.k} on {levels.device.name}{at}\nby {levels.config}"
    figure = canvas(4.0 + 0.3 * count, title or what)
    above, below = figure.subfigures(2, 1, height_ratios=[2.2, 0.3 * (count + 3)])
    # c, of which the first worker's part is what the table is about
    rows, columns = levels.workers or (1, 1)
    outer = levels.m * rows, levels.n * columns
    for axes, level in zip(above.subplots(1, count), levels.levels, strict=True):
        _nested(axes, outer, level, rows * columns if level.name == LEVELS[0] else 1)
        outer = level.tile

    axes = below.subplots()
    names = ["arithmetic", *(level.name for level in levels.levels)]
    for y, name in enumerate(names):
        seconds, binding = levels.times[name], name == levels.binding
        axes.barh(y, seconds, 0.66, color=RED if binding else ORANGE if not y else BLUE, gid=name)
        words = format_seconds(seconds) if seconds else "not known: no bandwidth"
        words += ", the longest" * binding
        # beyond the line of the arithmetic, which would cross the words
        draw.note(axes, (max(seconds, levels.compute), y), words, **draw.BEHIND)
    draw.limit_line(axes, levels.compute, color=GREY, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * levels.seconds)
    draw.second_ticks(axes.xaxis)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time at full bandwidth and peak, on the busiest multiprocessor; all overlap")
    return figure


def _nested(axes: "Axes", outer: tuple[int, int], level: Level, workers: int) -> None:
    """The tile as the upper left corner of the one that holds it, both to scale."""
    rows, columns = level.tile
    m, n = (max(pair) for pair in zip(outer, level.tile, strict=True))
    draw.box(axes, (0, 0, n, m), PALE, edgecolor=GREY)
    draw.box(axes, (0, 0, columns, rows), SKY, edgecolor=BLUE, gid="tile")
    side = min(max(m, n), _MOST * max(rows, columns))
    middle, reach = min(n, side) / 2, 0.53 * side
    across, down = (middle - reach, middle + reach), (1.03 * side, -0.03 * side)
    axes.set(xlim=across, ylim=down, aspect="equal")
    axes.axis("off")
    if n > side:
        axes.text(1.0, 0.5, " ...", transform=axes.transAxes, va="center")
    axes.set_title(f"{level.name}\n{rows} x {columns} of {m} x {n}", loc="center", fontsize=8.5)
    whose = f", {workers} workers" if workers > 1 else ""
    what = "in whole reads" if level.name == LEVELS[3] else f"moved{whose}"
    words = f"{format_bytes(level.moved)} {what}\n{level.intensity:.4g} FLOP/byte"
    below = {"ha": "center", "va": "top", "transform": axes.transAxes}
    axes.text(0.5, -0.02, words, fontsize=8, **below)
