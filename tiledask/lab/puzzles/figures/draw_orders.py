"""Figures of orders: a Gantt chart of what can run, and the turns as written of what cannot."""

from collections.abc import Iterable
from typing import Any

from tiledask.errors import ConfigError, ScheduleError
from tiledask.lab.judging.figure import titled, titled_canvas
from tiledask.lab.judging.result import Result
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import KINDS, gantt
from tiledask.lab.plots.style import GREY, PALE, RED, lighter, styled
from tiledask.lab.puzzles.figures.frame import limit_line, write
from tiledask.lab.puzzles.kind import PuzzleSpec
from tiledask.lab.puzzles.orders import devices_of, limits_of, order_of, run_order
from tiledask.plan.pipelines.needs import peak_in_flight
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["draw_order", "label_devices", "mark_end"]

_MOST = 400
"""Actions of a drawing as written; more than anyone reads."""


@styled
def draw_order(puzzle: PuzzleSpec, answer: Any, result: Result) -> draw.Figure:
    """The run as a Gantt chart if the order can run; else the order as written."""
    inputs, shown = puzzle.inputs, puzzle.inputs.get("shown")
    # how long each action takes, for the drawing of the task
    names = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    parts = []
    for name, kind in names.items():
        if name in inputs:
            value = inputs[name]
            many = hasattr(value, "__len__")
            parts.append(f"{kind} {', '.join(f'{v:g}' for v in (value if many else [value]))} s")
    latency = inputs.get("latency")
    if latency:
        parts.append(f"{latency:g} s from device to device")
    title = titled(puzzle, result, "; ".join(parts))
    order = _readable(shown if answer is None else answer)
    if order is None:
        return _sketch(puzzle, title)
    limits = limits_of(inputs) or [puzzle.targets.get("kept")] * devices_of(inputs)
    try:
        run = run_order(inputs, order)
    except ScheduleError:
        ranks = [f"rank {d}" for d in range(order.devices)]
        return _as_written(title, order, _rooms(ranks, limits))
    figure = gantt(run, titles=["the order"], title=title)
    peaks, rooms = peak_in_flight(order), _padded(limits, order.devices)
    label_devices(
        figure.axes[0],
        [
            (
                f"device {d + 1}, keeps {peak}" + (f" of {room:g}" if room else ""),
                bool(room) and peak > room,
            )
            for d, (peak, room) in enumerate(zip(peaks, rooms, strict=True))
        ],
    )
    mark_end(figure.axes[0], run, puzzle.targets.get("makespan"))
    return figure


def label_devices(axes: draw.Axes, labels: Iterable[tuple[str, bool]]) -> None:
    """Name the rows, in red where something is wrong with the device."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), [text for text, _ in labels])
    for tick, (_, wrong) in zip(axes.get_yticklabels(), labels, strict=True):
        if wrong:
            tick.set_color(RED)
            tick.set_fontweight("bold")


def mark_end(axes: draw.Axes, run: Timeline, wanted: float | None, judged: bool = True) -> None:
    """The target of the makespan as a line, where there is one; what is ``judged`` and lies behind
    it in a frame."""
    if wanted is None:
        return
    limit_line(axes, wanted, f"target: end by {format_seconds(wanted)}")
    if judged and run.makespan > wanted * (1 + 1e-9):
        box = (wanted, -0.45, run.makespan - wanted, run.devices - 0.1)
        draw.mark_box(axes, box, "end")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _readable(answer: Any) -> Schedule | None:
    try:
        order = None if answer is None else order_of(answer)
    except (ConfigError, ScheduleError):
        return None
    return order if order is not None and len(order) <= _MOST else None


def _padded(values: list, count: int) -> list:
    return [*values, *[None] * count][:count]


def _rooms(names: list[str], limits: list | None) -> list[str]:
    rooms = _padded(limits or [], len(names))
    return [name + (f", room for {n:g}" if n else "") for name, n in zip(names, rooms, strict=True)]


def _sketch(puzzle: PuzzleSpec, title: str) -> draw.Figure:
    """The empty devices up to the target, and how long the actions of a micro-batch take."""
    inputs = puzzle.inputs
    rows = devices_of(inputs)
    limits = limits_of(inputs) or [puzzle.targets.get("kept")] * rows
    figure = titled_canvas(1.3 + 0.34 * rows, title)
    axes = figure.subplots()
    draw.lanes(axes, _rooms([f"device {d + 1}" for d in range(rows)], limits))
    end = puzzle.targets.get("makespan", 1.0)
    axes.barh(range(rows), end, draw.HEIGHT, color=PALE, zorder=0)
    axes.set_xlim(0, end)
    limit_line(axes, end, f"target: end by {format_seconds(end)}")
    axes.set_xlabel("time (s)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def _as_written(title: str, order: Schedule, labels: list[str]) -> draw.Figure:
    """A box per turn; what is wrong with them, the title says."""
    figure = titled_canvas(1.2 + 0.34 * order.devices, title)
    axes = figure.subplots()
    draw.lanes(axes, labels)
    words: dict[draw.Box, tuple] = {}
    for row, actions in enumerate(order.orders):
        tones = [lighter(KINDS[a.kind][1] if a.kind in KINDS else GREY, 0.1) for a in actions]
        parts = [(str(action), 1, tone) for action, tone in zip(actions, tones, strict=True)]
        for box, (text, _, tone) in zip(draw.stack(axes, row, parts), parts, strict=True):
            words[box] = (text, tone)
    axes.set_xlabel("turn, as written")
    axes.set_xlim(0, max((len(row) for row in order.orders), default=1))
    write(figure, {axes: words})
    return figure
