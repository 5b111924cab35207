"""What ranks report of their steps, and whole steps put together from all ranks' reports.

    rank 0   step  step  step ... report --\\
    rank 1   step  step  step ... report ---+--> Assembly --> Progress of each step, in order
    rank 2   step  step  step ... report --/

A report has a row for each step since the last one, and for the dashboard's page the sums of all
collectives so far, layer by layer. There are at most ten a second from a rank, however short its
steps are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.training.by_layer import CallSite, Sums, tally

__all__ = ["Assembly", "Progress", "Say", "reported"]

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
    sent: int
    messages: int
    barriers: int
    end: float

    def plus(self, other: "_Step") -> "_Step":
        """Both ranks' together."""
        return _Step(
            self.number,
            self.loss + other.loss,
            self.sent + other.sent,
            self.messages + other.messages,
            max(self.barriers, other.barriers),
            max(self.end, other.end),
        )


# -- on a rank ---------------------------------------------------------------------------------


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
        self.steps: list[tuple[Any, ...]] = []
        self.seen, self.begin = len(rank.records), rank.transport.now()
        self.last, self.done_so_far = self.begin - EVERY, len(rank.steps)
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
        self.done_so_far += 1
        if now - self.last >= EVERY:
            self.report()

    def _add(self, number: int, loss: float, end: float, mine: Mapping[CallSite, Sums]) -> None:
        sums = reduce(Sums.plus, mine.values(), Sums())
        # the ranks of a tensor-parallel group all have the loss of the same rows
        part = 0.0 if self.rank.coordinates[1] else loss
        row = number, part, sums.sent, sums.messages, sums.barriers, end
        self.steps.append((self.rank.index, "step", *row))

    def report(self) -> None:
        """All that was not reported yet."""
        if not self.steps:
            return
        self.last = self.steps[-1][-1]
        sums = [(*place, *mine) for place, mine in self.sums.items()]
        counted = {"begin": self.begin, "steps": self.done_so_far, "sums": sums}
        every = [(self.rank.index, counted)]
        self.say({"attempt": self.attempt, "spans": self.steps, "counted": every})
        self.steps = []


# -- whoever listens ---------------------------------------------------------------------------


class Assembly:
    """Whole steps from the reports of ``ranks`` ranks."""

    def __init__(self, ranks: int, steps: int, tokens: int, floor: float | None = None) -> None:
        self.ranks, self.steps, self.tokens, self.floor = ranks, steps, tokens, floor
        self._begin: dict[int, float] = {}
        """Rank -> when its first step began."""
        self._open: dict[int, list[_Step]] = {}
        """Number -> what the ranks that are through have reported."""
        self._last: float | None = None
        self._attempt, self._next = 0, 0
        """The attempt that reports; the step that no attempt has finished yet."""

    def completed(self, report: Mapping[str, Any]) -> Iterator[Progress]:
        """The steps that this report completes."""
        attempt = report["attempt"]
        if attempt < self._attempt:
            return  # a worker was lost since
        if attempt > self._attempt:
            self._attempt = attempt
            self._open.clear()
        for rank, counted in report["counted"]:
            self._begin.setdefault(rank, counted["begin"])
        for _, _, *row in report["spans"]:
            step = _Step(*row)
            if step.number < self._next:
                continue  # an earlier attempt completed it
            ranks = self._open.setdefault(step.number, [])
            ranks.append(step)
            if len(ranks) < self.ranks:
                continue
            whole = reduce(_Step.plus, self._open.pop(step.number))
            before = min(self._begin.values()) if self._last is None else self._last
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
