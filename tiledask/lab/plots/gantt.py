"""Gantt charts: who did what when, simulated above measured on one time axis."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure
from tiledask.lab.plots.style import (
    GREY,
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

    @property
    def face(self) -> dict[str, Any]:
        """Of a patch of idle time, as matplotlib names it."""
        return {"edgecolor": self.hatch_colour, "hatch": 5 * self.hatch, "linewidth": 0}


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
_SIZES = (
    *((size, False) for size in (8, 7, 6.5, 6)),
    *((size, True) for size in (7, 6.5, 6, 5.5, 5)),
)
"""(points, turned by a quarter): how numbers are written, best first."""


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
    begins = min(0.0, *(float(t.start.min(initial=0.0)) for t in timelines))
    ends = max(max(t.makespan, float(t.end.max(initial=0.0))) for t in timelines)
    first, last = between or (begins, ends or 1.0)
    idle = [_idle(timeline, causes) for timeline in timelines]
    actions = [_actions(timeline) for timeline in timelines]
    # what is narrower than a pixel cannot be seen, and needs no words
    seen = {
        each.gid
        for pieces in idle
        for each in pieces
        if min(each.at[0] + each.at[2], last) - max(each.at[0], first) > (last - first) / 1000
    }
    entries = _entries(timelines, seen, path, numbers)
    columns = 5 if len(entries) <= 5 and sum(len(e.get_label()) for e in entries) < 100 else 3
    pitch = 0.34 if max(rows) < 12 else 0.22
    height = 0.85 + 0.2 * -(-len(entries) // columns) + sum(0.45 + pitch * n for n in rows)
    figure = canvas(height, title)
    panels = draw.stacked_axes(figure, rows, sharex=True)
    names = titles or [timeline.origin for timeline in timelines]
    for n, (axes, timeline, name) in enumerate(zip(panels, timelines, names, strict=True)):
        _panel(axes, timeline, idle[n] + actions[n], lanes, between)
        shares = f"{100 * timeline.bubble_fraction:.1f} % of device-time idle"
        done = f"done after {format_seconds(timeline.makespan)}"
        axes.set_title(f"{name}: {'a part; ' if between else f'{shares}, '}{done}")
        if path:
            _path(axes, timeline)
    draw.time_ticks(panels[-1], first, last)
    below = draw.legend(figure, entries, columns)
    figure.lay_out()
    for axes, done in zip(panels, actions, strict=True):
        _thin_edges(axes)
        if numbers:
            _numbers(axes, [a for a in done if first <= a.at[0] and a.at[0] + a.at[2] <= last])
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
        raise ConfigError(f"between is (start, end), start < end, got {tuple(between)!r}")
    if path and any(timeline.critical_path is None for timeline in timelines):
        raise ConfigError("gantt knows the path of what simulate(...) returns; leave path out")


def _thin_edges(axes: "Axes") -> None:
    """White edges that leave most of a narrow box its colour."""
    x, _ = draw.points_per_unit(axes)
    for drawn in axes.collections:
        widths = [np.ptp(each.vertices[:, 0]) for each in drawn.get_paths()]
        if drawn.get_gid()[0] in KINDS:
            drawn.set_linewidth(min(0.5, 0.12 * x * float(np.median(widths))))


def _panel(
    axes: "Axes",
    timeline: Timeline,
    drawn: list[Box],
    lanes: Sequence[str] | None,
    between: tuple[float, float] | None,
) -> None:
    """The rows of a timeline, and at their right how long each device idles, if that differs."""
    # a transfer is a thin mark under the row of the device that receives
    under = draw.HEIGHT / 2 + 0.07
    columns = (timeline.device, timeline.start, timeline.end)
    each = zip(*(c[timeline.kind == TRANSFER].tolist() for c in columns), strict=True)
    look: draw.Look = {"edgecolor": INK, "linewidth": 0.5}
    marks = [
        draw.span(d + under, a, b, INK, gid=TRANSFER, height=0.08, look=look) for d, a, b in each
    ]
    step = 1 + timeline.devices // 24
    names = lanes[: timeline.devices] if lanes else _devices(timeline)
    draw.lanes(axes, names, drawn + marks, step)
    whole = timeline.makespan or 1.0
    shares = [f"{100 * max(0.0, idle / whole):.1f} % idle" for idle in timeline.idle_per_device]
    if len(set(shares)) > 1 and not between:  # else the panel's title has it
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(0, timeline.devices, step), shares[::step])
        right.tick_params(axis="y", length=0, labelsize=7.5, labelcolor=GREY)
        right.spines[:].set_visible(False)


def _devices(timeline: Timeline) -> list[str]:
    return [f"device {d + 1}" for d in range(timeline.devices)]


def _path(axes: "Axes", timeline: Timeline) -> None:
    """The critical path as a line through its actions, below their numbers."""
    columns = ("kind", "stage", "microbatch", "device", "start", "end")
    rows = zip(*(getattr(timeline, name).tolist() for name in columns), strict=True)
    spans = {tuple(row[:3]): row[3:] for row in rows}
    chain = [spans[a.kind, a.stage, a.microbatch] for a in timeline.critical_path.actions]
    times = [time for _, *both in chain for time in both]
    at = [device + 0.25 for device, *_ in chain for _ in range(2)]
    axes.plot(times, at, color=INK, linewidth=1.8, gid="path")


def _idle(timeline: Timeline, causes: bool) -> list[Box]:
    """A box for each piece; without ``causes`` those of the stages are all "idle", seamless."""
    found, made = timeline.idle_time, []
    columns = (found.device, found.code, found.start, found.end)
    for device, code, start, end in zip(*(c.tolist() for c in columns), strict=True):
        cause = list(CAUSES)[code]
        if causes or cause not in _OF_STAGES:
            look = IDLE[cause]
            made.append(draw.span(device, start, end, look.colour, gid=cause, look=look.face))
            continue
        last = next((each for each in reversed(made) if each.gid == "idle"), None)
        row = device - draw.HEIGHT / 2
        if last and last.at[1] == row and np.isclose(last.at[0] + last.at[2], start):
            made.remove(last)
            start = last.at[0]
        made.append(draw.span(device, start, end, PALE, gid="idle", look={"linewidth": 0}))
    return made


def chunks_of(timeline: Timeline) -> dict[tuple[int, int], int]:
    """(device, stage) -> which of its device's stages it is: 0, 1, ... ."""
    computing = np.isin(timeline.kind, COMPUTE)  # a transfer belongs to no stage
    columns = timeline.device[computing].tolist(), timeline.stage[computing].tolist()
    chunks: dict[tuple[int, int], int] = {}
    stages: dict[int, int] = {}
    for device, stage in sorted(set(zip(*columns, strict=True))):
        chunks[device, stage] = stages.get(device, 0)
        if stage >= 0:  # what is of no stage is none of them
            stages[device] = chunks[device, stage] + 1
    return chunks


def _actions(timeline: Timeline) -> list[Box]:
    """What the devices compute. A forward that its device does at once with a backward has the
    upper half of the row, that backward the lower one."""
    chunks = chunks_of(timeline)
    rows = np.flatnonzero(np.isin(timeline.kind, COMPUTE))
    device, start, end = (getattr(timeline, name)[rows] for name in ("device", "start", "end"))
    shared = np.minimum(end[:-1], end[1:]) - start[1:]
    shorter = np.minimum(end[:-1] - start[:-1], end[1:] - start[1:])
    at_once = (device[:-1] == device[1:]) & (shared > 0.5 * shorter)
    halved = np.r_[at_once, False] | np.r_[False, at_once]
    names = ("kind", "device", "stage", "microbatch", "start", "end")
    spans = zip(*(getattr(timeline, name)[rows].tolist() for name in names), strict=True)
    made = []
    for (kind, d, stage, number, a, b), half in zip(spans, halved.tolist(), strict=True):
        colour, gid = colour_of(kind, chunks[d, stage]), f"{kind}{chunks[d, stage]}"
        off = draw.HEIGHT / 4 * (-1 if kind == "F" else 1) if half else 0.0
        height = draw.HEIGHT / 2 if half else draw.HEIGHT
        made.append(draw.span(d + off, a, b, colour, str(number), gid, height=height))
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


def _numbers(axes: "Axes", actions: list[Box]) -> None:
    """Micro-batches in their boxes, all of a kind in one size, as large as fits most of them."""
    x, y = draw.points_per_unit(axes)
    for kind in dict.fromkeys(action.gid[0] for action in actions):
        mine = [action for action in actions if action.gid[0] == kind]
        wide, tall = (float(np.median([action.at[axis] for action in mine])) for axis in (2, 3))
        digits = max(len(action.words) for action in mine)
        fit = (how for how in _SIZES if _fits(digits, *how, wide * x, tall * y))
        size, turned = next(fit, (0, False))
        look: draw.Look = {"va": "center", "rotation": 90} if turned else {"va": "center_baseline"}
        look |= {"clip_on": True, "gid": "in-box"}
        for at, colour, number, *_ in mine if size else ():
            if _fits(len(number), size, turned, at[2] * x, at[3] * y):
                draw.text_in(axes, at, number, colour, size, **look)


def _fits(digits: int, size: float, turned: bool, wide: float, tall: float) -> bool:
    """Whether a number fits into a box of so many points; a digit is 0.64 em wide, 0.73 em tall."""
    along, across = size * (0.64 * digits + 0.25), 0.9 * size + 0.35
    return (across <= wide and along <= tall) if turned else (along <= wide and size <= tall)


def _entries(
    timelines: Sequence[Timeline], causes: set[str], path: bool, numbers: bool
) -> list[Any]:
    """Of the legend; that of the numbers last."""
    entries: list[Any] = [draw.patch_entry(*shown) for shown in kinds_shown(*timelines)]
    if any((timeline.kind == TRANSFER).any() for timeline in timelines):
        entries.append(draw.line_entry("transfer to the device", linewidth=2))
    if path:
        entries.append(draw.line_entry("the longest path", linewidth=1.8))
    if "idle" in causes:
        entries.append(draw.patch_entry("idle", PALE, linewidth=0))
    for cause in (cause for cause in CAUSES if cause in causes):
        look = IDLE[cause]
        entries.append(draw.patch_entry(f"idle: {CAUSES[cause]}", look.colour, **look.face))
    if numbers:
        panels = all((t.kind[t.code < len(COMPUTE)] == "M").all() for t in timelines)
        what = f"number in a box: the {'panel' if panels else 'micro-batch'}"
        entries.append(draw.line_entry(what, marker="$3$", markersize=6, linestyle="none"))
    return entries
