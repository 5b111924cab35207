"""Gantt charts: who did what when, simulated above measured on one time axis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import (
    GREY,
    INK,
    PALE,
    PINK,
    RED,
    SKY,
    canvas,
    colour_named,
    ink_on,
    lighter,
    styled,
)
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.timeline import COMPUTE, TRANSFER, Timeline
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["IDLE", "KINDS", "IdleLook", "chunks_of", "colour_of", "gantt"]

KINDS = {
    "F": ("forward", colour_named("forward")),
    "B": ("backward", colour_named("backward")),
    "I": ("backward: input gradient", colour_named("backward_input")),
    "W": ("backward: weight gradient", colour_named("backward_weight")),
    "U": ("update of the weights", colour_named("update")),
}
"""Kind of action -> its name in a legend, its colour."""


class IdleLook(NamedTuple):
    """How idle time of one cause looks."""

    colour: str
    """#rrggbb, behind the hatch."""
    hatch_colour: str
    hatch: str
    """One sign of matplotlib's; Bokeh has the same ones."""


IDLE = {
    "warm-up": IdleLook(PALE, "#A8A8A8", "/"),
    "dependency": IdleLook(PALE, "#A8A8A8", "."),
    "imbalance": IdleLook("#F9DFCC", RED, "x"),
    "transfer": IdleLook("#DDF0FB", SKY, "-"),
    "overhead": IdleLook("#F5E4ED", PINK, "+"),
    "draining": IdleLook(PALE, "#A8A8A8", "\\"),
}
"""Cause -> its look: grey where the order of actions is the cause, else a colour of its own."""
_HEIGHT = 0.72
"""Of a compute box, in rows."""


@styled
def gantt(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    title: str = "Who computes when",
    between: tuple[float, float] | None = None,
) -> "Figure":
    """A figure with one panel per timeline, one row per device, all on one time axis.

    The number in a box is the micro-batch, where there is room for it; idle time is hatched by its
    cause; at the right of a row is the idle share of its device, unless all are idle equally long.
    ``titles`` name the panels; without them a timeline's origin does. ``between``: only these
    seconds are drawn, for a closer look. A forward and a backward that a device does at once share
    the height of its row.
    """
    _check(timelines, titles, between)
    rows = [timeline.devices for timeline in timelines]
    pitch = 0.34 if max(rows) <= 12 else 0.22
    handles = _legend(timelines)
    columns = 5 if len(handles) <= 5 else 3
    lines = -(-len(handles) // columns)
    figure = canvas(0.85 + 0.2 * lines + sum(0.45 + pitch * n for n in rows), title)
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    first, last = between or _whole(timelines)
    size, unit = _time_unit(last - first)
    for axes, timeline, name in zip(
        panels, timelines, titles or [t.origin for t in timelines], strict=True
    ):
        _panel(axes, timeline, name)
    axes = panels[-1]
    axes.set_xlim(first, last)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds / size:.6g}")
    axes.set_xlabel(f"time ({unit})")
    legend = figure.legend(handles=handles, loc="outside lower left", ncols=columns)
    figure.lay_out()
    for axes, timeline in zip(panels, timelines, strict=True):
        # white edges that leave most of a narrow box its colour
        x, _ = _points(axes)
        for boxes in axes.collections:
            widths = [np.ptp(path.vertices[:, 0]) for path in boxes.get_paths()]
            if widths and boxes.get_gid() not in (TRANSFER, *IDLE):
                boxes.set_linewidth(min(0.5, 0.12 * x * float(np.median(widths))))
        _numbers(axes, timeline)
    if not any(axes.texts for axes in panels):
        legend.legend_handles[-1].set_visible(False)
        legend.get_texts()[-1].set_text("too narrow to number; see between=")
    return figure


def _check(timelines: Sequence[Timeline], titles: Sequence[str] | None, between) -> None:
    if not timelines:
        raise ConfigError("gantt draws 1 timeline or more, got 0; pass simulate(...)'s result")
    if titles is not None and len(titles) != len(timelines):
        raise ConfigError(
            f"gantt needs a title per timeline: {len(timelines)} timelines, {len(titles)} titles; "
            f"leave titles out to name the panels by their origin"
        )
    if between is not None and not between[0] < between[1]:
        raise ConfigError(
            f"between is (start, end) in seconds with start < end, got {tuple(between)!r}; "
            f"leave it out to draw everything"
        )


def _whole(timelines: Sequence[Timeline]) -> tuple[float, float]:
    """(when the first span starts, when the last one ends)."""
    first = min(float(t.start.min(initial=0.0)) for t in timelines)
    last = max(max(t.makespan, float(t.end.max(initial=0.0))) for t in timelines)
    return min(0.0, first), last or 1.0


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
    for cause, boxes in _idle_boxes(timeline).items():
        _draw(axes, boxes, **_face(cause), gid=cause, linewidth=0)
    for (kind, chunk), boxes in _boxes(timeline).items():
        _draw(axes, boxes, facecolor=colour_of(kind, chunk), gid=f"{kind}{chunk}")
    # a transfer is a thin mark under the row of the device that receives
    rows = np.flatnonzero(timeline.kind == TRANSFER).tolist()
    whole = np.zeros(len(timeline), int)
    under = [_box(timeline, i, whole) for i in rows]
    marks = [(x, y + h + 0.03, w, 0.08) for x, y, w, h in under]
    _draw(axes, marks, color=INK, gid=TRANSFER)
    step = 1 + timeline.devices // 24
    axes.set_yticks(devices[::step], [f"device {d}" for d in devices[::step]])
    axes.set_ylim(timeline.devices - 0.42, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    # at the right of each row how much of the time its device is idle, where they differ
    labelled = devices[::step]
    whole = timeline.makespan or 1.0
    shares = [f"{100 * max(0.0, idle / whole):.1f}% idle" for idle in timeline.idle_per_device]
    if len(set(shares)) == 1:  # the panel's title has it
        return
    right = axes.secondary_yaxis("right")
    right.set_yticks(labelled, [shares[d] for d in labelled])
    right.tick_params(axis="y", length=0, labelsize=7.5, labelcolor=GREY)
    right.spines[:].set_visible(False)


def _draw(axes: "Axes", boxes: list[tuple], **look) -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
    look = {"edgecolor": "white", "linewidth": 0.5, "zorder": 2} | look
    axes.add_collection(PolyCollection(corners, **look), autolim=False)


def _face(cause: str) -> dict:
    """Of a patch of idle time."""
    colour, hatch_colour, hatch = IDLE[cause]
    return {"facecolor": colour, "edgecolor": hatch_colour, "hatch": 5 * hatch}


def _idle_boxes(timeline: Timeline) -> dict[str, list[tuple]]:
    """The boxes (x, y, width, height) of every cause there is."""
    found, boxes = timeline.idle_time, {}
    columns = (found.device, found.code, found.start, found.end)
    for device, code, start, end in zip(*(c.tolist() for c in columns), strict=True):
        box = start, device - _HEIGHT / 2, end - start, _HEIGHT
        boxes.setdefault(list(CAUSES)[code], []).append(box)
    return boxes


def chunks_of(timeline: Timeline) -> dict[tuple[int, int], int]:
    """(device, stage) -> which of its device's stages it is: 0, 1, ... ."""
    computing = np.isin(timeline.kind, COMPUTE)  # a transfer belongs to no stage
    columns = timeline.device[computing].tolist(), timeline.stage[computing].tolist()
    pairs = sorted(set(zip(*columns, strict=True)))
    count: dict[int, int] = {}
    chunks = {}
    for device, stage in pairs:
        chunks[device, stage] = count.get(device, 0)
        if stage >= 0:  # what is of no stage is not the first of them
            count[device] = chunks[device, stage] + 1
    return chunks


def _computes(timeline: Timeline) -> list[int]:
    return np.flatnonzero(np.isin(timeline.kind, COMPUTE)).tolist()


def _halves(timeline: Timeline) -> np.ndarray:
    """Per span: 0 if its device does nothing else meanwhile; -1 for a forward that shares the
    device with a backward, 1 for that backward."""
    rows = np.array(_computes(timeline), int)
    device, start, end = (getattr(timeline, name)[rows] for name in ("device", "start", "end"))
    halves = np.zeros(len(timeline), int)
    shared = np.minimum(end[:-1], end[1:]) - start[1:]
    shorter = np.minimum(end[:-1] - start[:-1], end[1:] - start[1:])
    for j in np.flatnonzero((device[:-1] == device[1:]) & (shared > 0.5 * shorter)).tolist():
        for i in rows[j : j + 2].tolist():
            halves[i] = -1 if timeline.kind[i] == "F" else 1
    return halves


def _box(timeline: Timeline, i: int, halves: np.ndarray) -> tuple[float, float, float, float]:
    start, end = float(timeline.start[i]), float(timeline.end[i])
    top = int(timeline.device[i]) - _HEIGHT / 2
    if halves[i]:
        return start, top + (_HEIGHT / 2 if halves[i] > 0 else 0), end - start, _HEIGHT / 2
    return start, top, end - start, _HEIGHT


def _boxes(timeline: Timeline) -> dict[tuple[str, int], list[tuple]]:
    """The boxes (x, y, width, height) of every kind and chunk."""
    chunks, halves = chunks_of(timeline), _halves(timeline)
    boxes: dict[tuple[str, int], list[tuple]] = {}
    for i in _computes(timeline):
        key = str(timeline.kind[i]), chunks[int(timeline.device[i]), int(timeline.stage[i])]
        boxes.setdefault(key, []).append(_box(timeline, i, halves))
    return boxes


def colour_of(kind: str, chunk: int) -> tuple[float, float, float]:
    """The colour of an action: by its kind, and paler for a later stage of its device."""
    return lighter(KINDS[kind][1], min(0.7, 0.4 * chunk))


_SIZES = (
    *((size, False) for size in (8, 7, 6.5, 6)),
    *((size, True) for size in (7, 6.5, 6, 5.5, 5)),
)
"""(points, turned by a quarter): how numbers are written, best first."""


def _numbers(axes: "Axes", timeline: Timeline) -> None:
    """Micro-batches in their boxes, all of a kind in one size, as large as fits most of them."""
    x, y = _points(axes)
    left, right = axes.get_xlim()
    chunks = chunks_of(timeline)
    kinds: dict[str, list[int]] = {}
    for i in _computes(timeline):
        if left <= timeline.start[i] and timeline.end[i] <= right:
            kinds.setdefault(str(timeline.kind[i]), []).append(i)
    halves = _halves(timeline)
    for kind, rows in kinds.items():
        boxes = [_box(timeline, i, halves) for i in rows]
        wide, tall = (float(np.median([box[axis] for box in boxes])) for axis in (2, 3))
        digits = len(str(max(timeline.microbatch[i] for i in rows)))
        fit = (how for how in _SIZES if _fits(digits, *how, wide * x, tall * y))
        size, turned = next(fit, (0, False))
        for i, (at, low, width, height) in zip(rows, boxes, strict=True):
            number = str(timeline.microbatch[i])
            if size and _fits(len(number), size, turned, width * x, height * y):
                chunk = chunks[int(timeline.device[i]), int(timeline.stage[i])]
                axes.text(
                    at + width / 2,
                    low + height / 2,
                    number,
                    ha="center",
                    va="center_baseline" if not turned else "center",
                    fontsize=size,
                    rotation=90 if turned else 0,
                    color=ink_on(colour_of(kind, chunk)),
                    clip_on=True,
                    gid="in-box",
                )


def _fits(digits: int, size: float, turned: bool, wide: float, tall: float) -> bool:
    """Whether a number fits into a box of so many points; a digit is 0.64 em wide, 0.73 em tall."""
    along, across = size * (0.64 * digits + 0.25), 0.9 * size + 0.35
    return (across <= wide and along <= tall) if turned else (along <= wide and size <= tall)


def _points(axes: "Axes") -> tuple[float, float]:
    """Points per unit of data, across and down."""
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    return abs(x1 - x0) * 72 / axes.figure.dpi, abs(y1 - y0) * 72 / axes.figure.dpi


def _legend(timelines: Sequence[Timeline]) -> list:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys = {key for timeline in timelines for key in _boxes(timeline)}
    kinds = sorted({kind for kind, _ in keys}, key=COMPUTE.index)
    handles = [Patch(color=KINDS[kind][1], label=KINDS[kind][0]) for kind in kinds]
    if any(chunk for _, chunk in keys):
        handles.append(Patch(color=colour_of("F", 1), label="paler: a later stage of the device"))
    if any((t.kind == TRANSFER).any() for t in timelines):
        handles.append(Line2D([], [], color=INK, linewidth=2, label="transfer to the device"))
    causes = {cause for timeline in timelines for cause in _idle_boxes(timeline)}
    handles += [
        Patch(**_face(cause), linewidth=0, label=f"idle: {words}")
        for cause, words in CAUSES.items()
        if cause in causes
    ]
    number = {"marker": "$3$", "markersize": 6, "linestyle": "none", "color": INK}
    return [*handles, Line2D([], [], **number, label="number in a box: the micro-batch")]
