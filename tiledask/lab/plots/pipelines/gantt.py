"""Gantt charts: who did what when, simulated above measured on one time axis."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    INK,
    PALE,
    PINK,
    RED,
    SKY,
    canvas,
    colour_named,
    lighter,
    styled,
)
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.timeline import COMPUTE, TRANSFER, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["IDLE", "KINDS", "IdleLook", "chunks_of", "colour_of", "gantt", "kinds_shown"]

KINDS = {
    "F": ("forward", colour_named("forward")),
    "B": ("backward", colour_named("backward")),
    "I": ("backward: input gradient", colour_named("backward_input")),
    "W": ("backward: weight gradient", colour_named("backward_weight")),
    "U": ("update of the weights", colour_named("update")),
    "M": ("multiply, and add up", colour_named("multiply")),
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
_OF_STAGES = ("warm-up", "dependency", "imbalance", "draining")


class _Action(NamedTuple):
    """What a device computes, as it is drawn."""

    kind: str
    chunk: int
    microbatch: int
    end: float
    box: draw.Box


@styled
def gantt(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    title: str = "Who computes when",
    between: tuple[float, float] | None = None,
    numbers: bool = True,
    causes: bool = True,
    lanes: Sequence[str] | None = None,
    path: bool = False,
) -> "Figure":
    """A figure with one panel per timeline, one row per device, all on one time axis.

    The number in a box is the micro-batch, or of a product the panel, where there is room for it;
    idle time is hatched by its cause; at the right of a row is the idle share of its device, unless
    all are idle equally long.
    ``titles`` name the panels; without them a timeline's origin does. ``between``: only these
    seconds are drawn, for a closer look. Without ``numbers`` the boxes stay empty. Without
    ``causes`` what other stages and the order cause is one plain grey. ``lanes`` name the rows;
    default: device 1, device 2, ... With ``path`` the chain of actions that decided the end of a
    simulation is drawn as a line. A forward and a backward that a device does at once share the
    height of its row.
    """
    _check(timelines, titles, between, path)
    rows = [timeline.devices for timeline in timelines]
    pitch = 0.34 if max(rows) < 12 else 0.22
    actions = [_actions(timeline) for timeline in timelines]
    begins = min(0.0, *(float(t.start.min(initial=0.0)) for t in timelines))
    ends = max(max(t.makespan, float(t.end.max(initial=0.0))) for t in timelines)
    first, last = between or (begins, ends or 1.0)
    entries = _legend(timelines, causes, (first, last), path)[: None if numbers else -1]
    letters = sum(len(str(entry.get_label())) for entry in entries)
    columns = 5 if len(entries) <= 5 and letters < 100 else 3
    lines = -(-len(entries) // columns)
    figure = canvas(0.85 + 0.2 * lines + sum(0.45 + pitch * n for n in rows), title)
    panels = draw.stacked_axes(figure, rows, sharex=True)
    names = titles or [timeline.origin for timeline in timelines]
    for axes, timeline, done, name in zip(panels, timelines, actions, names, strict=True):
        _panel(axes, timeline, done, name, causes, lanes, between)
        if path:
            _path(axes, timeline)
    draw.time_ticks(panels[-1], first, last)
    below = draw.legend(figure, entries, columns)
    figure.lay_out()
    for axes, done in zip(panels, actions, strict=True):
        # white edges that leave most of a narrow box its colour
        x, _ = draw.points_per_unit(axes)
        for drawn in axes.collections:
            widths = [np.ptp(path.vertices[:, 0]) for path in drawn.get_paths()]
            if widths and drawn.get_gid() not in (TRANSFER, *IDLE):
                drawn.set_linewidth(min(0.5, 0.12 * x * float(np.median(widths))))
        if numbers:
            _numbers(axes, [a for a in done if first <= a.box[0] and a.end <= last])
    if numbers and not any(axes.texts for axes in panels):
        below.legend_handles[-1].set_visible(False)
        below.get_texts()[-1].set_text("too narrow to number; see between=")
    return figure


def _check(
    timelines: Sequence[Timeline],
    titles: Sequence[str] | None,
    between: tuple[float, float] | None,
    path: bool,
) -> None:
    if not timelines or (titles is not None and len(titles) != len(timelines)):
        raise ConfigError(
            f"gantt draws 1 timeline or more, with a title for each or none at all; got "
            f"{len(timelines)} timelines and {len(titles or ())} titles"
        )
    if between is not None and not between[0] < between[1]:
        raise ConfigError(
            f"between is (start, end) in seconds with start < end, got {tuple(between)!r}; "
            f"leave it out to draw everything"
        )
    if path and any(timeline.critical_path is None for timeline in timelines):
        raise ConfigError("gantt knows the path of what simulate(...) returns; leave path out")


def _panel(
    axes: "Axes",
    timeline: Timeline,
    actions: list[_Action],
    name: str,
    causes: bool,
    lanes: Sequence[str] | None,
    between: tuple[float, float] | None,
) -> None:
    done = f"done after {format_seconds(timeline.makespan)}"
    idle_share = f"{100 * timeline.bubble_fraction:.1f} % of device-time idle"
    axes.set_title(f"{name}: " + (f"a part; {done}" if between else f"{idle_share}, {done}"))
    for cause, idle in _idle_boxes(timeline, causes).items():
        draw.boxes(axes, idle, **_face(cause), gid=cause, linewidth=0)
    for kind, chunk in dict.fromkeys((a.kind, a.chunk) for a in actions):
        alike = [a.box for a in actions if (a.kind, a.chunk) == (kind, chunk)]
        draw.boxes(axes, alike, facecolor=colour_of(kind, chunk), gid=f"{kind}{chunk}")
    # a transfer is a thin mark under the row of the device that receives
    under = draw.HEIGHT / 2 + 0.03
    columns = (timeline.device, timeline.start, timeline.end)
    each = zip(*(c[timeline.kind == TRANSFER].tolist() for c in columns), strict=True)
    marks = [(start, device + under, end - start, 0.08) for device, start, end in each]
    draw.boxes(axes, marks, color=INK, gid=TRANSFER)
    step = 1 + timeline.devices // 24
    devices = range(timeline.devices)
    names = lanes[: timeline.devices] if lanes else [f"device {d + 1}" for d in devices]
    draw.lanes(axes, names, step)
    # at the right of each row how much of the time its device is idle, where they differ
    whole = timeline.makespan or 1.0
    shares = [f"{100 * max(0.0, idle / whole):.1f} % idle" for idle in timeline.idle_per_device]
    if len(set(shares)) > 1 and not between:  # else the panel's title has it
        draw.label_right(axes, devices[::step], shares[::step])


def _path(axes: "Axes", timeline: Timeline) -> None:
    """The critical path as a line through its actions, below their numbers."""
    columns = ("kind", "stage", "microbatch", "device", "start", "end")
    rows = zip(*(getattr(timeline, name).tolist() for name in columns), strict=True)
    spans = {tuple(row[:3]): row[3:] for row in rows}
    chain = [spans[a.kind, a.stage, a.microbatch] for a in timeline.critical_path.actions]
    times = [time for _, *both in chain for time in both]
    at = [device + 0.25 for device, *_ in chain for _ in range(2)]
    draw.curve(axes, times, at, INK, 1.8, gid="path")


def _face(cause: str) -> dict:
    """Of a patch of idle time."""
    if cause == "idle":
        return {"facecolor": PALE}
    colour, hatch_colour, hatch = IDLE[cause]
    return {"facecolor": colour, "edgecolor": hatch_colour, "hatch": 5 * hatch}


def _idle_boxes(timeline: Timeline, causes: bool = True) -> dict[str, list[draw.Box]]:
    """The boxes of every cause there is; without ``causes`` those of the stages are all "idle"."""
    found, made = timeline.idle_time, {}
    columns = (found.device, found.code, found.start, found.end)
    for device, code, start, end in zip(*(c.tolist() for c in columns), strict=True):
        box = start, device - draw.HEIGHT / 2, end - start, draw.HEIGHT
        cause = list(CAUSES)[code]
        if causes or cause not in _OF_STAGES:
            made.setdefault(cause, []).append(box)
            continue
        plain = made.setdefault("idle", [])
        if plain and plain[-1][1] == box[1] and np.isclose(sum(plain[-1][::2]), start):
            box = plain[-1][0], box[1], end - plain.pop()[0], draw.HEIGHT  # one box, no seam
        plain.append(box)
    return made


def chunks_of(timeline: Timeline) -> dict[tuple[int, int], int]:
    """(device, stage) -> which of its device's stages it is: 0, 1, ... ."""
    computing = np.isin(timeline.kind, COMPUTE)  # a transfer belongs to no stage
    columns = timeline.device[computing].tolist(), timeline.stage[computing].tolist()
    pairs = sorted(set(zip(*columns, strict=True)))
    real = [pair for pair in pairs if pair[1] >= 0]
    # the last one written is the first of its device
    first = {device: i for i, (device, _) in reversed([*enumerate(real)])}
    chunks = {pair: i - first[pair[0]] for i, pair in enumerate(real)}
    return {pair: chunks.get(pair, 0) for pair in pairs}  # what is of no stage is none of them


def _actions(timeline: Timeline) -> list[_Action]:
    """What the devices compute. A forward that its device does at once with a backward has the
    upper half of the row, that backward the lower one."""
    chunks = chunks_of(timeline)
    rows = np.flatnonzero(np.isin(timeline.kind, COMPUTE))
    device, start, end = (getattr(timeline, name)[rows] for name in ("device", "start", "end"))
    shared = np.minimum(end[:-1], end[1:]) - start[1:]
    shorter = np.minimum(end[:-1] - start[:-1], end[1:] - start[1:])
    at_once = (device[:-1] == device[1:]) & (shared > 0.5 * shorter)
    halved = np.zeros(len(rows), bool)
    halved[:-1] |= at_once
    halved[1:] |= at_once
    names = ("kind", "device", "stage", "microbatch", "start", "end")
    spans = zip(*(getattr(timeline, name)[rows].tolist() for name in names), strict=True)
    made = []
    for (kind, d, stage, m, start, end), half in zip(spans, halved, strict=True):
        top, height = d - draw.HEIGHT / 2, draw.HEIGHT / 2 if half else draw.HEIGHT
        lower = half and kind != "F"
        box = start, top + (height if lower else 0), end - start, height
        made.append(_Action(kind, chunks[d, stage], m, end, box))
    return made


def colour_of(kind: str, chunk: int) -> tuple[float, float, float]:
    """The colour of an action: by its kind, and paler for a later stage of its device."""
    return lighter(KINDS[kind][1], min(0.7, 0.4 * chunk))


def kinds_shown(*timelines: Timeline) -> list[tuple[str, Any]]:
    """What a legend says of the actions of ``timelines``: (words, their colour). Actions that take
    no time are not seen, and not named."""
    seen = {kind for t in timelines for kind in t.kind[t.end > t.start].tolist()}
    kinds = [kind for kind in COMPUTE if kind in seen]
    shown: list[tuple[str, Any]] = [KINDS[kind] for kind in kinds]
    if kinds and any(c for timeline in timelines for c in chunks_of(timeline).values()):
        shown.append(("paler: a later stage of the device", colour_of(kinds[0], 1)))
    return shown


_SIZES = (
    *((size, False) for size in (8, 7, 6.5, 6)),
    *((size, True) for size in (7, 6.5, 6, 5.5, 5)),
)
"""(points, turned by a quarter): how numbers are written, best first."""


def _numbers(axes: "Axes", actions: list[_Action]) -> None:
    """Micro-batches in their boxes, all of a kind in one size, as large as fits most of them."""
    x, y = draw.points_per_unit(axes)
    for kind in dict.fromkeys(action.kind for action in actions):
        mine = [action for action in actions if action.kind == kind]
        wide, tall = (float(np.median([action.box[axis] for action in mine])) for axis in (2, 3))
        digits = len(str(max(action.microbatch for action in mine)))
        fit = (how for how in _SIZES if _fits(digits, *how, wide * x, tall * y))
        size, turned = next(fit, (0, False))
        look = {"va": "center", "rotation": 90} if turned else {"va": "center_baseline"}
        write = partial(draw.text_in, axes, size=size, clip_on=True, gid="in-box", **look)
        for action in mine:
            number, (*_, width, height) = str(action.microbatch), action.box
            if size and _fits(len(number), size, turned, width * x, height * y):
                write(action.box, number, colour_of(kind, action.chunk))


def _fits(digits: int, size: float, turned: bool, wide: float, tall: float) -> bool:
    """Whether a number fits into a box of so many points; a digit is 0.64 em wide, 0.73 em tall."""
    along, across = size * (0.64 * digits + 0.25), 0.9 * size + 0.35
    return (across <= wide and along <= tall) if turned else (along <= wide and size <= tall)


def _legend(
    timelines: Sequence[Timeline], by_cause: bool, shown: tuple[float, float], path: bool
) -> list:
    entries = [draw.patch_entry(*shown) for shown in kinds_shown(*timelines)]
    if any((timeline.kind == TRANSFER).any() for timeline in timelines):
        entries.append(draw.line_entry("transfer to the device", linewidth=2))
    first, last = shown
    causes = {
        cause
        for timeline in timelines
        for cause, idle in _idle_boxes(timeline, by_cause).items()
        # what is narrower than a pixel cannot be seen
        if any(min(x + w, last) - max(x, first) > (last - first) / 1000 for x, _, w, _ in idle)
    }
    if path:
        entries.append(draw.line_entry("the longest path", linewidth=1.8))
    if "idle" in causes:
        entries.append(draw.patch_entry("idle", PALE, linewidth=0))
    for cause, words in CAUSES.items():
        if cause in causes:
            entries.append(draw.patch_entry(f"idle: {words}", PALE, linewidth=0, **_face(cause)))
    panels = all((t.kind[t.code < len(COMPUTE)] == "M").all() for t in timelines)
    return [*entries, draw.number_entry("the panel" if panels else "the micro-batch")]
