"""Boxes in lanes: who did what when, simulated above measured on one time axis; tasks in slots,
layers on devices, memory over time.

device 0   F0 .. .. .. .. B0
device 1   .. F0 .. .. B0 ..
device 2   .. .. F0 B0 .. ..
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Box, Figure
from tiledask.lab.plots.style import (
    BLUE,
    GREY,
    INK,
    PALE,
    PINK,
    RED,
    SKY,
    colour_named,
    lighter,
    styled,
)
from tiledask.plan.pipelines.timeline import CAUSES, TRANSFER, Footprint, Timeline
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["KINDS", "boxes_of", "gantt", "layers_on_devices", "memory_timeline", "slots"]

KINDS = {
    "F": ("forward", colour_named("forward")),
    "B": ("backward", colour_named("backward")),
    "I": ("backward: input gradient", colour_named("backward_input")),
    "W": ("backward: weight gradient", colour_named("backward_weight")),
    "U": ("update of the weights", colour_named("update")),
    "M": ("multiply, and add up", colour_named("multiply")),
}
"""Kind of action -> its name in a legend, its colour."""


def _hatch(edge: str, hatch: str) -> draw.Look:
    return {"edgecolor": edge, "hatch": hatch, "linewidth": 0}


_GREY = "#A8A8A8"
IDLE = {
    "warm-up": (PALE, _hatch(_GREY, "/////")),
    "dependency": (PALE, _hatch(_GREY, ".....")),
    "transfer": ("#DDF0FB", _hatch(SKY, "-----")),
    "overhead": ("#F5E4ED", _hatch(PINK, "+++++")),
    "draining": (PALE, _hatch(_GREY, "\\\\\\\\\\")),
}
"""Cause -> its colour and look: grey where the order of actions is the cause, else its own."""
_OF_STAGES = ("warm-up", "dependency", "draining")


@styled
def gantt(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    title: str = "Who computes when",
    between: tuple[float, float] | None = None,
    numbers: bool = True,
    causes: bool = True,
    lanes: Sequence[str] | None = None,
) -> Figure:
    """A figure with one panel per timeline, one row per device, all on one time axis.

    The number in a box is the micro-batch, or of a product the panel, where there is room for it;
    idle time is hatched by its cause; at the right of a row is the idle share of its device, unless
    all are idle equally long.
    ``titles`` name the panels; without them a timeline's origin does. ``between``: only these
    seconds are drawn, for a closer look. Without ``numbers`` the boxes stay empty. Without
    ``causes`` what other stages and the order cause is one plain grey. ``lanes`` name the rows;
    default: device 0, device 1, ... A forward and a backward that a device does at once share the
    height of its row.
    """
    if not timelines or len(titles or timelines) != len(timelines):
        raise ConfigError(
            f"gantt draws 1 timeline or more, with a title for each or none at all; got "
            f"{len(timelines)} timelines and {len(titles or ())} titles"
        )
    first = min(0.0, *(float(t.start.min(initial=0.0)) for t in timelines))
    last = max(max(t.makespan, float(t.end.max(initial=0.0))) for t in timelines) or 1.0
    whole = between is None or (between[0] <= first and between[1] >= last)
    first, last = between or (first, last)
    panels, devices = [], max(timeline.devices for timeline in timelines)
    lanes = lanes or [f"device {d}" for d in range(devices)]
    for name, timeline in zip(titles or [t.origin for t in timelines], timelines, strict=True):
        idle = f"{100 * timeline.bubble_fraction:.1f} % of device-time idle"
        share = idle if whole else "a part"
        heading = f"{name}: {share}, done after {format_seconds(timeline.makespan)}"
        panels.append((heading, lanes[: timeline.devices], boxes_of(timeline, causes)))
    entries = _legend_of([box for *_, drawn in panels for box in drawn], (last - first) / 1000)
    if numbers:
        panel = all((t.kind[t.computes] == "M").all() for t in timelines)
        words = f"number in a box: the {'panel' if panel else 'micro-batch'}"
        entries.append(draw.line_entry(words, marker="$3$", markersize=6, linestyle="none"))
    step = 1 + devices // 24
    look: draw.Look = {"pitch": 0.34 if devices < 12 else 0.22, "step": step}
    figure, every = draw.lane_figure(
        title, panels, entries, xlabel="time", across=(first, last), **look
    )
    for axes, timeline in zip(every, timelines, strict=True):
        if whole:
            _idle_shares(axes, timeline, step)
    if numbers:
        figure.lay_out()
        there = [_numbers(axes, drawn) for axes, (*_, drawn) in zip(every, panels, strict=True)]
        if not any(there):
            figure.legends[0].legend_handles[-1].set_visible(False)
            figure.legends[0].get_texts()[-1].set_text("too narrow to number")
    return figure


def _idle_shares(axes: Axes, timeline: Timeline, step: int) -> None:
    """At the right of each row, unless they are alike: then the panel's title has it."""
    whole = timeline.makespan or 1.0
    shares = [f"{100 * max(0.0, idle / whole):.1f} % idle" for idle in timeline.idle_per_device]
    if len(set(shares)) > 1:
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(0, timeline.devices, step), shares[::step])
        right.tick_params(axis="y", length=0, labelsize=8)
        right.spines[:].set_visible(False)


def _rows(timeline: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(getattr(timeline, name).tolist() for name in names), strict=True)


# -- boxes ---------------------------------------------------------------------------------------


def boxes_of(timeline: Timeline, causes: bool = True) -> list[Box]:
    """A timeline as boxes in the lanes of its devices: pieces of idle time, named by their cause;
    actions, by kind and by which of its device's stages it is, as in "F0"; transfers, thin, under
    the lane of the device that receives.

    Of a forward and a backward that a device does at once each has half of the lane. Without
    ``causes`` what stages cause is "idle".
    """
    made, transfers = list[Box](), list[Box]()
    for device, code, start, end in _rows(timeline.idle_time, "device", "code", "start", "end"):
        cause = list(CAUSES)[code]
        colour, look = IDLE[cause]
        if not causes and cause in _OF_STAGES:  # an edge, so that no seam is seen between two
            cause, colour, look = "idle", PALE, {"edgecolor": PALE, "linewidth": 0.3}
        made.append(draw.span(device, start, end, colour, gid=cause, look=look))
    stages: list[set[int]] = [set() for _ in range(timeline.devices)]
    rows = [*_rows(timeline, "kind", "device", "stage", "microbatch", "start", "end")]
    for kind, d, stage, *_ in rows:
        stages[d] |= {stage} if kind != TRANSFER and stage >= 0 else set()
    chunks = [{stage: n for n, stage in enumerate(sorted(mine))} for mine in stages]
    last = -1, 0.0, 0.0
    for kind, d, stage, number, start, end in rows:
        if kind == TRANSFER:
            look = {"edgecolor": INK, "linewidth": 0.5}
            under = d + draw.HEIGHT / 2 + 0.07
            transfers.append(draw.span(under, start, end, INK, gid=kind, height=0.08, look=look))
            continue
        chunk = chunks[d].get(stage, 0)  # an update is of no stage
        about = _colour_of(kind, chunk), f"{number}", f"{kind}{chunk}"
        made.append(draw.span(d, start, end, *about, look={"linewidth": 0.3}))
        if d == last[0] and start < (last[1] + last[2]) / 2:
            for n in (-2, -1):
                x, _, wide, _ = made[n].at
                half = -draw.HEIGHT / 2 if made[n].gid[0] == "F" else 0.0
                made[n] = made[n]._replace(at=(x, d + half, wide, draw.HEIGHT / 2))
        last = d, start, end
    return made + transfers


def _colour_of(kind: str, chunk: int) -> tuple[float, float, float]:
    """The colour of an action: by its kind, and paler for a later stage of its device."""
    return lighter(KINDS[kind][1], min(0.7, 0.4 * chunk))


def _legend_of(boxes: Sequence[Box], least: float) -> list[Any]:
    """What a legend says of actions, and of transfers and idle time longer than ``least``: what is
    wider than a pixel can be seen, and needs words."""
    made = {box.gid for box in boxes if box.words and box.at[2] > 0}
    kinds = [kind for kind in KINDS if any(gid[0] == kind for gid in made)]
    entries = [draw.patch_entry(*KINDS[kind]) for kind in kinds]
    if any(gid[1:] != "0" for gid in made):
        words = "paler: a later stage of the device"
        entries.append(draw.patch_entry(words, _colour_of(kinds[0], 1)))
    if any(box.gid == TRANSFER for box in boxes):
        entries.append(draw.line_entry("transfer to the device", linewidth=2))
    seen = {box.gid for box in boxes if box.at[2] > least}
    if "idle" in seen:
        entries.append(draw.patch_entry("idle", PALE, linewidth=0))
    return entries + [
        draw.patch_entry(f"idle: {CAUSES[cause]}", IDLE[cause][0], **IDLE[cause][1])
        for cause in CAUSES
        if cause in seen
    ]


def _numbers(axes: Axes, boxes: Sequence[Box]) -> bool:
    """Micro-batches in the boxes that are not too narrow, all of a kind in one size, as large as
    fits most of these. Whether there are any."""
    (x, y), (first, last) = draw.points_per_unit(axes), axes.get_xlim()
    inside = [box for box in boxes if first <= box.at[0] and box.at[0] + box.at[2] <= last]
    for kind in KINDS:
        mine = [box for box in inside if box.words and box.gid[0] == kind]
        longest = max((f"{box.words}" for box in mine), key=len, default="")
        sizes = [draw.size_of_words(longest, box.at[2] * x, box.at[3] * y) for box in mine]
        room = {n: size for n, size in enumerate(sizes) if size >= 6}
        if room:
            size = min(8.0, float(np.median([*room.values()])))
            draw.write_in(axes, [mine[n] for n in room], size)
    return bool(axes.texts)


# -- tasks ---------------------------------------------------------------------------------------

Lanes = Mapping[str, Sequence[tuple[str, float, float]]]
"""Of each lane what its tasks are called, when they begin and when they end; where these are one,
a moment."""


@styled
def slots(
    tasks: Lanes | Mapping[str, Lanes],
    *,
    title: str = "Which task is where",
    xlabel: str = "time (s)",
) -> Figure:
    """A figure with a lane for each slot, a box for each of its tasks, in the colour of its name,
    and a red line with its name for each moment. A slot that has no task is idle: grey, as on the
    dashboard. Without ``xlabel`` times say the order alone, and the axis has no numbers.
    ``{title: lanes}`` draws a panel for each, one above the other.

    >>> len(slots({"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": []}).axes)
    1
    """
    nested = bool(tasks) and all(isinstance(lanes, Mapping) for lanes in tasks.values())
    given: dict[str, Any] = dict(tasks) if nested else {"": tasks}
    stays = [stay for lanes in given.values() for each in lanes.values() for stay in each]
    if not stays or any(end < begin for _, begin, end in stays):
        raise ConfigError(
            f"slots draws 1 task or more that ends after it begins, got {stays}; "
            f"pass {{'slot 0': [('nap', 0, 0.2)]}}"
        )
    last, panels = max(end for *_, end in stays), []
    for name, lanes in given.items():
        boxes = []
        for row, (slot, each) in enumerate(lanes.items()):
            if xlabel and slot.startswith("slot"):
                boxes.append(draw.span(row, 0, last, PALE, gid="idle"))
            for task, begin, end in each:
                if end > begin:
                    colour = PALE if task == "idle" else colour_named(task)
                    boxes.append(draw.span(row, begin, end, colour, task, task))
        panels.append((name, [*lanes], boxes))
    figure, every = draw.lane_figure(title, panels, xlabel=xlabel, across=(0, 1.02 * last))
    for axes, lanes in zip(every, given.values(), strict=True):
        if not xlabel:
            axes.set_xticks([])
        for row, each in enumerate(lanes.values()):
            for task, begin, _ in (stay for stay in each if stay[1] == stay[2]):
                axes.vlines(begin, row - 0.45, row + 0.45, RED, linewidth=2.5, zorder=3)
                draw.note(axes, (begin, row), task, color=RED)
    return draw.write(figure, zip(every, (boxes for *_, boxes in panels), strict=True))


# -- layers --------------------------------------------------------------------------------------


@styled
def layers_on_devices(
    assignments: Mapping[str, Sequence[int]],
    *,
    title: str = "Which device holds which layer",
    unit: str = "layer",
    first: int = 1,
) -> Figure:
    """A figure with one panel per assignment (the device of each layer, in order), one lane per
    device of any of them, layers counted from ``first``, a line from layer to layer, red where it
    changes devices. ``unit`` is what the words call a layer, such as "stage"."""
    longest = max(map(len, assignments.values()))
    lanes = [f"device {d}" for d in range(1 + max(map(max, assignments.values())))]
    panels, neutral = [], lighter(GREY, 0.6)
    for name, devices in assignments.items():
        boxes = [
            draw.span(device, at - 0.42, at + 0.42, neutral, f"{at + first}")
            for at, device in enumerate(devices)
        ]
        crossings = sum(a != b for a, b in pairwise(devices))
        panels.append((f"{name}: {crossings} crossing{'s' * (crossings != 1)}", lanes, boxes))
    layer = draw.patch_entry(f"a {unit} and its number", neutral)
    lines = {
        True: draw.line_entry("crossing: activations move to another device", RED, linewidth=2),
        False: draw.line_entry("stays on the device", GREY, linewidth=1),
    }
    steps = {a != b for devices in assignments.values() for a, b in pairwise(devices)}
    entries = [layer, *(entry for moves, entry in lines.items() if moves in steps)]
    across = -0.7, longest - 0.3
    figure, every = draw.lane_figure(title, panels, entries, xlabel=unit, across=across)
    for axes, devices in zip(every, assignments.values(), strict=True):
        for at, ends in enumerate(pairwise(devices)):
            colour, width = (RED, 2) if len({*ends}) > 1 else (GREY, 1)
            axes.plot((at, at + 1), ends, color=colour, linewidth=width, zorder=1)
    ticks = range(0, longest, 1 + longest // 30)
    every[-1].set_xticks(ticks, [f"{at + first}" for at in ticks])
    return draw.write(figure, zip(every, (boxes for *_, boxes in panels), strict=True))


# -- memory --------------------------------------------------------------------------------------


@styled
def memory_timeline(
    held: Mapping[str, Footprint],
    *,
    unit: str = "bytes",
    title: str = "Memory over time",
) -> Figure:
    """A figure with a panel for each Footprint and a row per device, filled as high as what it
    holds, on one scale.

    ``unit``: "bytes", or the word for what was counted: "activations".
    """
    words = format_bytes if unit == "bytes" else "{:.4g}".format
    said = "" if unit == "bytes" else f" {unit}"
    top, panels = max(footprint.peak[0] for footprint in held.values()) or 1, []
    end, colour = max(f.makespan for f in held.values()), lighter(BLUE, 0.4)
    for name, footprint in held.items():
        boxes = list[Box]()
        for device, (times, sizes) in enumerate(footprint.steps):
            ends = pairwise([*times.tolist(), footprint.makespan])
            for (start, stop), size in zip(ends, sizes.tolist(), strict=True):
                at = (start, device + 0.45 - 0.9 * size / top, stop - start, 0.9 * size / top)
                look = {"edgecolor": colour, "linewidth": 0.3}  # or seams are seen
                boxes += [Box(at, colour, gid="held", look=look)] * (stop > start and size > 0)
        names = [f"device {d}: max {words(peak)}" for d, peak in enumerate(footprint.peaks)]
        most, where, time = footprint.peak
        first = f"first on device {where}, after {format_seconds(time)}"
        panels.append((f"{name}: at most {words(most)}{said}, {first}", names, boxes))
    entries = [draw.patch_entry(f"{unit} held; max: the most at once", colour)]
    across = 0.0, end or 1.0
    return draw.lane_figure(title, panels, entries, xlabel="time", across=across)[0]
