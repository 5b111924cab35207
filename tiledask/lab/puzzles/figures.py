"""Figures of puzzles: the task, and what was written, also when it is wrong.

device 1   [1][2][3][4][5][6]|send      :  <- target        red: what is wrong

Each takes the puzzle's inputs and targets, an answer or None, and what makes a title of a note.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tiledask.errors import ConfigError, PartitionError, RuleError, ScheduleError
from tiledask.lab.judging.figure import titled_canvas
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import INK, PALE, RED, colour_of_rank, styled
from tiledask.lab.plots.timelines import gantt
from tiledask.lab.puzzles.choices import CHOICE, chunks_of, first_choice, run_choice
from tiledask.lab.puzzles.compositions import read_unlimited
from tiledask.lab.puzzles.kind import Inputs, Targets
from tiledask.lab.puzzles.orders import devices_of, limits_of, order_of, run_order
from tiledask.plan.pipelines.needs import peak_in_flight
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.splitting.assignment import read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.judge import layer_ranges
from tiledask.plan.splitting.partition import stage_name
from tiledask.plan.units import format_seconds

__all__ = ["DRAWINGS"]

Titled = Callable[[str], str]
_Row = tuple[str, Sequence[int], int | None]
"""Layers behind one another: their name, the layers, their device from 0 (None: they have none)."""
_GB = 1e9


def _limit_line(axes: Axes, at: float, words: str) -> None:
    """A red line at a target, and room for it."""
    axes.axvline(at, color=RED, linewidth=1.5, label=words, zorder=5, gid="target")
    axes.set_xlim(0, max(axes.get_xlim()[1], at * 1.03))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _label_rows(axes: Axes, labels: Iterable[tuple[str, bool]]) -> None:
    """Name the rows, in red where something is wrong."""
    words, wrong = zip(*labels, strict=True)
    axes.set_yticks(range(len(words)), words)
    for tick, red in zip(axes.get_yticklabels(), wrong, strict=True):
        tick.set(color=RED if red else INK, fontweight="bold" if red else "normal")


def _keeps(axes: Axes, peaks: Iterable[float], rooms: Sequence[float | None], judged: bool) -> None:
    """Name the rows by what each device keeps, in red where that is ``judged`` and too much."""
    labels = []
    for d, peak in enumerate(peaks):
        room = rooms[d] if d < len(rooms) else None
        words = f"device {d + 1}, keeps {peak:g}{f' of {room:g}' if room else ''}"
        labels.append((words, judged and bool(room) and peak > (room or 0)))
    _label_rows(axes, labels)


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


@styled
def draw_partition(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """A row per stage, as wide as its time, named by what its device holds; what breaks a rule in
    red."""
    shown = inputs.get("shown") if answer is None else None
    note = f"as proposed: {shown}" if shown else ""
    return _draw_layers(inputs, targets, shown or answer, title(note))


def _draw_layers(inputs: Inputs, targets: Targets, answer: Any, title: str) -> Figure:
    costs, sends, limit = inputs["costs"], inputs.get("communication"), targets.get("bottleneck")
    devices, layers = inputs["devices"], len(costs)
    speeds = inputs.get("speeds") or [1.0] * devices
    rows, odd = _rows(inputs, answer)
    figure = titled_canvas(1.3 + 0.3 * len(rows), title)
    axes, longest = figure.subplots(), limit or 0.0
    boxes: list[draw.Box] = []
    for at, (_, group, device) in enumerate(rows):
        end, speed = 0.0, 1.0 if device is None else speeds[device]
        tone = PALE if device is None else colour_of_rank(device)
        for n in group:
            start, end = end, end + (costs[n - 1] if 1 <= n <= layers else 1.0) / speed
            boxes.append(draw.span(at, start, end, tone, f"{n}", f"layer {n}"))
            if n in odd:
                draw.mark_box(axes, boxes[-1].at, f"layer {n}")
        if sends and device is not None and devices > 1 and group and 1 <= group[-1] < layers:
            start, end = end, end + (sends[group[-1] - 1] if isinstance(sends, list) else sends)
            boxes.append(draw.span(at, start, end, PALE, "send", "send", look={"hatch": "////"}))
        if limit is not None and device is not None:
            draw.mark_excess(axes, at, limit, end)
        longest = max(longest, end)
    draw.lanes(axes, [name for name, *_ in rows], boxes)
    _label_rows(axes, _held(inputs, rows))
    axes.set(xlim=(0, 1.03 * longest), xlabel="time of the layers")
    if limit is not None:
        _limit_line(axes, limit, f"target: at most {limit:g}")
    figure.lay_out()
    draw.write(axes, boxes)
    return figure


def _rows(inputs: Inputs, answer: Any) -> tuple[list[_Row], set[int]]:
    """(The layers of each stage and those that are missing, the layers in a wrong place); if there
    is no answer that can be read, all layers before the empty stages."""
    devices, chunks, layers = inputs["devices"], inputs.get("chunks", 1), len(inputs["costs"])
    try:
        groups = [] if answer is None else read_assignment(answer, layers, devices * chunks)
    except PartitionError:
        groups = []
    if not 0 < sum(map(len, groups)) <= 20 * layers:
        groups = []
    stages = stages_of(groups, devices, chunks)[: devices * chunks]
    rows: list[_Row] = [
        (stage_name(s, devices, chunks), group, s % devices) for s, group in enumerate(stages)
    ]
    times = Counter(n for group in stages for n in group)
    missing = [n for n in range(1, layers + 1) if not times[n]]
    if not groups:
        return [("layers", missing, None), *rows], set()
    odd = {n for n, count in times.items() if count > 1 or not 1 <= n <= layers} | {*missing}
    return [*rows, *([("missing", missing, None)] if missing else [])], odd


def _held(inputs: Inputs, rows: Sequence[_Row]) -> Iterator[tuple[str, bool]]:
    """The name of each row, with the memory of its device; whether that is too little."""
    memory, speeds, layers = inputs.get("memory"), inputs.get("speeds"), len(inputs["costs"])
    caps = capacities(inputs["capacity"], inputs["devices"]) if memory else []
    for name, _, device in rows:
        words, held = name, 0.0
        if device is not None and speeds:
            words += f", speed {speeds[device]:g}"
        if device is not None and memory:
            mine = (n for _, group, on in rows if on == device for n in group)
            held = sum(memory[n - 1] for n in mine if 1 <= n <= layers)
            words += f", {held / _GB:.3g} of {caps[device] / _GB:.3g} GB"
        yield words, bool(memory) and device is not None and held > caps[device]


# -- orders and runs -------------------------------------------------------------------------------


@styled
def draw_order(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run as a Gantt chart; for no order that can run the empty devices up to the target."""
    rooms = limits_of(inputs) or [targets.get("kept")] * devices_of(inputs)
    try:
        order = order_of(inputs.get("shown") if answer is None else answer)
        run = run_order(inputs, order)
    except (ConfigError, ScheduleError):
        figure, end = titled_canvas(1.2 + 0.34 * len(rooms), title("")), targets.get("makespan", 1)
        axes, named = figure.subplots(), enumerate(rooms, 1)
        draw.lanes(axes, [f"device {d}{f', room for {n:g}' if n else ''}" for d, n in named])
        axes.barh(range(len(rooms)), end, draw.HEIGHT, color=PALE, zorder=0)
        axes.set_xlabel("time (s)")
        _limit_line(axes, end, f"target: end by {format_seconds(end)}")
        return figure
    figure = gantt(run, titles=["the order"], title=title(""))
    _keeps(figure.axes[0], peak_in_flight(order), rooms, True)
    _mark_end(figure.axes[0], run, targets)
    return figure


@styled
def draw_choice(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run of what was chosen, its rival's below it; of the first choice for no answer."""
    note, first = "", first_choice(inputs)
    try:
        value = CHOICE.read(inputs, answer)
    except (ConfigError, ScheduleError):
        value, note = CHOICE.read(inputs, first), f"for example: {first}"
    setting = {**inputs, **value}
    settings = [setting, *([setting | {"schedule": inputs["rival"]}] if "rival" in inputs else [])]
    runs, names = [run_choice(each) for each in settings], []
    for each in settings:
        words = f"{each['schedule']}, {each['microbatches']} micro-batches"
        names.append(words + f", {chunks_of(each)} chunks" * (chunks_of(each) > 1))
    figure = gantt(*runs, titles=names, title=title(note))
    if room := targets.get("kept"):
        kept = (n / chunks_of(setting) for n in runs[0].peak_in_flight)
        _keeps(figure.axes[0], kept, [room] * runs[0].devices, not note)
    _mark_end(figure.axes[0], runs[0], targets, not note)
    return figure


@styled
def draw_composition(inputs: Inputs, targets: Targets, answer: Any, title: Titled) -> Figure:
    """The run with each device's layers and memory beside it; of the task for no answer."""
    try:
        it = read_unlimited(inputs, answer)
    except (ConfigError, RuleError):
        layers = answer.replace("\n", ";").partition(";")[0] if isinstance(answer, str) else None
        note = title("costs and weights of the layers, no activations yet")
        return _draw_layers({**inputs, "memory": inputs["weights"]}, {}, layers, note)
    figure = gantt(it.run, titles=[it.order.name or "the order"], title=title(""))
    labels = []
    for d, cap in enumerate(capacities(inputs["capacity"], inputs["devices"])):
        held = f"{layer_ranges(it.layers[d])}, {it.held[d] / _GB:.3g} of {cap / _GB:.3g} GB"
        labels.append((f"device {d + 1}: {held}", it.held[d] > cap))
    _label_rows(figure.axes[0], labels)
    _mark_end(figure.axes[0], it.run, targets)
    return figure


DRAWINGS: dict[str, Callable[..., Figure]] = {
    "partition": draw_partition,
    "choice": draw_choice,
    "order": draw_order,
    "composition": draw_composition,
}
"""Kind -> what draws an answer."""
