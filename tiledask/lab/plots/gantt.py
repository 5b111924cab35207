"""Gantt charts: who did what when, simulated above measured on one time axis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    YELLOW,
    canvas,
    fitting_text,
    lighter,
    styled,
)
from tiledask.plan.timeline import COMPUTE, TRANSFER, Timeline
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["gantt"]

_KINDS = {
    "F": ("forward", BLUE),
    "B": ("backward", ORANGE),
    "I": ("backward: input gradient", YELLOW),
    "W": ("backward: weight gradient", GREEN),
}
_HEIGHT = 0.72
"""Of a compute box, in rows."""


@styled
def gantt(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    title: str = "Who computes when",
) -> "Figure":
    """A figure with one panel per timeline, one row per device, all on one time axis.

    The number in a box is the micro-batch, where there is room for it. ``titles`` name the
    panels; without them a timeline's origin does.
    """
    _check(timelines, titles)
    rows = [timeline.devices for timeline in timelines]
    pitch = 0.34 if max(rows) <= 12 else 0.22
    figure = canvas(1.25 + sum(0.45 + pitch * n for n in rows), title)
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    size, unit = _time_unit(max(t.makespan for t in timelines))
    for axes, timeline, name in zip(
        panels, timelines, titles or [t.origin for t in timelines], strict=True
    ):
        _panel(axes, timeline, name)
    _time_axis(panels[-1], timelines, size, unit)
    handles = _legend(timelines)
    legend = figure.legend(
        handles=handles, loc="outside lower left", ncols=5 if len(handles) <= 5 else 4
    )
    figure.draw_without_rendering()
    for axes, timeline in zip(panels, timelines, strict=True):
        _numbers(axes, timeline)
    if not any(axes.texts for axes in panels):
        for part in (legend.legend_handles[-1], legend.get_texts()[-1]):
            part.set_visible(False)
    return figure


def _check(timelines: Sequence[Timeline], titles: Sequence[str] | None) -> None:
    if not timelines:
        raise ConfigError("gantt draws 1 timeline or more, got 0; pass simulate(...)'s result")
    if titles is not None and len(titles) != len(timelines):
        raise ConfigError(
            f"gantt needs a title per timeline: {len(timelines)} timelines, {len(titles)} titles; "
            f"leave titles out to name the panels by their origin"
        )


def _time_unit(longest: float) -> tuple[float, str]:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if longest >= size:
            return size, unit
    return (1e-6, "µs") if longest else (1.0, "s")


def _panel(axes: "Axes", timeline: Timeline, name: str) -> None:
    axes.set_title(
        f"{name}: {timeline.bubble_fraction:.1%} of device-time idle, "
        f"done after {format_seconds(timeline.makespan)}"
    )
    devices = range(timeline.devices)
    axes.barh(devices, timeline.makespan, _HEIGHT, color=PALE, gid="idle", zorder=1)
    for (kind, chunk), boxes in _boxes(timeline).items():
        _draw(axes, boxes, _colour(kind, chunk), gid=f"{kind}{chunk}", edgecolor="white")
    _draw(axes, _transfers(timeline), INK, gid=TRANSFER, edgecolor=INK)
    step = 1 + timeline.devices // 24
    axes.set_yticks(devices[::step], [f"device {d}" for d in devices[::step]])
    axes.set_ylim(timeline.devices - 0.42, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)


def _draw(axes: "Axes", boxes: list[tuple], colour, gid: str, edgecolor) -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
    axes.add_collection(
        PolyCollection(
            corners, facecolor=colour, edgecolor=edgecolor, linewidth=0.5, gid=gid, zorder=2
        ),
        autolim=False,
    )


def _chunks(timeline: Timeline) -> dict[tuple[int, int], int]:
    """(device, stage) -> which of its device's stages it is: 0, 1, ... ."""
    computing = np.isin(timeline.kind, COMPUTE)  # a transfer belongs to no stage
    columns = timeline.device[computing].tolist(), timeline.stage[computing].tolist()
    pairs = sorted(set(zip(*columns, strict=True)))
    count: dict[int, int] = {}
    chunks = {}
    for device, stage in pairs:
        chunks[device, stage] = count.get(device, 0)
        count[device] = chunks[device, stage] + 1
    return chunks


def _computes(timeline: Timeline) -> list[int]:
    return np.flatnonzero(np.isin(timeline.kind, COMPUTE)).tolist()


def _box(timeline: Timeline, i: int) -> tuple[float, float, float, float]:
    start, end = float(timeline.start[i]), float(timeline.end[i])
    return start, int(timeline.device[i]) - _HEIGHT / 2, end - start, _HEIGHT


def _boxes(timeline: Timeline) -> dict[tuple[str, int], list[tuple]]:
    """The boxes (x, y, width, height) of every kind and chunk."""
    chunks = _chunks(timeline)
    boxes: dict[tuple[str, int], list[tuple]] = {}
    for i in _computes(timeline):
        key = str(timeline.kind[i]), chunks[int(timeline.device[i]), int(timeline.stage[i])]
        boxes.setdefault(key, []).append(_box(timeline, i))
    return boxes


def _transfers(timeline: Timeline) -> list[tuple]:
    """Thin marks under the row of the device that receives."""
    boxes = [_box(timeline, i) for i in np.flatnonzero(timeline.kind == TRANSFER).tolist()]
    return [(x, y + h + 0.03, w, 0.08) for x, y, w, h in boxes]


def _colour(kind: str, chunk: int):
    return lighter(_KINDS[kind][1], min(0.7, 0.4 * chunk))


def _numbers(axes: "Axes", timeline: Timeline) -> None:
    chunks = _chunks(timeline)
    for i in _computes(timeline):
        kind = str(timeline.kind[i])
        chunk = chunks[int(timeline.device[i]), int(timeline.stage[i])]
        fitting_text(
            axes, _box(timeline, i), str(timeline.microbatch[i]), _colour(kind, chunk), size=8
        )


def _time_axis(axes: "Axes", timelines: Sequence[Timeline], size: float, unit: str) -> None:
    first = min((float(t.start.min(initial=0.0)) for t in timelines), default=0.0)
    last = max(max(t.makespan, float(t.end.max(initial=0.0))) for t in timelines) or size
    axes.set_xlim(min(0.0, first), last)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds / size:.6g}")
    axes.set_xlabel(f"time ({unit})")


def _legend(timelines: Sequence[Timeline]) -> list:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys = {key for timeline in timelines for key in _boxes(timeline)}
    kinds = sorted({kind for kind, _ in keys}, key=COMPUTE.index)
    handles = [Patch(color=_KINDS[kind][1], label=_KINDS[kind][0]) for kind in kinds]
    if any(chunk for _, chunk in keys):
        handles.append(Patch(color=_colour("F", 1), label="paler: a later stage of the device"))
    if any((t.kind == TRANSFER).any() for t in timelines):
        handles.append(Line2D([], [], color=INK, linewidth=2, label="transfer to the device"))
    handles.append(Patch(color=PALE, label="idle"))
    number = {"marker": "$3$", "markersize": 6, "linestyle": "none", "color": INK}
    return [*handles, Line2D([], [], **number, label="number in a box: the micro-batch")]
