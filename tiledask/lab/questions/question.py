"""A question of the course: its inputs, the working of its answer, and the run behind it.

inputs     layers=24, devices=4           each with a default, and each can be changed
premise    what the question takes for granted, checked where it takes something
work       24 / 4 = 6 layers a device     arithmetic and simulation, a line each
run        predicted, simulated, measured on Dask workers: a Comparison
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.puzzles.fields import Reader
from tiledask.lab.table import Comparison
from tiledask.plan.choosing.question_check import Critique

__all__ = ["MOST_WORKERS", "CourseQuestion", "Input", "WorkedAnswer"]

MOST_WORKERS = 4
"""Of a cluster that is started for a run; a cluster of your own may have more."""


@dataclass(frozen=True)
class Input:
    """One of a question's numbers or words."""

    default: Any
    other: Any
    """Another value, with another answer."""
    read: Reader
    """What JSON holds -> the value; raises ValueError with the rule, as in "must be ..."."""
    meaning: str
    """What it is, with its unit."""

    def value(self, name: str, given: Any) -> Any:
        """``given`` as the question takes it: a value, or text as it is typed in a command.

        >>> from tiledask.lab.puzzles.fields import numbers, size, whole
        >>> Input(24, 12, whole(1, 500), "layers").value("layers", "30")
        30
        >>> Input([1], [2], numbers(), "costs").value("costs", "1, 2 x 3")
        [1.0, 3.0, 3.0]
        >>> Input(24 * 10**9, "40GB", size, "memory").value("memory", "40GB")
        40000000000
        """
        value = list(given) if isinstance(given, tuple) else given
        if isinstance(given, str):
            with suppress(ValueError):
                value = json.loads(given)
        for tried in (value, given):
            try:
                return self.read(tried)
            except ValueError as error:
                rule = str(error)
        raise ConfigError(f"{name} {rule}; got {short(given)}. It is: {self.meaning}")


@dataclass(frozen=True)
class WorkedAnswer:
    """What arithmetic and simulation say, with the working."""

    answer: str
    """The answer itself, in a sentence or two, with its numbers."""
    lines: tuple[str, ...]
    """The working, as a person would write it: "24 layers / 4 devices = 6 layers a device"."""
    values: Mapping[str, Any]
    """The results by name, as JSON can hold them; no inputs."""
    figure: Callable[[], Figure] | None = None
    """Draws the answer, where there is something to draw."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))


@dataclass(frozen=True)
class CourseQuestion:
    """A question by its number. The functions take the inputs by name, checked one by one; what
    is impossible together is a ValueError of ``work``, which always comes first."""

    number: int
    title: str
    """As in the course."""
    asked: str
    """In our own words, a sentence or two, with the default numbers in it."""
    inputs: Mapping[str, Input]
    work: Callable[..., WorkedAnswer]
    run: Callable[..., Comparison]
    """run(cluster, **inputs); the cluster is None if no workers are needed."""
    workers: Callable[..., int] = field(default=lambda **_: MOST_WORKERS)
    """How many workers a run takes; 0 if it needs none."""
    device: str = "auto"
    """Of the workers that are started for a run, as for ``start_cluster``."""
    premise: Callable[..., Critique | None] = field(default=lambda **_: None)

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs: those ``given``, and the defaults; ConfigError for what there is not."""
        if unknown := [name for name in given if name not in self.inputs]:
            has = ", ".join(f"{name} ({each.meaning})" for name, each in self.inputs.items())
            raise ConfigError(f"question {self.number} has no {short(unknown[0])}; it has {has}")
        return {
            name: each.value(name, given.get(name, each.default))
            for name, each in self.inputs.items()
        }
