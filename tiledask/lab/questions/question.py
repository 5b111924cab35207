"""A question of the course: its inputs, the working of its answer, and the run behind it.

inputs     layers=24, devices=4           each with a default, and each can be changed
asked      "{layers} layers in a row ..." its words, with the inputs in them
work       24 / 4 = 6 layers a device     arithmetic and simulation, a line each
run        predicted, simulated, measured on Dask workers: a Comparison
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.questions.inputs import Input
from tiledask.lab.table import Comparison

__all__ = ["MOST_WORKERS", "CourseQuestion", "Input", "WorkedAnswer"]

MOST_WORKERS = 4
"""Of a cluster that is started for a run; a cluster of your own may have more."""


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
    more: tuple[str, ...] = ()
    """What is behind it: lines that only those read who ask for them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))
        object.__setattr__(self, "more", tuple(self.more))


Words = str | Callable[..., str]
"""Text with inputs in braces, "{layers} layers"; or a function of the inputs that writes it."""


@dataclass(frozen=True)
class CourseQuestion:
    """A question by its number. The functions take the inputs by name, checked one by one; what
    is impossible together is a ValueError of ``work``, which always comes first."""

    number: int
    title: Words
    """As in the course."""
    asked: Words
    """In our own words, a sentence or two."""
    inputs: Mapping[str, Input]
    work: Callable[..., WorkedAnswer]
    run: Callable[..., Comparison]
    """run(cluster, **inputs); the cluster is None if no workers are needed."""
    workers: Callable[..., int] = field(default=lambda **_: MOST_WORKERS)
    """How many workers a run takes; 0 if it needs none."""
    device: str = "auto"
    """Of the workers that are started for a run, as for ``start_cluster``."""
    largest_run: Mapping[str, float] = field(default_factory=dict)
    """Input -> the most with which it is run; the working takes more."""

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs: those ``given``, and the defaults; ConfigError for what there is not."""
        if unknown := [name for name in given if name not in self.inputs]:
            has = self.typed({name: each.value(name) for name, each in self.inputs.items()})
            begun = [name for name in self.inputs if name.startswith(unknown[0])]
            near = begun[:1] or get_close_matches(unknown[0], self.inputs, 1, 0.7)
            meant = f", perhaps {near[0]}" if near else ""
            raise ConfigError(
                f"question {self.number} has no {short(unknown[0])}{meant}; it has {has}"
            )
        return {
            name: each.value(name, given.get(name, each.default))
            for name, each in self.inputs.items()
        }

    def typed(self, inputs: Mapping[str, Any]) -> str:
        """The inputs as one types them: "layers=24 memory=40GB"."""
        return " ".join(
            f"{name}={self.inputs[name].typed(value)}" for name, value in inputs.items()
        )

    def words(self, text: Words, inputs: Mapping[str, Any] | None = None) -> str:
        """The title or what is ``asked`` with these inputs in it; with the defaults if None."""
        values = self.read({}) if inputs is None else inputs
        if callable(text):
            return text(**values)
        return text.format(**{name: self.inputs[name].shown(v) for name, v in values.items()})
