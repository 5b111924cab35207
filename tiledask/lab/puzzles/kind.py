"""A kind of puzzle: how an answer is read, measured, and beaten if it can be.

A kind is a row of functions of the puzzle's inputs. None of them knows a stored answer: ``best``
and ``solve`` work it out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tiledask.lab.judging.result import Best
from tiledask.lab.judging.task import JudgedTask
from tiledask.lab.puzzles.fields import Reader

__all__ = ["Inputs", "Kind", "Measured", "PuzzleSpec", "Targets", "frozen_key"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PuzzleSpec(JudgedTask):
    """What the file of a puzzle says; a `Puzzle` judges answers to it besides."""

    level: int
    """From easy to hard, counted from 1."""
    title: str
    kind: str
    """A name in `tiledask.lab.puzzles.puzzle.KINDS`."""
    inputs: MappingProxyType
    targets: MappingProxyType
    """The most that each measure may be, or LEAST: as little as the other targets let it be."""


@dataclass(frozen=True)
class Measured:
    """What a legal answer reaches."""

    values: Mapping[str, float]
    """By the name of the measure."""
    remarks: tuple[str, ...] = ()
    """What is wrong, worst first, where a number alone would not say it."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Measure -> what makes it so large: the device, the stage, the action."""


@dataclass(frozen=True)
class Kind:
    """One kind of puzzle."""

    needed: Mapping[str, Reader]
    """The inputs there must be, and who reads each."""
    optional: Mapping[str, Reader]
    measures: Mapping[str, str]
    """Name in the file -> name for people."""
    how: str
    """How an answer is written."""
    read: Callable[[Inputs, Any], Any]
    """The answer as a value; a tiledask error that names the rule it breaks."""
    measure: Callable[[Inputs, Any], Measured]
    """What that value reaches."""
    best: Callable[[Inputs, Targets], Mapping[str, Best]]
    """For each target, the least that an answer reaches which meets all the others."""
    solve: Callable[[Inputs, Targets], Any]
    """An answer that meets every target, written as people do; None if there is none."""
    ready: Callable[[Inputs], Any] = field(default=lambda inputs: None)
    """Raises a tiledask error for inputs that contradict each other."""
    page: str = ""
    """The script of `tiledask.lab.placing` in which an answer is placed; empty if none does it."""
    setup: Callable[[Inputs, Targets], dict[str, Any]] = field(default=lambda inputs, targets: {})
    """What that script draws; ConfigError for inputs that it cannot show."""

    @property
    def readers(self) -> dict[str, Reader]:
        return {**self.needed, **self.optional}


def frozen_key(inputs: Inputs) -> str:
    """The inputs as one hashable text, for caches of what takes long to work out.

    >>> json.loads(frozen_key({"stages": 2}))
    {'stages': 2}
    """
    return json.dumps(dict(inputs))
