"""Idle time pushed together: the triangles of a pipeline that fills and drains become one block.

F0 .. .. .. .. B0        .. .. .. .. F0 B0
.. F0 .. .. B0 ..   ->   .. .. .. .. F0 B0
.. .. F0 B0 .. ..        .. .. .. .. F0 B0
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import colour_of, kinds_shown
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREEN, PINK, YELLOW, canvas, lighter, styled
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["idle_blocks"]

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
    devices = timeline.devices
    figure = canvas(1.9 + 0.68 * devices, title)
    above, below = draw.stacked_axes(figure, [devices, devices], sharex=True)
    done = timeline.to_frame().query("kind in @COMPUTE", local_dict={"COMPUTE": list(COMPUTE)})
    drawn: list[tuple[Axes, draw.Box, str]] = []
    for device in range(devices):
        mine = done[done.device == device].sort_values("start")
        gaps = _gaps(mine.start.tolist(), mine.end.tolist(), timeline.makespan)
        row = device - draw.HEIGHT / 2
        left = 0.0
        for name in _PIECES:
            pieces = [gap for gap in gaps[name] if gap[1] - gap[0] > 1e-9 * timeline.makespan]
            drawn += [(above, (a, row, b - a, draw.HEIGHT), name) for a, b in pieces]
            if pieces:
                width = sum(b - a for a, b in pieces)
                drawn.append((below, (left, row, width, draw.HEIGHT), name))
                left += width
        for kind, start, end in zip(mine.kind, mine.start, mine.end, strict=True):
            for axes, x in ((above, start), (below, left)):
                draw.box(axes, (x, row, end - start, draw.HEIGHT), colour_of(kind, 0))
            left += end - start
    for axes, at, name in drawn:
        draw.box(axes, at, _PIECES[name], gid=name)
    idle = np.array(timeline.idle_per_device)
    alike = np.allclose(idle, idle[0])
    each = f"{format_seconds(idle[0])} on each{'' if lanes else ' device'}, " if alike else ""
    above.set_title(f"when: {100 * timeline.bubble_fraction:.1f} % of device-time idle")
    below.set_title(f"how long: {each}{format_seconds(idle.sum())} together")
    for axes in (above, below):
        draw.lanes(axes, lanes or [f"device {d + 1}" for d in range(devices)])
    draw.time_ticks(below, 0.0, timeline.makespan)
    entries = [draw.patch_entry(*shown) for shown in kinds_shown(timeline)]
    entries += [draw.patch_entry(*each) for each in _PIECES.items()]
    draw.legend(figure, entries, 5)
    figure.lay_out()
    for axes, at, name in drawn:
        draw.fitting_text(axes, at, format_seconds(at[2]), _PIECES[name])
    return figure


def _gaps(
    starts: list[float], ends: list[float], makespan: float
) -> dict[str, list[tuple[float, float]]]:
    """The pieces of a device's idle time, (start, end), by where they lie."""
    if not starts:
        return dict(zip(_PIECES, ([(0.0, makespan)], [], []), strict=True))
    between = [(end, start) for (end, _), (_, start) in pairwise(zip(ends, starts, strict=True))]
    return dict(zip(_PIECES, ([(0.0, starts[0])], between, [(ends[-1], makespan)]), strict=True))
