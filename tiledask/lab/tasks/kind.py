"""What kinds of puzzle share: how inputs of a file are read, a run in words.

A kind is a module with functions of a puzzle's inputs; names of these inputs and of measures, and
how an answer is written, are in data/puzzle_kinds.json. None of them knows a stored answer.

check_inputs(inputs)      raises a tiledask error for inputs that contradict each other
read(inputs, answer)      the answer as a value; a tiledask error that names the rule it breaks
measure(inputs, value)    what that value reaches
best(inputs, targets)     for each target, the least that an answer reaches which meets the others
solve(inputs, targets)    the answer to try for these targets, as people write it; None: none is
run(inputs, answer)       the run of an answer that can run, legal or not; without it, what is drawn
                          is layers on devices
"""

from collections.abc import Mapping
from typing import Any

from tiledask.lab.course.question import Input
from tiledask.plan.data import shipped_json
from tiledask.plan.pipelines.timeline import CAUSES, COMPUTE, Timeline
from tiledask.plan.units import format_seconds

__all__ = ["INPUTS", "Inputs", "Measured", "Targets", "idle_causes", "run_text"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]
Measured = Mapping[str, tuple[float, str]]
"""Measure -> (what a legal answer reaches, which device, stage or action makes it so large)."""
INPUTS = {name: Input(**row) for name, row in shipped_json("puzzle_inputs.json").items()}
"""Name in a file -> what it is, whatever the kind of puzzle."""


def idle_causes(run: Timeline) -> str:
    """The idle time of all devices by its causes; empty if there is none.

    >>> import tiledask as td
    >>> idle_causes(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'idle: not yet filled 1 s, waits for other stages 3 s, draining 2 s'
    """
    total = run.idle_time.total.items()
    causes = [f"{CAUSES[cause]} {format_seconds(each)}" for cause, each in total if each > 0]
    return f"idle: {', '.join(causes)}" if causes else ""


def run_text(run: Timeline, name: str = "device") -> str:
    """Who does what from when to when, a line per device, which has this ``name``.

    >>> import tiledask as td
    >>> print(run_text(td.simulate(td.schedule("1f1b", 2, 1))))
    device 0  F0 0-1, B0 4-6
    device 1  F0 1-2, B0 2-4
    """
    spans: dict[int, list[str]] = {device: [] for device in range(run.devices)}
    rows = zip(run.device, run.kind, run.microbatch, run.start, run.end, strict=True)
    for device, kind, microbatch, start, end in rows:
        if kind in COMPUTE:
            spans[device].append(f"{kind}{microbatch} {start:g}-{end:g}")
    return "\n".join(f"{name} {d}  {', '.join(found)}" for d, found in spans.items())
