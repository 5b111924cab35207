"""A task: a question, the form of an answer, a judge, hints, a drawing.

task.check(answer)      a Result: the first offence in words, targets, stars; kept as progress
task.hint()             one more hint than before
task.draw(answer)       a figure of the answer; of the task without one
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, RuleError
from tiledask.lab.judging.placed import PlacedAnswer
from tiledask.lab.judging.result import Result, Target
from tiledask.lab.learner.kept import TASKS, here
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import set_title
from tiledask.plan import html

__all__ = ["Hint", "JudgedTask"]


class Hint(NamedTuple):
    """One hint of several, from a nudge to nearly the way."""

    number: int
    """Counted from 1."""
    of: int
    text: str

    def __repr__(self) -> str:
        return f"Hint {self.number} of {self.of}: {self.text}"

    def _repr_html_(self) -> str:
        return f"<p><b>Hint {self.number} of {self.of}.</b> {html.words(self.text)}</p>"


@dataclass(frozen=True, kw_only=True)
class JudgedTask(ABC):
    """A question that is judged by running or working out the answer; no answer is stored."""

    name: str
    question: str = ""
    """What is asked, with every target; where a target's number would be the answer, how it is
    judged."""
    form: str = ""
    """How an answer is written, with an example that is no solution."""
    hints: tuple[str, ...] = ()
    """From a nudge to nearly the way; none says the best, or an answer."""
    source: str = ""
    """Where the task comes from, if it comes from somewhere."""

    @abstractmethod
    def judge(self, answer: Any) -> Sequence[Target]:
        """The targets that ``answer`` meets or misses.

        ConfigError for what is no answer, with the form of one; RuleError, or one of its kinds,
        names the rule that an answer breaks, and where. Whatever else is raised is a fault of
        ours, and no verdict on the answer.
        """

    @abstractmethod
    def figure(self, answer: Any) -> Figure:
        """A figure of ``answer``, or of the task for None; may refuse as ``judge`` does."""

    @property
    def heading(self) -> str:
        """What stands above the question."""
        return self.name

    def check(self, answer: Any) -> Result:
        """The worth of ``answer``, kept as progress; None is "not attempted": no complaint."""
        result, known = self.result(answer), here().get(self.name, TASKS)
        if result.attempted:
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
        answer, targets = _plain(answer), None
        if answer is None:
            reason = "Not attempted yet."
        else:
            try:
                targets = tuple(self.judge(answer))
                reason = _verdict(targets)
            except ConfigError as error:
                reason = f"Not an answer: {error}"
            except RuleError as error:
                reason = f"Not legal: {error}"
        left = len(self.hints) - here().get(self.name, TASKS).get("hints", 0)
        legal = targets is not None
        return Result(self.name, answer is not None, legal, reason, targets or (), left)

    def draw(self, answer: Any = None) -> Figure:
        """A figure of ``answer``; of the task if there is none yet or it cannot be drawn."""
        answer = _plain(answer)
        try:
            return self.figure(answer)
        except (ConfigError, RuleError):
            drawn = self.figure(None)
            if answer is not None:  # or what stands there would pass for the answer
                title = drawn.get_suptitle()
                set_title(drawn, f"{title}\nthe task: your answer cannot be drawn")
            return drawn

    def hint(self) -> Hint:
        """One more hint than last time; the last one again where there are no more."""
        if not self.hints:
            return Hint(0, 0, "This task has none.")
        taken = min(here().get(self.name, TASKS).get("hints", 0) + 1, len(self.hints))
        here().put(self.name, TASKS, hints=taken)
        return Hint(taken, len(self.hints), self.hints[taken - 1])

    def _repr_html_(self) -> str:
        form = f"<p>Answer with {html.words(self.form)}.</p>" if self.form else ""
        hints = f"<p>Its <code>hint()</code> gives one more of {len(self.hints)} hints.</p>"
        said = f"<p><b>{html.words(self.heading)}.</b> {html.words(self.question)}</p>{form}"
        return said + (hints if self.hints else "")


def _verdict(targets: Sequence[Target]) -> str:
    """The first target that is missed, or that none is."""
    missed = [str(target) for target in targets if not target.met]
    if missed:
        more = f"; {len(missed) - 1} more below" if len(missed) > 1 else ""
        return f"Not yet: {missed[0]}{more}."
    return "Solved: every target is met."


def _plain(answer: Any) -> Any:
    """What was placed by hand, or ``answer`` itself."""
    return answer.answer if isinstance(answer, PlacedAnswer) else answer
