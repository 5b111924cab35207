"""What a level of the ladder says: its sheet, its runs and their gaps, the lines of its working."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tiledask.lab.judging import JudgedTask, Target
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["Gap", "LevelSpec", "Run", "Sheet", "Worked", "gaps_of"]


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


class Worked(NamedTuple):
    """A line of the working, and the gaps whose length it counts."""

    text: str
    gaps: tuple[Gap, ...] = ()


def gaps_of(timeline: Timeline, worker: int, run: int = 0) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> [tuple(gap) for gap in gaps_of(simulate("naive", 2, 1), 0)]
    [(0, 0, 1.0, 4.0)]
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


@dataclass(frozen=True, kw_only=True)
class LevelSpec(JudgedTask):
    """The numbers of a level; an `IdleLevel` judges and draws answers to it besides."""

    level: int
    """From 1, the easiest."""
    seed: int
    title: str
    sheet: Sheet
    """What is filled in. Of a timetable: its ``workers``, ``slots`` and ``words``."""
    runs: tuple[Run, ...]
    lines: tuple[Worked, ...]
    """The working; its last line is the answer."""
