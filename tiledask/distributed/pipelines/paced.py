"""Work that takes its time: wait for its blocks, work, keep the device, report.

A forward and a backward at once are done one after the other, and count as one from start to end.

block made        block there
   |---- latency ----|
   '------ sent -----|start ===== work =====.... paced ....|end
"""

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker

from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.pipelines.kernels import StageKernels, StageRunner, StagesMade
from tiledask.distributed.transport.mailbox import Mailbox
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import KINDS, Action
from tiledask.plan.pipelines.timeline import TRANSFER, Span
from tiledask.plan.program.program import Program

__all__ = ["Arrival", "DeviceDone", "PacedLine", "arrived", "sleep_until"]

REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""

Arrival = tuple[float, tuple[tuple[float, float], ...]]
"""Of a block that came from another device, by the scheduler's clock: when it was made; and (start,
end) of its way, if that is known here."""


class DeviceDone(NamedTuple):
    """What a device brings back."""

    made: list[StagesMade]
    """By every stage."""
    spans: list[Span]
    """Of its actions, and of the blocks that they waited for."""
    late: float
    """The longest that an action took beyond its time."""
    moves: list[tuple[int, int]]
    """(source, bytes) of what came past Dask."""


class PacedLine(StageRunner):
    """All actions of a device, in their order and their time; engines say how messages go."""

    def __init__(
        self,
        topic: str,
        box: Mailbox,
        program: Program,
        pace: PipelineCosts,
        operands: dict[int, StageKernels],
    ) -> None:
        self.topic, self.box, self.pace = topic, box, pace
        self.turn, self.end, self.late = 0, 0.0, 0.0
        """The turn under way; the end of what was done last; the longest beyond its time."""
        self.arrivals: dict[int, Arrival] = {}
        """By turn that is under way, of the block that it uses."""
        self.spans: list[Span] = []
        self.moves: list[tuple[int, int]] = []
        super().__init__(SimpleNamespace(index=box.device), program, operands)

    def at_once(self, turns: Sequence[int]) -> None:
        """Do the actions of turns that are done at once, usually one."""
        self.box.check()
        actions, hop = [self.action(turn) for turn in turns], self.pace.hop
        latencies = [float(hop[i % len(hop), s + (kind != "F")]) for kind, s, i in actions]
        self.arrivals.clear()
        self._some(turns, "recv")
        for turn, latency in zip(turns, latencies, strict=True):
            if turn in self.arrivals:
                sleep_until(self.arrivals[turn][0] + latency)
        start, seconds = now(), _occupied(self.pace, actions)
        self._some(turns, "")
        worked = now()
        # a paced device is free after its time to the instant; a thread that the system wakes later
        # is no work of that device, but overhead before its next action
        self.end = max(worked, start + seconds)
        sleep_until(self.end)
        late = max(0.0, worked - start - seconds) if seconds else 0.0
        self.late = max(self.late, late)
        for turn, action, latency in zip(turns, actions, latencies, strict=True):
            spans: list[Span] = [(self.index, *action, start, self.end)]
            if turn in self.arrivals:
                spans += arrived(self.index, action, latency, self.arrivals[turn])
            self.spans += spans
            self._report({"run": self.topic, "spans": spans, "late": late})
        self._some(turns, "send")
        for turn in turns:
            self._leave(turn)

    def done(self) -> DeviceDone:
        """What it brings back."""
        return DeviceDone(self.made(), self.spans, self.late, self.moves)

    def _some(self, turns: Sequence[int], kind: str) -> None:
        """Do the messages of a kind; "": the kernels."""
        for self.turn in turns:
            calls = self._bound[self.turn]
            some = [each for each in calls if kind == ("" if each[0].is_kernel else each[0].name)]
            self._go(self.turn, some)

    def _report(self, event: dict[str, Any]) -> None:
        """Report on the run's topic; a little later, because a worker's messages go out 2 ms apart:
        the news that this action is done, for which another device may be waiting, shall not queue
        behind its time of day."""
        worker = get_worker()
        later = worker.loop.call_later, REPORT_AFTER, worker.log_event
        worker.loop.add_callback(*later, self.topic, event)


def _occupied(costs: PipelineCosts, actions: Sequence[Action]) -> float:
    """Seconds for which actions that are done at once, usually one, occupy their device; 0 for as
    long as their work takes."""

    def entry(row: np.ndarray, microbatch: int) -> float:
        return float(row[microbatch if len(row) > 1 else 0])

    _, stage, microbatch = actions[0]
    seconds = entry(costs.together[stage], microbatch) if len(actions) > 1 else -1.0
    if seconds >= 0:
        return seconds
    return sum(entry(costs.seconds[KINDS.index(k), s], i) for k, s, i in actions)


def arrived(device: int, action: Action, latency: float, block: Arrival) -> Iterator[Span]:
    """The spans in which a block was on its way from the stage that made it."""
    stage = action.stage + (-1 if action.kind == "F" else 1)
    made, ways = block
    # a way begins by another worker's clock, and by their error it may seem to end before
    for left, there in (*ways, (made, made + latency)) if latency else ways:
        yield device, TRANSFER, stage, action.microbatch, min(left, there), there


def sleep_until(moment: float) -> None:
    """Return at ``moment`` of the scheduler's clock."""
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))
