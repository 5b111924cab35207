"""What ranks report of their steps, and whole steps put together from all ranks' reports.

    rank 0   step  step  step ... report --\\
    rank 1   step  step  step ... report ---+--> Assembly --> Progress of each step, in order
    rank 2   step  step  step ... report --/

A report has the steps since the last one and the sums of all collectives so far, layer by layer.
There are at most ten a second from a rank, however short its steps are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from distributed import get_worker

from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.training.by_layer import CallSite, Sums, tally

__all__ = ["Assembly", "Post", "Progress", "Say", "reported"]

EVERY = 0.1
"""Seconds between two reports of a rank, at least."""
AGAIN = 1.0
"""Seconds of steps that are reported again when a run goes on from what was kept."""
Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Progress:
    """A step that all ranks have finished."""

    step: int
    """Its number, from 0."""
    steps: int
    """How many steps there will be."""
    loss: float
    """The loss of the whole batch, before the update."""
    seconds: float
    """Seconds from the end of the step before, or the first rank's begin, to the last's end."""
    tokens: int
    """The tokens of the batch."""
    sent: int
    """Bytes, by all ranks."""
    messages: int
    barriers: int
    """Barriers of the rank that has most."""
    floor: float | None = None
    """The best loss there is, if the data knows it."""


class _Step(NamedTuple):
    """What was reported of a step so far."""

    number: int
    loss: float
    end: float
    sent: int
    messages: int
    barriers: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Step":
        number, loss, end, sent, messages, barriers = row
        return cls(int(number), float(loss), float(end), int(sent), int(messages), int(barriers))

    def plus(self, other: "_Step") -> "_Step":
        """Both ranks' together."""
        return _Step(
            self.number,
            self.loss + other.loss,
            max(self.end, other.end),
            self.sent + other.sent,
            self.messages + other.messages,
            max(self.barriers, other.barriers),
        )


# -- on a rank ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Post:
    """Says reports under a topic of Dask's events, from a worker's task."""

    topic: str

    def __call__(self, report: dict[str, Any]) -> None:
        with suppress(Exception):  # whoever listens must not stop a training
            get_worker().log_event(self.topic, report)


def reported(
    numbers: Iterable[int],
    losses: Sequence[float],
    rank: Rank,
    say: Say | None,
    attempt: int = 0,
) -> Iterator[int]:
    """The ``numbers`` of a rank's steps. When the next is asked for the last is done, and the
    last of ``losses`` is this rank's part of its loss. ``attempt``: how often the run was begun
    before; some steps are then reported again."""
    reporter = say and _Reporter(rank, say, attempt, losses)
    for number in numbers:
        yield number
        if reporter:
            reporter.done(number, losses[-1])
    if reporter:
        reporter.report()


class _Reporter:
    def __init__(self, rank: Rank, say: Say, attempt: int, losses: Sequence[float]) -> None:
        self.rank, self.say, self.attempt = rank, say, attempt
        self.steps: list[list[float]] = []
        self.seen, self.begin = len(rank.records), rank.transport.now()
        self.last = self.begin - EVERY
        # what was kept is not done again; the last of it may not have been reported
        rows: dict[int, list[Record]] = {}
        for each in rank.records:
            if each.step is not None:
                rows.setdefault(each.step, []).append(each)
        self.sums = dict(tally(each for mine in rows.values() for each in mine))
        for step, loss in zip(rank.steps, losses, strict=True):
            if step.end > rank.steps[-1].end - AGAIN:
                self._add(step.step, loss, step.end, tally(rows.get(step.step, ())))

    def done(self, number: int, loss: float) -> None:
        """A step is done."""
        now = self.rank.transport.now()
        mine = tally(row for row in self.rank.records[self.seen :] if row.step == number)
        self.seen = len(self.rank.records)
        for place, sums in mine.items():
            self.sums[place] = self.sums.get(place, Sums()).plus(sums)
        self._add(number, loss, now, mine)
        if now - self.last >= EVERY:
            self.report()

    def _add(self, number: int, loss: float, end: float, mine: Mapping[CallSite, Sums]) -> None:
        sums = reduce(Sums.plus, mine.values(), Sums())
        # the ranks of a tensor-parallel group all have the loss of the same rows
        part = 0.0 if self.rank.coordinates[1] else loss
        self.steps.append([number, part, end, sums.sent, sums.messages, sums.barriers])

    def report(self) -> None:
        """All that was not reported yet."""
        if not self.steps:
            return
        self.last = self.steps[-1][2]
        sums = [[*place, *mine] for place, mine in self.sums.items()]
        report = {"rank": self.rank.index, "begin": self.begin, "steps": self.steps, "sums": sums}
        self.say(report | {"attempt": self.attempt})
        self.steps = []


# -- whoever listens ---------------------------------------------------------------------------


class Assembly:
    """Whole steps from the reports of ``ranks`` ranks."""

    def __init__(self, ranks: int, steps: int, tokens: int, floor: float | None = None) -> None:
        self.ranks, self.steps, self.tokens, self.floor = ranks, steps, tokens, floor
        self.sums: dict[int, dict[CallSite, Sums]] = {}
        """Rank -> of all its steps so far."""
        self.done: dict[int, int] = {}
        """Rank -> how many steps it has reported, those once that it did again."""
        self._steps: dict[int, int] = {}
        """Rank -> the step after the furthest that it reported."""
        self.begin: dict[int, float] = {}
        self.end: dict[int, float] = {}
        """Rank -> when its first step began, and its last one ended."""
        self._open: dict[int, list[_Step]] = {}
        """Number -> what the ranks that are through have reported."""
        self._last: float | None = None
        self._attempt, self._next = 0, 0
        """The attempt that reports; the step that no attempt has finished yet."""

    def heard(self, report: Mapping[str, Any]) -> Iterator[Progress]:
        """The steps that this report completes. Raises KeyError, TypeError or ValueError if it is
        none."""
        rank, begin = int(report["rank"]), float(report["begin"])
        steps = [_Step.of(row) for row in report["steps"]]
        sums = {}
        for row in report["sums"]:
            calls, barriers, sent, messages = map(int, row[3:7])
            sums[CallSite(*row[:3])] = Sums(calls, barriers, sent, messages, float(row[7]))
        if not 0 <= rank < self.ranks:
            raise ValueError(f"ranks are 0..{self.ranks - 1}, a report is of {rank}")
        attempt = int(report.get("attempt", 0))
        if attempt < self._attempt:
            return  # a worker was lost since
        if attempt > self._attempt:
            self._attempt = attempt
            self._open.clear()
        self.begin.setdefault(rank, begin)
        self.sums[rank] = sums
        for step in steps:
            self.end[rank] = step.end
            if step.number >= self._steps.get(rank, 0):
                self._steps[rank], self.done[rank] = step.number + 1, self.done.get(rank, 0) + 1
            if step.number < self._next:
                continue  # it was told before
            ranks = self._open.setdefault(step.number, [])
            ranks.append(step)
            if len(ranks) < self.ranks:
                continue
            whole = reduce(_Step.plus, self._open.pop(step.number))
            before = min(self.begin.values()) if self._last is None else self._last
            self._last, self._next = whole.end, whole.number + 1
            yield Progress(
                whole.number,
                self.steps,
                whole.loss,
                whole.end - before,
                self.tokens,
                whole.sent,
                whole.messages,
                whole.barriers,
                self.floor,
            )

    def copy(self) -> "Assembly":
        """The assembly as it is now: reports that come later do not change it."""
        made = Assembly(self.ranks, self.steps, self.tokens, self.floor)
        made.sums, made.done = self.sums.copy(), self.done.copy()
        made.begin, made.end = self.begin.copy(), self.end.copy()
        return made
