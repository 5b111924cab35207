"""A task: a question, the form of an answer, a judge, hints, a drawing.

task.check(answer)      a Result: the first offence in words, targets, stars; kept as progress
task.hint()             one more hint than before; in JupyterLab a button below the task, too
task.draw(answer)       a figure of the answer; of the task without one
"""

import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledask.errors import ConfigError, RuleError
from tiledask.lab.learner.kept import TASKS, here
from tiledask.lab.tasks.result import WRONG, Result, Target, number
from tiledask.plan import html
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.tables import Part, Printable, Table

if TYPE_CHECKING:
    from tiledask.lab.plots.primitives import Figure

__all__ = ["Hint", "JudgedTask", "task_of"]


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


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JudgedTask(Printable):
    """A question that is judged by running or working out the answer; no answer is stored."""

    name: str
    """Under which its stars are kept."""
    title: str
    question: str
    """What is asked, with every target; where a target's number would be the answer, how it is
    judged."""
    form: str
    """How an answer is written, with an example that is no solution."""
    judge: Callable[[Any], Sequence[Target]]
    """The targets that an answer meets or misses.

    ConfigError for what is no answer, with the form of one; RuleError, or one of its kinds,
    names the rule that an answer breaks, and where. Whatever else is raised is a fault of ours, and
    no verdict on the answer."""
    hints: tuple[str, ...] = ()
    """From a nudge to nearly the way; none says the best, or an answer."""
    kind: str = "exercise"
    level: int = 0
    """Of a puzzle, or of the idle-time ladder, from 1, the easiest."""
    seed: int | None = None
    """What drew the numbers of a level of the ladder."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    """The most that each measure of a puzzle may be."""
    numbers: Sequence[tuple[str, str]] = ()
    """Inputs and targets of a puzzle: their names, and values in words."""
    lines: tuple[str, ...] = ()
    """The working of a level; its last line is the answer."""
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    """What the simulator says, shown once all is right; the names say none of it."""
    figure: "Callable[[Any, str], Figure | None] | None" = None
    """Draws an answer below a title, also a wrong one, or the task for None; None: it cannot."""
    letters: Callable[[Any], str] | None = None
    """Draws the same in letters."""
    solve: Callable[[], Any] | None = None
    """An answer that meets every target of a puzzle, by the exact methods; None if there is none.
    """

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
        targets: tuple[Target, ...] = ()
        legal, reason = False, "Not attempted yet: answer is None."
        if answer is not None:
            try:
                targets = tuple(self.judge(answer))
                legal, reason = True, _verdict(targets)
            except ConfigError as error:
                reason = f"Not an answer: {error}"
            except RuleError as error:
                reason = f"Not legal: {error}"
        attempted = answer is not None
        return Result(self.name, attempted, legal, reason, targets, self._left(), self.hint)

    def _left(self) -> int:
        """How many hints were not shown yet."""
        shown: int = here().get(self.name, TASKS).get("hints", 0)
        return len(self.hints) - shown

    def draw(self, answer: Any = None) -> "Figure":
        """A figure of ``answer``, below the verdict; of the task if there is none yet. Once all of
        a level is right, its runs."""
        from tiledask.lab.plots.timelines import gantt
        from tiledask.lab.tasks.figures import draw_fields

        result = self.result(answer)
        title = [self.title + (f"  {result.score[:3]}" if result.targets else "")]
        if result.attempted:
            title += textwrap.wrap(result.reason, 94, max_lines=3, placeholder=" ...")
        words, runs = "\n".join(title), self.timelines
        if result and runs:
            lanes = [f"worker {w}" for w in range(max(run.devices for run in runs.values()))]
            return gantt(*runs.values(), titles=[*runs], title=words, lanes=lanes)
        if self.figure and (drawn := self.figure(answer, words)):
            return drawn
        reached = {t.name: [number(t.got), t.goal] for t in result.targets} or {
            "your answer": ["?"]
        }
        missed = [(row, 0) for row, target in enumerate(result.targets) if not target.met]
        return draw_fields([*reached], [*reached.values()], next(iter(missed), None), words)

    def hint(self) -> Hint:
        """One more hint than last time; the last one again where there are no more."""
        if not self.hints:
            return Hint(0, 0, "This task has none.")
        taken = len(self.hints) - max(0, self._left() - 1)
        here().put(self.name, TASKS, hints=taken)
        return Hint(taken, len(self.hints), self.hints[taken - 1])

    def working(self) -> str:
        """How it is worked out, a numbered line for each step; the last one is the answer."""
        return "\n".join(f"{n}. {line}" for n, line in enumerate(self.lines, 1))

    def __repr__(self) -> str:
        """The question alone: what a level has beside it holds what is right."""
        return f"{self.title}. {self.question} Answer with {self.form}."

    def printed(self) -> Iterator[Part]:
        """The question, its numbers, and how to answer."""
        of = f"{self.level if self.seed is None else f'{self.name}, seed {self.seed}'}"
        yield f"Level {of}: " * bool(self.level) + self.title, ""
        yield self.question
        if self.numbers:
            yield Table(("", ""), self.numbers, left=(0, 1))
        yield f"Answer with {self.form}."

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        return Result.bundle(self, self._repr_html_(), self._left(), self.hint)


def task_of(judge: Callable[[Any], str]) -> JudgedTask:
    """The exercise that ``judge`` is of: it asserts what holds of an answer, each with what is
    wrong in words, and returns what is right. Another exception is told by the answer's line."""

    def judged(answer: Any) -> list[Target]:
        try:
            return [Target(WRONG, 0, 0, 0, why=judge(answer))]
        except Exception as error:
            mine = getattr(getattr(answer, "__code__", None), "co_filename", None)
            stack = traceback.extract_tb(error.__traceback__)
            at = [f"your line {frame.lineno}" for frame in stack if frame.filename == mine][-1:]
            kind = [type(error).__name__] * (not isinstance(error, AssertionError))
            words = str(error).partition("\n")[0].rstrip(".")
            return [Target(WRONG, 0, 1, 0, why=": ".join(filter(None, (*at, *kind, words))))]

    return JudgedTask(name="exercise", title="Exercise", question="", form="", judge=judged)


def _verdict(targets: Sequence[Target]) -> str:
    """The first target that is missed, or that none is."""
    missed = [str(target) for target in targets if not target.met]
    if missed:
        more = f"; {len(missed) - 1} more below" if len(missed) > 1 else ""
        return f"Not yet: {missed[0]}{more}."
    words = "; ".join(target.why for target in targets if target.name == WRONG)
    return f"Solved: {words or 'every target is met'}."
