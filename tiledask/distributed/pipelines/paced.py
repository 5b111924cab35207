"""Work that takes its time: wait for its blocks, work, keep the device, report.

A forward and a backward at once are done one after the other, and count as one from start to end.

block made        block there
   |---- latency ----|
   '------ sent -----|start ===== work =====.... paced ....|end
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from distributed import get_worker

from tiledask.distributed.cluster.clocks import now
from tiledask.plan.pipelines.costs import PipelineCosts
from tiledask.plan.pipelines.schedule import KINDS, Action
from tiledask.plan.pipelines.timeline import TRANSFER, Span

__all__ = ["Arrival", "perform", "sleep_until"]

REPORT_AFTER = 0.02
"""Seconds after its end at which an action is reported."""
SPIN = 3e-4
"""Seconds before a moment in which a thread watches the clock: a sleep ends about so much late."""


class Arrival(NamedTuple):
    """A block that came from another device, by the scheduler's clock."""

    made: float
    sent: tuple[float, float] | None = None
    """(start, end) of its way, if that is known here."""


def perform(
    topic: str,
    device: int,
    costs: PipelineCosts,
    actions: Sequence[Action],
    arrivals: Sequence[Arrival | None],
    work: Callable[[], Any],
) -> tuple[float, list[Span], float]:
    """(the moment at which actions were over, whose ``work`` began when their blocks were there;
    the spans of actions and of blocks on their way; how long the work took beyond its time).

    Each action is reported on ``topic``, too.
    """
    seconds, hop = _occupied(costs, actions), costs.hop
    latencies = [float(hop[i % len(hop), s + (kind != "F")]) for kind, s, i in actions]
    came = list(zip(actions, latencies, arrivals, strict=True))
    for _, latency, block in came:
        if block is not None:
            sleep_until(block.made + latency)
    start = now()
    work()
    worked = now()
    # a paced device is free after its time to the instant; a thread that the system wakes later
    # is no work of that device, but overhead before its next action
    end = max(worked, start + seconds)
    sleep_until(end)
    late = max(0.0, worked - start - seconds) if seconds else 0.0
    worker, every = get_worker(), list[Span]()
    for action, latency, block in came:
        spans: list[Span] = [(device, *action, start, end)]
        if block is not None:
            spans += _ways(device, action, latency, block)
        every += spans
        # later, because a worker's messages go out 2 ms apart: the news that this action is done,
        # for which another device may be waiting, shall not queue behind its time of day
        event = {"run": topic, "spans": spans, "late": late}
        worker.loop.add_callback(
            worker.loop.call_later, REPORT_AFTER, worker.log_event, topic, event
        )
    return end, every, late


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


def _ways(device: int, action: Action, latency: float, block: Arrival) -> Iterator[Span]:
    """The spans in which a block was on its way from the stage that made it."""
    stage = action.stage + (-1 if action.kind == "F" else 1)
    ways = [block.sent] if block.sent else []
    if latency:
        ways.append((block.made, block.made + latency))
    # a way begins by another worker's clock, and by their error it may seem to end before
    for left, there in ways:
        yield device, TRANSFER, stage, action.microbatch, min(left, there), there


def sleep_until(moment: float) -> None:
    """Return at ``moment`` of the scheduler's clock."""
    while (left := moment - now()) > 0:
        time.sleep(max(0.0, left - SPIN))
