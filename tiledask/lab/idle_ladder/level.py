"""One level of the ladder: its question, the sheet to fill in, the runs behind it, the working."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.learner.kept import TASKS, here
from tiledask.plan import html
from tiledask.plan.pipelines.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Gap", "IdleLevel", "Line", "Run", "Sheet", "Working", "gaps_of"]


class Run(NamedTuple):
    """A simulated run, and what may be said of it before it is solved."""

    facts: str
    """Without any answer: "GPipe, 4 workers"."""
    timeline: Timeline


class Gap(NamedTuple):
    """Seconds in which a worker is idle."""

    run: int
    """Which of the level's runs."""
    worker: int
    """Counted from 0, as the simulator does."""
    start: float
    end: float


class Line(NamedTuple):
    """A line of the working, and the gaps whose length it counts."""

    text: str
    gaps: tuple[Gap, ...] = ()


def gaps_of(timeline: Timeline, worker: int, run: int = 0) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> import tiledask as td
    >>> [gap[2:] for gap in gaps_of(td.simulate("naive", 2, 1), 0)]
    [(1.0, 5.0)]
    """
    mine = timeline.device == worker
    ends = [0.0, *timeline.end[mine].tolist()]
    starts = [*timeline.start[mine].tolist(), timeline.makespan]
    found = (Gap(run, worker, a, b) for a, b in zip(ends, starts, strict=True))
    return [gap for gap in found if gap.end - gap.start > 1e-9]


class Sheet(Protocol):
    """What is filled in: who reads and judges it."""

    drawn: str
    """The function of figures that draws it."""

    def judge(self, answer: Any) -> Sequence[Target]:
        """The targets; ConfigError for what is no answer."""
        ...


@dataclass(frozen=True)
class Working:
    """How a level is worked out: arithmetic line by line, and the gaps that it counts."""

    task: "IdleLevel"
    lines: tuple[str, ...]
    """Empty until it may be seen."""
    why_not: str = ""

    def __str__(self) -> str:
        numbered = (f"{n}. {line}" for n, line in enumerate(self.lines, 1))
        return "\n".join(numbered) or self.why_not

    __repr__ = __str__

    @property
    def figure(self) -> "Figure":
        """The runs, each idle gap with the number of the line that counts it."""
        from tiledask.lab.idle_ladder.figures import draw_working

        return draw_working(self.task) if self.lines else self.task.figure(None)

    def _repr_html_(self) -> str:
        if not self.lines:
            return f"<p>{html.words(self.why_not)}</p>"
        from base64 import b64encode

        from tiledask.lab.plots.picture import png_of

        rows = "".join(f"<li>{html.words(line)}</li>" for line in self.lines)
        picture = b64encode(png_of(self.figure)).decode()
        words = html.words(f"{self.task.title}: the gaps, by the lines that count them")
        shown = f"<img width='900' alt='{words}' src='data:image/png;base64,{picture}'>"
        return f"<ol>{rows}</ol>{shown}"


@dataclass(frozen=True, kw_only=True)
class IdleLevel(JudgedTask):
    """A level with the numbers of its seed; what is right, the simulator says."""

    level: int
    """From 1, the easiest."""
    seed: int
    title: str
    sheet: Sheet
    """What is filled in. Of a timetable: its ``workers``, ``slots`` and ``words``."""
    runs: tuple[Run, ...]
    lines: tuple[Line, ...]
    """The working; its last line is the answer."""

    def judge(self, answer: Any) -> Sequence[Target]:
        return self.sheet.judge(answer)

    def figure(self, answer: Any) -> "Figure":
        """The sheet as it is filled in, what is off in red; once it is right, the runs."""
        from tiledask.lab.idle_ladder import figures

        return getattr(figures, f"draw_{self.sheet.drawn}")(self, answer, self.result(answer))

    def working(self) -> Working:
        """How it is worked out, once the level is solved, with any seed, or all hints are taken."""
        known = here().get(self.name, TASKS)
        left = len(self.hints) - known.get("hints", 0)
        if known.get("solved") or left <= 0:
            return Working(self, tuple(line.text for line in self.lines))
        return Working(
            self,
            (),
            f"The working is shown once the level is solved or its hints are taken: {left} "
            f"hint{'s are' if left > 1 else ' is'} left.",
        )

    def _repr_html_(self) -> str:
        head = f"<b>Level {self.level}. {html.words(self.title)}.</b>"
        form = html.words(f"Answer with {self.form}.")
        return f"<p>{head} {html.words(self.question)}</p><p>{form}</p>"
