"""A level with the numbers of its seed: judged, drawn, and worked out line by line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan import html
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["IdleLevel", "LevelWorking", "Run", "Sheet"]


class Run(NamedTuple):
    """A simulated run, and what may be said of it before it is solved."""

    facts: str
    """Without any answer: "GPipe, 4 workers"."""
    timeline: Timeline


class Sheet(Protocol):
    """What is filled in: who reads and judges it."""

    drawn: str
    """The function of figures that draws it."""

    def judge(self, answer: Any) -> Sequence[Target]:
        """The targets; ConfigError for what is no answer."""
        ...


class LevelWorking(tuple[str, ...]):
    """How a level is worked out: arithmetic line by line, the answer in the last one."""

    def __str__(self) -> str:
        return "\n".join(f"{n}. {line}" for n, line in enumerate(self, 1))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<ol>{''.join(f'<li>{html.words(line)}</li>' for line in self)}</ol>"


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
    lines: tuple[str, ...]
    """The working; its last line is the answer."""

    def judge(self, answer: Any) -> Sequence[Target]:
        return self.sheet.judge(answer)

    def figure(self, answer: Any) -> Figure:
        """The sheet as it is filled in, what is off in red; once it is right, the runs."""
        from tiledask.lab.idle_ladder import figures

        return getattr(figures, f"draw_{self.sheet.drawn}")(self, answer, self.result(answer))

    def working(self) -> LevelWorking:
        """How it is worked out; its last line is the answer."""
        return LevelWorking(self.lines)

    def __repr__(self) -> str:
        """The question alone: the sheet and the runs hold what is right."""
        return f"Level {self.level}. {self.title}. {self.question} Answer with {self.form}."

    @property
    def heading(self) -> str:
        return f"Level {self.level}. {self.title}"
