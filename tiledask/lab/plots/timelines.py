"""What devices do and hold over time: idle time pushed together, memory, tasks in slots.

F0 .. .. .. .. B0        .. .. .. .. F0 B0
.. F0 .. .. B0 ..   ->   .. .. .. .. F0 B0      idle_blocks: the triangles of a pipeline that fills
.. .. F0 B0 .. ..        .. .. .. .. F0 B0      and drains become one block
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.gantt import colour_of, kinds_shown
from tiledask.lab.plots.primitives import Axes, Box, Figure
from tiledask.lab.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE,
    PINK,
    RED,
    YELLOW,
    canvas,
    colour_named,
    lighter,
    styled,
)
from tiledask.plan.pipelines.footprint import Footprint
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["idle_blocks", "memory_timeline", "slots"]

# -- idle time -----------------------------------------------------------------------------------

_PIECES = {
    "idle before its first action": lighter(GREEN, 0.55),
    "idle between two actions": lighter(PINK, 0.45),
    "idle after its last action": lighter(YELLOW, 0.35),
}
"""Where a piece of idle time lies -> its colour."""


@styled
def idle_blocks(
    timeline: Timeline,
    *,
    title: str = "Idle time, where it lies and pushed together",
    lanes: Sequence[str] | None = None,
) -> "Figure":
    """A figure of two panels, a row per device. Above, when it computes and when it idles; below,
    the same pieces with all idle time first, so that the rows' idle time forms a block. ``lanes``
    name the rows; default: device 1, device 2, ..."""
    if not timeline.devices or not timeline.makespan:
        raise ConfigError("idle_blocks draws 1 device or more that did something, got none")
    when: list[Box] = []
    pushed: list[Box] = []
    frame = timeline.to_frame()
    frame = frame[frame.kind.isin(COMPUTE)].sort_values("start")
    for device in range(timeline.devices):
        mine = frame[frame.device == device]
        spans = [*zip(mine.start.tolist(), mine.end.tolist(), strict=True)]
        ends = [(0.0, 0.0), *spans, (timeline.makespan, timeline.makespan)]
        gaps = [(a, b) for (_, a), (b, _) in pairwise(ends)]
        groups = gaps[:1], gaps[1:-1], gaps[1:][-1:]
        left = 0.0
        for (name, colour), group in zip(_PIECES.items(), groups, strict=True):
            pieces = [(a, b) for a, b in group if b - a > 1e-9 * timeline.makespan]
            when += [
                draw.span(device, a, b, colour, format_seconds(b - a), name) for a, b in pieces
            ]
            if whole := sum(b - a for a, b in pieces):
                words = format_seconds(whole)
                pushed.append(draw.span(device, left, left + whole, colour, words, name))
                left += whole
        for kind, (start, end) in zip(mine.kind, spans, strict=True):
            when.append(draw.span(device, start, end, colour_of(kind, 0), gid=kind))
            pushed.append(draw.span(device, left, left + end - start, colour_of(kind, 0), gid=kind))
            left += end - start
    figure = canvas(1.9 + 0.68 * timeline.devices, title)
    above, below = panels = draw.stacked_axes(figure, [1, 1], sharex=True)
    idle = np.array(timeline.idle_per_device)
    each = f"{format_seconds(idle[0])} on each{'' if lanes else ' device'}, "
    above.set_title(f"when: {100 * timeline.bubble_fraction:.1f} % of device-time idle")
    alike = each if np.allclose(idle, idle[0]) else ""
    below.set_title(f"how long: {alike}{format_seconds(idle.sum())} together")
    names = lanes or [f"device {d + 1}" for d in range(timeline.devices)]
    for axes, boxes in zip(panels, (when, pushed), strict=True):
        draw.lanes(axes, names, boxes)
    draw.time_ticks(below, 0.0, timeline.makespan)
    shown = [*kinds_shown(timeline), *_PIECES.items()]
    draw.legend(figure, [draw.patch_entry(*each) for each in shown], 5)
    figure.lay_out()
    for axes, boxes in zip(panels, (when, pushed), strict=True):
        draw.write(axes, boxes)
    return figure


# -- tasks ---------------------------------------------------------------------------------------

Stay = tuple[str, float, float]
"""What a task is called, when it begins and when it ends; where these are one, a moment."""
Lanes = Mapping[str, Sequence[Stay]]


@styled
def slots(
    tasks: Lanes | Mapping[str, Lanes],
    *,
    title: str = "Which task is where",
    xlabel: str | None = "time (s)",
) -> "Figure":
    """A figure with a lane for each slot, a box for each of its tasks, in the colour of its name,
    and a red line with its name for each moment. A slot that has no task is idle: grey, as on the
    dashboard. ``xlabel=None``: times say the order alone, and the axis has no numbers.
    ``{title: lanes}`` draws a panel for each, one above the other.

    >>> len(slots({"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": []}).axes)
    1
    """
    nested = bool(tasks) and all(isinstance(lanes, Mapping) for lanes in tasks.values())
    panels: dict[str, Any] = dict(tasks) if nested else {"": tasks}
    every = [stay for lanes in panels.values() for stays in lanes.values() for stay in stays]
    if not every or any(end < begin for _, begin, end in every):
        raise ConfigError(
            f"slots draws 1 task or more that ends after it begins, got {every}; "
            f"pass {{'slot 0': [('nap', 0, 0.2)]}}"
        )
    rows = [len(lanes) for lanes in panels.values()]
    figure = canvas(1.1 + 0.36 * sum(rows) + 0.4 * (len(rows) - 1), title)
    last, drawn = max(end for _, _, end in every), {}
    for axes, (name, lanes) in zip(
        draw.stacked_axes(figure, rows, sharex=True), panels.items(), strict=True
    ):
        drawn[axes] = _stays(axes, lanes, last if xlabel is not None else 0.0)
        draw.lanes(axes, list(lanes), drawn[axes])
        axes.set(xlim=(0, 1.02 * last), title=name)
        if xlabel is None:
            axes.set_xticks([])
    axes.set(xlabel=xlabel or "order of steps, not to scale")
    figure.lay_out()
    for axes, boxes in drawn.items():
        draw.write(axes, boxes)
    return figure


def _stays(axes: "Axes", lanes: Lanes, last: float) -> list[Box]:
    """A box for each task, over the idle slot up to ``last``; a line is drawn for each moment."""
    made = []
    for row, (lane, stays) in enumerate(lanes.items()):
        if last and lane.startswith("slot"):
            made.append(draw.span(row, 0, last, PALE, gid="idle"))
        for name, begin, end in stays:
            if begin == end:
                ends = [row - 0.45, row + 0.45]
                axes.plot([begin] * 2, ends, color=RED, linewidth=2.5, gid=name, zorder=3)
                draw.note(axes, (begin, row), name, color=RED)
            else:
                made.append(draw.span(row, begin, end, colour_named(name), name, name))
    return made


# -- memory --------------------------------------------------------------------------------------

_ROWS, _COLUMNS = 8, 3
"""The most devices and footprints drawn."""
_HELD = lighter(BLUE, 0.65)
_OVER = {"edgecolor": RED, "hatch": "/////"}
_CAPACITY = {"color": INK, "linestyle": "--", "linewidth": 1.0}


@styled
def memory_timeline(
    held: Footprint | Mapping[str, Footprint],
    capacity: float | None = None,
    *,
    unit: str = "bytes",
    title: str = "Memory over time",
) -> "Figure":
    """A figure with a row per device and a column per Footprint, all on one scale; what exceeds
    ``capacity`` is hatched, and a dot marks each device's first peak.

    Of more than eight devices the first, the last, some between and the fullest are drawn.
    ``unit``: "bytes", or the word for what was counted: "activations".
    """
    columns = {held.origin: held} if isinstance(held, Footprint) else dict(held)
    devices = {f.devices for f in columns.values()}
    if not 1 <= len(columns) <= _COLUMNS or len(devices) != 1 or 0 in devices:
        raise ConfigError(
            f"memory_timeline draws 1 to {_COLUMNS} footprints of equally many devices, 1 or "
            f"more, got {[f.devices for f in columns.values()]}; draw the others in a second figure"
        )
    (count,) = devices
    fullest = {f.peak.device for f in columns.values()}
    spread = np.linspace(0, count - 1, _ROWS - len(fullest)).round().astype(int).tolist()
    rows = sorted({*range(count)} if count <= _ROWS else {*fullest, *spread})
    figure = canvas(1.5 + 0.5 * len(rows), title)
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    for column, (name, footprint) in zip(grid.T, columns.items(), strict=True):
        for axes, device in zip(column, rows, strict=True):
            _held(axes, footprint, device, capacity, unit)
        most, fullest_one, time = footprint.peak
        words = f"{name}: at most {_size(most, unit)}{'' if unit == 'bytes' else f' {unit}'}"
        where = f"first on device {fullest_one + 1}, after {format_seconds(time)}"
        column[0].set_title(f"{words}\n{where}" if len(columns) > 1 else f"{words}, {where}")
        column[-1].set_xlabel("time (s)")
    for axes, device in zip(grid[:, 0], rows, strict=True):
        axes.set_ylabel(f"device {device + 1}", rotation=0, ha="right", va="center")
    grid[0, 0].set_ylim(
        0, 1.12 * (max(capacity or 0, *(f.peak.bytes for f in columns.values())) or 1)
    )
    grid[0, 0].set_xlim(0, max(f.makespan for f in columns.values()) or 1)
    over = capacity is not None and any(f.over(capacity) for f in columns.values())
    entries = _entries(capacity, unit, over, count - len(rows))
    draw.legend(figure, entries, 4 if len(entries) < 5 else 3)
    return figure


def _held(axes: "Axes", footprint: Footprint, device: int, capacity: Any, unit: str) -> None:
    """What one device holds."""
    times, held = footprint.steps[device]
    lasting = np.append(times[1:] > times[:-1], True)  # what comes and goes at once is no step
    times, held = times[lasting], held[lasting]
    if times[-1] < footprint.makespan:
        times, held = np.append(times, footprint.makespan), np.append(held, held[-1])
    axes.fill_between(times, held, step="post", color=_HELD, linewidth=0)
    line: draw.Look = {"linewidth": 1.0, "drawstyle": "steps-post", "gid": f"device {device + 1}"}
    axes.plot(times, held, color=BLUE, **line)
    if capacity is not None:
        above = np.maximum(held, capacity)
        look: draw.Look = {"facecolor": "none", "linewidth": 0, "gid": "over", **_OVER}
        axes.fill_between(times, capacity, above, step="post", **look)
        axes.axhline(capacity, gid="capacity", **_CAPACITY)
    at = int(np.argmax(held))
    dot: draw.Look = {"marker": "o", "markersize": 3, "clip_on": False, "gid": "peak"}
    axes.plot(times[at], held[at], color=INK, **dot)
    most, fullest = footprint.peaks[device], device == footprint.peak.device
    right: draw.Look = {"xycoords": ("axes fraction", "data"), "va": "center"}
    axes.annotate(
        f"peak {_size(most, unit)}",
        (1, most),
        (4, 0),
        textcoords="offset points",
        fontsize=7.5,
        color=INK if fullest else GREY,
        **right,
    )
    axes.set_yticks([])
    axes.spines[["left"]].set_visible(False)


def _size(size: float, unit: str) -> str:
    return format_bytes(size) if unit == "bytes" else f"{size:.4g}"


def _entries(capacity: float | None, unit: str, over: bool, skipped: int) -> list[Any]:
    words = f"{'bytes' if unit == 'bytes' else unit} held, one scale for all"
    entries = [
        draw.patch_entry(words, _HELD, edgecolor=BLUE),
        draw.line_entry("first peak", marker="o", markersize=3, linestyle="none"),
    ]
    if capacity is not None:
        entries.append(draw.line_entry(f"capacity: {_size(capacity, unit)}", **_CAPACITY))
    if over:
        entries.append(draw.patch_entry("over the capacity", "none", **_OVER))
    if skipped:
        entries.append(draw.line_entry(f"{skipped} more devices are not drawn", linestyle="none"))
    return entries
