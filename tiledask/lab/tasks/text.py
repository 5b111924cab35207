"""Answers drawn in letters.

device 1  F0 F1 ......B0--- ...B1---      a box per action, as long as it takes;
device 2  ...F0 B0--- F1 B1--- ......     a dot where the device is idle
"""

from statistics import median
from typing import Any

from tiledask.errors import ConfigError, RuleError
from tiledask.lab.commands.partition import cut_text
from tiledask.lab.tasks.kind import Inputs, Kind
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["sketch", "timeline_text", "worker_text"]

_WIDTH = 72


def sketch(kind: Kind, inputs: Inputs, answer: Any = None) -> str:
    """The answer to a puzzle, or what its task shows; empty if there is nothing to draw."""
    answer = inputs.get("shown") if answer is None else answer
    if answer is None:
        return ""
    try:
        if kind.runs is None:
            return cut_text(inputs, answer)
        return timeline_text(next(iter(kind.runs(inputs, answer).values())))
    except (ConfigError, RuleError):
        return ""


def worker_text(run: Timeline) -> str:
    """A run of workers, where the letters would not jam."""
    if median(run.end - run.start) * _letters_a_second(run, _WIDTH) >= 2:
        return timeline_text(run, name="worker")
    return f"0 s to {run.makespan:g} s, too long for letters; --figure FILE draws it"


def _letters_a_second(run: Timeline, width: int) -> float:
    """The scale of `timeline_text`: 3, 2 or 1 letters for the shortest action, or what fits."""
    shortest = float((run.end - run.start)[run.end > run.start].min())
    most = width / run.makespan
    return next((n / shortest for n in (3, 2, 1) if n / shortest <= most), most)


def timeline_text(run: Timeline, width: int = _WIDTH, name: str = "device") -> str:
    """A run drawn in letters, a line per device, which has this ``name`` and counts from 1.

    >>> import tiledask as td
    >>> print(timeline_text(td.simulate(td.schedule("1f1b", 2, 2)), width=30))
    device 1  F0 F1 ......B0--- ...B1---
    device 2  ...F0 B0--- F1 B1--- ......
              0 s to 9 s, 1 s is 3 letters
    """
    if not run.makespan:
        return ""
    unit = _letters_a_second(run, width)
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
