"""A kind of puzzle: how an answer is read, measured, and beaten if it can be.

A kind is a row of functions of the puzzle's inputs. None of them knows a stored answer: ``best``
and ``solve`` work it out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledask.lab.judging.result import Best
from tiledask.lab.puzzles.fields import Reader
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["Inputs", "Kind", "Measured", "Targets", "frozen_key"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]
Measured = Mapping[str, tuple[float, str]]
"""Measure -> (what a legal answer reaches, which device, stage or action makes it so large)."""


@dataclass(frozen=True)
class Kind:
    """One kind of puzzle; a function of `tiledask.lab.puzzles.figures` draws its answers."""

    needed: Mapping[str, Reader]
    """The inputs there must be, and who reads each."""
    optional: Mapping[str, Reader]
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
    best: Callable[[Inputs, Targets], Mapping[str, Best]]
    """For each target, the least that an answer reaches which meets all the others."""
    solve: Callable[[Inputs, Targets], Any]
    """An answer that meets every target, written as people do; None if there is none."""
    run: Callable[[Inputs, Any], Timeline] | None = None
    """The run of an answer that can run, legal or not; None: there is none."""
    page: str = ""
    """The script of `tiledask.lab.placing` in which an answer is placed; empty if none does it."""
    board: Callable[[Inputs, Targets], dict[str, Any]] | None = None
    """What that script draws; ConfigError for inputs that it cannot show."""


def frozen_key(inputs: Inputs) -> str:
    """The inputs as one hashable text, for caches of what takes long to work out.

    >>> json.loads(frozen_key({"stages": 2}))
    {'stages': 2}
    """
    return json.dumps(dict(inputs))
