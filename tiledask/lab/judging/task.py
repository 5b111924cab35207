"""A task: a question, the form of an answer, a judge, hints, a drawing.

task.check(answer)      a Result: the first offence in words, targets, stars; kept as progress
task.hint()             one more hint than before
task.draw(answer)       a figure of the answer; of the task without one
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.lab.judging.result import Result, Target
from tiledask.lab.learner.kept import TASKS, here
from tiledask.plan import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Hint", "JudgedTask"]


@dataclass(frozen=True)
class Hint:
    """One hint of several, from a nudge to nearly the way."""

    number: int
    """Counted from 1."""
    of: int
    text: str

    def __str__(self) -> str:
        return f"Hint {self.number} of {self.of}: {self.text}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><b>Hint {self.number} of {self.of}.</b> {html.words(self.text)}</p>"


@dataclass(frozen=True, kw_only=True)
class JudgedTask(ABC):
    """A question that is judged by running or working out the answer; no answer is stored."""

    name: str
    question: str = ""
    """What is asked, with every target."""
    form: str = ""
    """How an answer is written, with an example."""
    hints: tuple[str, ...] = ()
    """From a nudge to nearly the way."""
    source: str = ""
    """Where the task comes from, if it comes from somewhere."""

    @abstractmethod
    def judge(self, answer: Any) -> Sequence[Target]:
        """The targets that ``answer`` meets or misses.

        ConfigError for what is no answer, with the form of one; another ValueError names the rule
        that an answer breaks, and where.
        """

    @abstractmethod
    def figure(self, answer: Any) -> "Figure":
        """A figure of ``answer``, or of the task for None; may refuse as ``judge`` does."""

    def check(self, answer: Any) -> Result:
        """The worth of ``answer``, kept as progress; None is "not attempted": no complaint."""
        result = self.result(answer)
        if result.attempted:
            known = here().get(self.name, TASKS)
            here().put(
                self.name,
                TASKS,
                tries=known.get("tries", 0) + 1,
                stars=max(known.get("stars", 0), result.stars),
                solved=bool(result) or known.get("solved", False),
            )
        return result

    def result(self, answer: Any) -> Result:
        """The worth of ``answer``, and nothing is kept of it."""
        if answer is None:
            return Result(self.name, False, False, "Not attempted yet.")
        try:
            targets = tuple(self.judge(answer))
        except ConfigError as error:
            return Result(self.name, True, False, f"Not an answer: {error}")
        except ValueError as error:
            return Result(self.name, True, False, f"Not legal: {error}")
        missed = [str(target) for target in targets if not target.met]
        more = f"; {len(missed) - 1} more below" if len(missed) > 1 else ""
        reason = f"Not yet: {missed[0]}{more}." if missed else "Solved: every target is met."
        return Result(self.name, True, True, reason, targets)

    def draw(self, answer: Any = None) -> "Figure":
        """A figure of ``answer``; of the task if there is none yet or it cannot be drawn."""
        try:
            return self.figure(answer)
        except ValueError:
            return self.figure(None)

    def hint(self) -> Hint:
        """One more hint than last time; the last one again where there are no more."""
        if not self.hints:
            return Hint(0, 0, "This task has none.")
        taken = min(here().get(self.name, TASKS).get("hints", 0) + 1, len(self.hints))
        here().put(self.name, TASKS, hints=taken)
        return Hint(taken, len(self.hints), self.hints[taken - 1])

    def _repr_html_(self) -> str:
        form = f"<p>Answer with {html.words(self.form)}.</p>" if self.form else ""
        return f"<p><b>{html.words(self.name)}.</b> {html.words(self.question)}</p>{form}"


@dataclass(frozen=True, kw_only=True)
class Exercise(JudgedTask):
    """A task that is written in Python: what measures an answer, and what draws it."""

    measured: Callable[[Any], Sequence[Target]]
    drawn: Callable[[Any], "Figure"]

    def judge(self, answer: Any) -> Sequence[Target]:
        return self.measured(answer)

    def figure(self, answer: Any) -> "Figure":
        return self.drawn(answer)
