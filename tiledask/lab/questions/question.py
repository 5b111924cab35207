"""A question of the course: a function whose defaults are its inputs, under its number and words.

@question(33, "Worker Idle Time ...", "{workers} workers have equal parts of a model ...",
          workers=Input("workers, one after the other", 2), forward="seconds of a part, up")
def idle(workers: int = 4, forward: float = 0.1) -> WorkedAnswer:
    ...

A default's type says how what is typed is read, its meaning in which unit.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError, short
from tiledask.lab.questions.inputs import Input
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.hardware import load_device

if TYPE_CHECKING:
    from tiledask.distributed.cluster.cluster import Cluster
    from tiledask.lab.plots.primitives import Figure

__all__ = [
    "MOST_WORKERS",
    "QUESTIONS",
    "Input",
    "Question",
    "WorkedAnswer",
    "device",
    "grid",
    "question",
]

MOST_WORKERS = 4
"""Of a cluster that is started for a run; a cluster of your own may have more."""


@dataclass(frozen=True)
class WorkedAnswer:
    """What arithmetic and simulation say, and the run that bears it out."""

    answer: str
    """The answer itself, in a sentence or two, with its numbers."""
    lines: Sequence[str]
    """The working, as a person would write it: "24 layers / 4 devices = 6 layers a device"."""
    values: Mapping[str, Any]
    """The results by name, as JSON can hold them; no inputs."""
    run: "Callable[[Cluster], Comparison]"
    """Predicted, simulated and measured on a cluster."""
    workers: int = MOST_WORKERS
    """How many a run takes."""
    figure: "Callable[[], Figure] | None" = None
    """Draws the answer, where there is something to draw."""
    more: Sequence[str] = ()
    """What is behind it: lines that only those read who ask for them."""
    device: str = "auto"
    """Of the workers that are started for a run, as for ``start_cluster``."""


Words = str | Callable[..., str]
"""Text with inputs in braces, "{layers} layers"; or a function of the inputs that writes it."""


@dataclass(frozen=True)
class Question:
    """A question by its number."""

    number: int
    title: Words
    """As in the course."""
    asked: Words
    """In our own words, a sentence or two."""
    inputs: Mapping[str, Input]
    work: Callable[..., WorkedAnswer]
    """Takes the inputs by name, checked one by one; ValueError for what is impossible together."""

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs: those ``given``, and the defaults; ConfigError for what there is not."""
        if unknown := [name for name in given if name not in self.inputs]:
            has = self.typed({name: each.default for name, each in self.inputs.items()})
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


QUESTIONS: dict[int, Question] = {}
"""Number -> question; `table.py` has read all of them."""


def question(
    number: int, title: Words, asked: Words, /, **inputs: str | Input
) -> Callable[[Callable[..., WorkedAnswer]], Callable[..., WorkedAnswer]]:
    """Register the function below as the working of a question.

    ``inputs``: the meaning of each of its parameters, with a unit and, as an Input, with limits.
    """

    def register(work: Callable[..., WorkedAnswer]) -> Callable[..., WorkedAnswer]:
        parameters = inspect.signature(work).parameters
        if [*parameters] != [*inputs]:
            raise TypeError(f"question {number} takes {[*parameters]}, and says {[*inputs]}")
        meant = {n: Input(i) if isinstance(i, str) else i for n, i in inputs.items()}
        read = {n: replace(i, default=parameters[n].default) for n, i in meant.items()}
        QUESTIONS[number] = Question(number, title, asked, read, work)
        return work

    return register


def device(value: str) -> str:
    """The name of a device that is shipped."""
    try:
        return load_device(value).name
    except ValueError as error:
        raise ValueError(f"is not known: {error}") from None


def grid(value: str) -> str:
    """ "2x2", rows x columns of workers, or "auto"."""
    if not re.fullmatch(r"auto|[1-9]\d{0,2}x[1-9]\d{0,2}", value):
        raise ValueError("must be rows x columns of workers, such as 2x2, or auto")
    return value
