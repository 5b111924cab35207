"""Answers to puzzles drawn in letters.

device 1  F0 F1 ......B0--- ...B1---      a box per action, as long as it takes;
device 2  ...F0 B0--- F1 B1--- ......     a dot where the device is idle
"""

from typing import Any

from tiledask.errors import ConfigError, RuleError, ScheduleError
from tiledask.lab.commands.partition import cut_text
from tiledask.lab.puzzles.choices import CHOICE, run_choice
from tiledask.lab.puzzles.compositions import memory_of, read_unlimited, run_composition
from tiledask.lab.puzzles.orders import order_of, run_order
from tiledask.lab.puzzles.puzzle import Puzzle
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_bytes

__all__ = ["letters_a_second", "sketch", "timeline_text"]

_WIDTH = 72


def sketch(puzzle: Puzzle, answer: Any = None) -> str:
    """The answer, or what the task shows, drawn in letters; empty if there is nothing to draw."""
    if answer is None:
        answer = puzzle.inputs.get("shown")
    try:
        if answer is not None and puzzle.kind in _SKETCHES:
            return _SKETCHES[puzzle.kind](puzzle.inputs, answer)
    except (ConfigError, RuleError):
        pass
    return ""


def _order(inputs: Any, answer: Any) -> str:
    order = order_of(answer)
    try:
        return timeline_text(run_order(inputs, order))
    except ScheduleError:
        return _written(order)


def _written(order: Schedule) -> str:
    """The turns of an order, a line per rank."""
    rows = (" ".join(map(str, row[:100])) for row in order.orders[:64])
    return "\n".join(f"rank {d}  {row}" for d, row in enumerate(rows))


def _composition(inputs: Any, answer: Any) -> str:
    composition = read_unlimited(inputs, answer)
    held = "\n".join(
        f"device {d}  at most {format_bytes(used)}"
        for d, used in enumerate(memory_of(inputs, composition), 1)
    )
    return f"{timeline_text(run_composition(inputs, composition))}\n{held}"


_SKETCHES = {
    "partition": cut_text,
    "order": _order,
    "choice": lambda inputs, answer: timeline_text(run_choice(inputs, CHOICE.read(inputs, answer))),
    "composition": _composition,
}


def letters_a_second(run: Timeline, width: int = _WIDTH) -> float:
    """The scale of `timeline_text`: 3, 2 or 1 letters for the shortest action, or what fits."""
    shortest = float((run.end - run.start)[run.end > run.start].min())
    most = width / run.makespan
    return next((n / shortest for n in (3, 2, 1) if n / shortest <= most), most)


def timeline_text(run: Timeline, width: int = _WIDTH, name: str = "device") -> str:
    """A run drawn in letters, a line per device: "F0" a forward of micro-batch 0, "." idle.

    Devices have this ``name``, and count from 1.

    >>> import tiledask as td
    >>> print(timeline_text(td.simulate(td.schedule("1f1b", 2, 2)), width=30))
    device 1  F0 F1 ......B0--- ...B1---
    device 2  ...F0 B0--- F1 B1--- ......
              0 s to 9 s, 1 s is 3 letters
    """
    if not run.makespan:
        return ""
    unit = letters_a_second(run, width)
    lines = []
    for device in range(run.devices):
        row = ["."] * round(run.makespan * unit)
        for i in range(len(run.device)):
            if run.device[i] == device:
                a, b = round(float(run.start[i]) * unit), round(float(run.end[i]) * unit)
                words = f"{run.kind[i]}{run.microbatch[i]}"
                room = b - a - (b - a > 2)  # a space to the next one, where there is room
                shown = words if len(words) <= room else words[:1]
                row[a:b] = list(shown.ljust(room, "-")[:room].ljust(b - a))
        lines.append(f"{name} {device + 1}  {''.join(row)}".rstrip())
    scale = f"0 s to {run.makespan:g} s, 1 s is {unit:.3g} letter{'s' * (unit != 1)}"
    return "\n".join([*lines, f"{'':9} {scale}"])
