"""What ranks report of their steps, and whole steps put together from all ranks' reports.

    rank 0   step  step  step ... report --\\
    rank 1   step  step  step ... report ---+--> Assembly --> Progress of each step, in order
    rank 2   step  step  step ... report --/

A report has a row for each step since the last one, and for the dashboard's page the sums of all
collectives so far, layer by layer. There are at most ten a second from a rank, however short its
steps are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.training.by_layer import CallSite, Sums, tally

__all__ = ["Assembly", "Progress", "Say", "StepReporter"]

EVERY = 0.1
"""Seconds between two reports of a rank, at least."""
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


class StepReporter:
    """What one rank says of its steps. ``attempt``: how often the run was begun before; what was
    saved then is reported again, for its last steps may not have been."""

    def __init__(self, rank: Rank, say: Say, attempt: int) -> None:
        self.rank, self.say, self.attempt = rank, say, attempt
        self.begin = rank.transport.now()
        self._seen, self._done, self._last = 0, 0, self.begin - EVERY
        self._rows: list[tuple[Any, ...]] = []
        self._sums: dict[CallSite, Sums] = {}

    def update(self, losses: Sequence[float], at_once: bool = False) -> None:
        """Report the steps that are done, of which this rank has these parts of the ``losses``."""
        rank, records = self.rank, dict[int | None, list[Record]]()
        for each in rank.records[self._seen :]:
            records.setdefault(each.step, []).append(each)
        for step, loss in zip(rank.steps[self._done :], losses[self._done :], strict=True):
            mine = tally(records.get(step.step, ()))
            for place, sums in mine.items():
                self._sums[place] = self._sums.get(place, Sums()).plus(sums)
            whole = reduce(Sums.plus, mine.values(), Sums())
            # the ranks of a tensor-parallel group all have the loss of the same rows
            part = 0.0 if rank.coordinates[1] else loss
            row = step.step, part, whole.sent, whole.messages, whole.barriers, step.end
            self._rows.append((rank.index, "step", *row))
        self._seen, self._done = len(rank.records), len(rank.steps)
        now = rank.transport.now()
        if self._rows and (at_once or now - self._last >= EVERY):
            rows = [(*place, *mine) for place, mine in self._sums.items()]
            counted = {"begin": self.begin, "steps": self._done, "sums": rows}
            every = [(rank.index, counted)]
            self.say({"attempt": self.attempt, "spans": self._rows, "counted": every})
            self._last, self._rows = now, []


class Assembly:
    """Whole steps from the reports of ``ranks`` ranks."""

    def __init__(self, ranks: int, steps: int, tokens: int, floor: float | None = None) -> None:
        self.ranks, self.steps, self.tokens, self.floor = ranks, steps, tokens, floor
        self._begin: dict[int, float] = {}
        """Rank -> when its first step began."""
        self._open: dict[int, list[Sequence[Any]]] = {}
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
        for _, _, number, *row in report["spans"]:
            if number < self._next:
                continue  # an earlier attempt completed it
            ranks = self._open.setdefault(number, [])
            ranks.append(row)
            if len(ranks) < self.ranks:
                continue
            losses, sent, messages, barriers, ends = zip(*self._open.pop(number), strict=True)
            before = min(self._begin.values()) if self._last is None else self._last
            self._last, self._next = max(ends), number + 1
            yield Progress(
                number,
                self.steps,
                sum(losses),
                self._last - before,
                self.tokens,
                sum(sent),
                sum(messages),
                max(barriers),
                self.floor,
            )
