"""Figures of puzzles: the task, and what was written, also when it is wrong.

device 1   [1][2][3][4][5][6]|send      :  <- target        red: what is wrong

Each takes the puzzle's inputs and targets, an answer or None, and what makes a title of a note.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError, PartitionError, RuleError, ScheduleError
from tiledask.lab.judging.figure import titled_canvas
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.gantt import KINDS, gantt
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    GREY,
    INK,
    ORANGE,
    PALE,
    RED,
    canvas,
    colour_of_rank,
    lighter,
    styled,
)
from tiledask.lab.puzzles.choices import CHOICE, chunks_of, first_choice, run_choice
from tiledask.lab.puzzles.compositions import memory_of, read_unlimited
from tiledask.lab.puzzles.kind import Inputs, Targets
from tiledask.lab.puzzles.orders import devices_of, limits_of, order_of, run_order
from tiledask.plan.pipelines.needs import peak_in_flight, stuck
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.splitting.assignment import read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.judge import layer_ranges
from tiledask.plan.splitting.partition import stage_name
from tiledask.plan.units import format_seconds

__all__ = ["draw_choice", "draw_composition", "draw_order", "draw_partition", "label_rows"]

Titled = Callable[[str], str]
_GB = 1e9
_MOST = 400
"""Actions of an order that cannot run and is drawn as written; more than anyone reads."""
_LEGIBLE = 64
"""Actions of a device, at most, whose numbers can be read beside its layers and memory."""


def label_rows(axes: Axes, labels: Iterable[tuple[str, bool]]) -> None:
    """Name the rows, in red where something is wrong."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), [text for text, _ in labels])
    for tick, (_, wrong) in zip(axes.get_yticklabels(), labels, strict=True):
        if wrong:
            tick.set(color=RED, fontweight="bold")


def _limit_line(axes: Axes, at: float, words: str) -> None:
    """A red line at a target, and room for it."""
    axes.axvline(at, color=RED, linewidth=1.5, label=words, zorder=5, gid="target")
    low, high = axes.get_xlim()
    axes.set_xlim(low, max(high, at * 1.03))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _mark_end(axes: Axes, run: Timeline, targets: Targets, judged: bool = True) -> None:
    """The target of the makespan, where there is one; what is ``judged`` and lies behind it in a
    frame."""
    wanted = targets.get("makespan")
    if wanted is None:
        return
    _limit_line(axes, wanted, f"target: end by {format_seconds(wanted)}")
    if judged and run.makespan > wanted * (1 + 1e-9):
        box = (wanted, -0.45, run.makespan - wanted, run.devices - 0.1)
        draw.mark_box(axes, box, "end")


# -- layers on devices -----------------------------------------------------------------------------


class _Row(NamedTuple):
    """Layers behind one another."""

    name: str
    layers: Sequence[int]
    device: int | None
    """Counted from 0; None for layers that no device holds."""


@styled
def draw_partition(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """A row per stage, as wide as its time, and its memory; what breaks a rule in red."""
    shown = inputs.get("shown") if answer is None else None
    note = f"as proposed: {shown}" if shown else ""
    return _draw_layers(inputs, targets, shown or answer, title(note))


def _draw_layers(inputs: Inputs, targets: Targets, answer: Any, title: str) -> Figure:
    devices, sends = inputs["devices"], inputs.get("communication")
    rows, answered = _rows(inputs, answer)
    heights = [0.8 + 0.3 * len(rows)]
    if "memory" in inputs:
        heights.append(0.8 + 0.3 * (devices + (not answered)))
    if isinstance(sends, list):
        heights.append(1.1)
    figure = titled_canvas(0.5 + sum(heights), title)
    panels = draw.stacked_axes(figure, heights)
    boxes = {panels[0]: _time_panel(panels[0], inputs, rows, answered, targets.get("bottleneck"))}
    if "memory" in inputs:
        boxes[panels[1]] = _memory_panel(panels[1], inputs, rows, answered)
    if isinstance(sends, list):
        # what it takes to send across each cut; the cuts of the answer in another colour
        cuts = {row.layers[-1] for row in rows if row.layers and row.device is not None}
        after = range(1, len(sends) + 1)
        panels[-1].bar(after, sends, 0.6, color=[ORANGE if n in cuts else GREY for n in after])
        panels[-1].set(xticks=after, xlabel="layer")
        panels[-1].set_title("time to send if cut after this layer (orange: cut here)")
    figure.lay_out()  # type: ignore[attr-defined]
    for axes, words in boxes.items():
        for box, (text, tone) in words.items():
            draw.fitting_text(axes, box, text, tone)
    return figure


def _rows(inputs: Inputs, answer: Any) -> tuple[list[_Row], bool]:
    """(The layers of each stage and those that are missing, True); if there is no answer that can
    be read, all layers before the empty stages."""
    devices, chunks, layers = inputs["devices"], inputs.get("chunks", 1), len(inputs["costs"])
    speeds, stages = inputs.get("speeds"), devices * chunks
    try:
        groups = [] if answer is None else read_assignment(answer, layers, stages)
    except PartitionError:
        groups = []
    answered = 0 < sum(map(len, groups)) <= 20 * layers
    held = stages_of(groups, devices, chunks) if answered else [[] for _ in range(stages)]
    rows = []
    for s, group in enumerate(held):
        name = stage_name(s, devices, chunks)
        name = name if s < stages else f"no {name}"
        speed = f", speed {speeds[s]:g}" if speeds and chunks == 1 and s < stages else ""
        rows.append(_Row(f"{name}{speed}", group, s % devices))
    there = {n for group in held for n in group}
    missing = _Row("missing", [n for n in range(1, layers + 1) if n not in there], None)
    if not answered:
        return [missing._replace(name="layers"), *rows], False
    return [*rows, *([missing] if missing.layers else [])], True


def _bars(
    axes: Axes, rows: Sequence[_Row], length: Callable[[_Row, int], float]
) -> tuple[dict[draw.Place, tuple[str, Any]], list[float]]:
    """A box for each layer. ({box: (what is written into it, its colour)}, where each row ends.)"""
    draw.lanes(axes, [row.name for row in rows])
    words, ends = {}, []
    for at, row in enumerate(rows):
        tone = PALE if row.device is None else colour_of_rank(row.device)
        parts = [(f"layer {n}", length(row, n), tone) for n in row.layers]
        for n, box in zip(row.layers, draw.stack(axes, at, parts), strict=True):
            words[box] = (f"{n}", tone)
        ends.append(sum(length for _, length, _ in parts))
    return words, ends


def _time_panel(
    axes: Axes, inputs: Inputs, rows: Sequence[_Row], answered: bool, limit: float | None
) -> dict[draw.Place, tuple[str, Any]]:
    """The time of the layers, what is wrong with them, and what it takes to send the last."""
    costs, speeds = inputs["costs"], inputs.get("speeds") or [1.0] * inputs["devices"]
    sends, last = inputs.get("communication", 0.0), len(inputs["costs"])

    def time(row: _Row, n: int) -> float:
        cost = costs[n - 1] if 1 <= n <= last else 1.0
        return float(cost if row.device is None else cost / speeds[row.device])

    words, ends = _bars(axes, rows, time)
    times, boxes = Counter(n for row in rows for n in row.layers), iter(list(words))
    for at, row in enumerate(rows):
        for i, n in enumerate(row.layers):
            box = next(boxes)
            apart = i > 0 and n != row.layers[i - 1] + 1
            odd = row.device is None or times[n] > 1 or apart or not 1 <= n <= last
            if answered and odd:
                draw.mark_box(axes, box, f"layer {n}")
        if row.device is None or not answered:
            continue
        if not row.layers:
            axes.text(0, at, " no layer", color=RED, va="center", fontweight="bold", gid="wrong")
        elif sends and inputs["devices"] > 1 and 1 <= row.layers[-1] < last:
            sent = sends[row.layers[-1] - 1] if isinstance(sends, list) else sends
            box = (ends[at], at - draw.HEIGHT / 2, sent, draw.HEIGHT)
            draw.box(axes, box, PALE, hatch="////", edgecolor=GREY, gid="send")
            words[box] = ("send", PALE)
            ends[at] += sent
        if limit is not None:
            draw.mark_excess(axes, at, limit, ends[at])
    axes.set_xlim(left=0)
    axes.set_xlabel("time of the layers")
    if limit is not None:
        _limit_line(axes, limit, f"target: at most {limit:g}")
    return words


def _memory_panel(
    axes: Axes, inputs: Inputs, rows: Sequence[_Row], answered: bool
) -> dict[draw.Place, tuple[str, Any]]:
    """The bytes of the layers of each device, and what it has room for."""
    devices, memory = inputs["devices"], inputs["memory"]
    caps = [cap / _GB for cap in capacities(inputs["capacity"], devices)]
    held = [] if answered else [rows[0]]
    for d in range(devices):
        mine = [
            n
            for row in rows[: devices * inputs.get("chunks", 1)]
            if row.device == d
            for n in row.layers
            if 1 <= n <= len(memory)
        ]
        held.append(_Row(stage_name(d, devices), mine, d))
    words, ends = _bars(axes, held, lambda row, n: memory[n - 1] / _GB)
    for at, row in enumerate(held):
        if row.device is not None:
            look = {"label": "" if row.device else "room on the device", "gid": "capacity"}
            cap = caps[row.device]
            axes.plot([cap, cap], [at - 0.45, at + 0.45], color=INK, linewidth=2, **look)
            draw.mark_excess(axes, at, cap, ends[at])
    axes.set(xlim=(0, 1.03 * max(*caps, *ends)), xlabel="memory of the layers (GB)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    return words


# -- orders and runs -------------------------------------------------------------------------------


@styled
def draw_order(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run as a Gantt chart if the order can run, else the order as written; for no order the
    empty devices up to the target."""
    devices, heading = devices_of(inputs), title(_durations(inputs))
    rooms = limits_of(inputs) or [targets.get("kept")] * devices
    try:
        order = order_of(inputs.get("shown") if answer is None else answer)
        run = run_order(inputs, order)
    except ConfigError:
        return _empty_devices(rooms, targets.get("makespan", 1.0), heading)
    except ScheduleError:
        if len(order) <= _MOST:
            return _as_written(order, heading)
        return _empty_devices(rooms, targets.get("makespan", 1.0), heading)
    figure = gantt(run, titles=["the order"], title=heading)
    rooms += [None] * (order.devices - devices)
    labels = [
        (f"device {d}, keeps {peak}{f' of {room:g}' if room else ''}", bool(room) and peak > room)
        for d, (peak, room) in enumerate(zip(peak_in_flight(order), rooms, strict=False), 1)
    ]
    label_rows(figure.axes[0], labels)
    _mark_end(figure.axes[0], run, targets)
    return figure


def _as_written(order: Schedule, title: str) -> Figure:
    """An order that cannot run, a box per action in its turn: pale what is never done, and from
    each action at which a device stands an arrow to the one that it waits for.

    device 1 |   0F0 | 0B0 | 0F1 | 0B1 |      0B0 waits for 1B0, which comes after 1F1,
    device 2 |   1F0 | 1F1 | 1B0 | 1B1 |      and 1F1 for 0F1, which comes after 0B0
    """
    stands = stuck(order)
    figure = canvas(1.15 + 0.6 * order.devices, title)
    axes = figure.subplots()
    every = []
    for device, actions in enumerate(order.orders):
        done = actions.index(stands[device][0][0]) if device in stands else len(actions)
        for i, action in enumerate(actions):
            tone = lighter(KINDS[action.kind][1], 0.1 if i < done else 0.7)
            every.append(draw.span(device, i, i + 1, tone, str(action), height=0.5))
    draw.lanes(axes, [f"device {d}" for d in range(1, order.devices + 1)], every)
    at = {box.words: box.at for box in every}
    for block, lacks in stands.values():
        for action in block:
            draw.mark_box(axes, at[str(action)], str(action))
        if str(lacks) in at:
            (x, y, *_), (to_x, to_y, *_) = at[str(block[0])], at[str(lacks)]
            waits = {"arrowstyle": "-|>", "color": RED, "linewidth": 1.6}
            down = float(np.sign(to_y - y)) * 0.25  # from edge to edge, between the lanes
            begin, end = (x + 0.5, y + 0.25 + down), (to_x + 0.5, to_y + 0.25 - down)
            axes.annotate("", end, begin, arrowprops=waits, gid="waits", zorder=7)
    axes.set(xlim=(0, max(map(len, order.orders))), xlabel="turn, as written", xticks=[])
    kinds = {action.kind for action in order}
    entries = [draw.patch_entry(*KINDS[kind]) for kind in KINDS if kind in kinds]
    stands_here = "a device stands here and waits for what the arrow meets"
    entries.append(draw.patch_entry(stands_here, "none", edgecolor=RED))
    draw.legend(figure, entries, 4)
    figure.lay_out()
    draw.write(axes, every)
    return figure


def _durations(inputs: Inputs) -> str:
    """How long each action takes, for the drawing of the task."""
    names = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    parts = []
    for name, kind in names.items():
        if name in inputs:
            values = inputs[name] if isinstance(inputs[name], list) else [inputs[name]]
            parts.append(f"{kind} {', '.join(f'{value:g}' for value in values)} s")
    if inputs.get("latency"):
        parts.append(f"{inputs['latency']:g} s from device to device")
    return "; ".join(parts)


def _empty_devices(rooms: Sequence[float | None], end: float, title: str) -> Figure:
    figure = titled_canvas(1.3 + 0.34 * len(rooms), title)
    axes = figure.subplots()
    named = enumerate(rooms, 1)
    draw.lanes(axes, [f"device {d}{f', room for {room:g}' if room else ''}" for d, room in named])
    axes.barh(range(len(rooms)), end, draw.HEIGHT, color=PALE, zorder=0)
    axes.set(xlim=(0, end), xlabel="time (s)")
    _limit_line(axes, end, f"target: end by {format_seconds(end)}")
    return figure


@styled
def draw_choice(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run of what was chosen, its rival's below it; of the first choice for no answer."""
    note, first = "", first_choice(inputs)
    try:
        value = CHOICE.read(inputs, answer)
    except (ConfigError, ScheduleError):
        value, note = CHOICE.read(inputs, first), f"for example: {first}"
    settings = [{**inputs, **value}]
    if "rival" in inputs:
        settings.append({**settings[0], "schedule": inputs["rival"]})
    runs = [run_choice(each) for each in settings]
    figure = gantt(*runs, titles=[_named(each) for each in settings], title=title(note))
    room, chunks = targets.get("kept"), chunks_of(settings[0])
    if room is not None:  # how many activations each device keeps
        labels = [
            (f"device {d}, keeps {n / chunks:g} of {room:g}", not note and n / chunks > room)
            for d, n in enumerate(runs[0].peak_in_flight, 1)
        ]
        label_rows(figure.axes[0], labels)
    _mark_end(figure.axes[0], runs[0], targets, not note)
    return figure


def _named(setting: Inputs) -> str:
    chunks, count = chunks_of(setting), setting["microbatches"]
    words = f"{setting['schedule']}, {count} micro-batch{'es' * (count != 1)}"
    return words if chunks == 1 else f"{words}, {chunks} chunks"


@styled
def draw_composition(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run with each device's layers and memory beside it; of the task for no answer."""
    try:
        composition = read_unlimited(inputs, answer)
    except (ConfigError, RuleError):
        layers = answer.replace("\n", ";").partition(";")[0] if isinstance(answer, str) else None
        note = title("costs and weights of the layers, no activations yet")
        return _draw_layers({**inputs, "memory": inputs["weights"]}, {}, layers, note)
    run, order = composition.run, composition.order
    numbers = bool(np.bincount(run.device[run.computes]).max() <= _LEGIBLE)
    figure = gantt(run, titles=[order.name or "the order"], title=title(""), numbers=numbers)
    caps = capacities(inputs["capacity"], inputs["devices"])
    labels = []
    for d, (used, cap) in enumerate(zip(memory_of(inputs, composition), caps, strict=True)):
        held = f"{layer_ranges(composition.layers(d))}, {used / _GB:.3g} of {cap / _GB:.3g} GB"
        labels.append((f"device {d + 1}: {held}", used > cap))
    label_rows(figure.axes[0], labels)
    _mark_end(figure.axes[0], run, targets)
    return figure
