"""A kind of puzzle: how an answer is read, measured, and beaten if it can be.

A kind is a row of functions of the puzzle's inputs. None of them knows a stored answer: ``best``
and ``solve`` work it out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledask.lab.judging.result import OPTIMUM
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["Inputs", "Kind", "Measured", "Targets", "frozen_key", "idle_causes"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]
Measured = Mapping[str, tuple[float, str]]
"""Measure -> (what a legal answer reaches, which device, stage or action makes it so large)."""


@dataclass(frozen=True)
class Kind:
    """One kind of puzzle; a function of `tiledask.lab.puzzles.figures` draws its answers."""

    needed: tuple[str, ...]
    """Names of the inputs there must be; who reads each is in `tiledask.lab.puzzles.inputs`."""
    optional: tuple[str, ...]
    measures: Mapping[str, str]
    """Name in the file -> name for people."""
    how: str
    """How an answer is written."""
    validate: Callable[[Inputs], None]
    """Raises a tiledask error for inputs that contradict each other."""
    read: Callable[[Inputs, Any], Any]
    """The answer as a value; a tiledask error that names the rule it breaks."""
    measure: Callable[[Inputs, Any], Measured]
    """What that value reaches."""
    best: Callable[[Inputs, Targets], Mapping[str, float]]
    """For each target, the least that an answer reaches which meets all the others."""
    solve: Callable[[Inputs, Targets], str | None]
    """The answer to try for these targets, written as people do; None if there is none."""
    yardstick: str = OPTIMUM
    """What ``best`` is: proven, or the best of a search, which an answer may beat."""
    run: Callable[[Inputs, Any], Timeline] | None = None
    """The run of an answer that can run, legal or not; None: there is none."""
    single: tuple[str, ...] = ()
    """Inputs that are one number here, where other kinds may have one for each stage."""
    board: Callable[[Inputs, Targets], dict[str, Any]] | None = None
    """What `tiledask.lab.judging.placed` draws, where an answer can be placed."""


def frozen_key(inputs: Inputs) -> str:
    """The inputs as one hashable text, for caches of what takes long to work out."""
    return json.dumps(dict(inputs))


def idle_causes(run: Timeline) -> str:
    """The idle time of all devices by its causes; empty if there is none.

    >>> import tiledask as td
    >>> idle_causes(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'idle: warm-up 1 s, dependency 3 s, draining 2 s'
    """
    total = run.idle_time.total.items()
    causes = [f"{cause} {format_seconds(seconds)}" for cause, seconds in total if seconds > 0]
    return f"idle: {', '.join(causes)}" if causes else ""
