"""What came out of running a schedule: results, when each action ran, and what that took."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.clocks import Clock
from tiledask.distributed.cluster.counters import Load
from tiledask.plan import html
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["PipelineRun", "replay"]


@dataclass(frozen=True, repr=False)
class PipelineRun:
    """What came out of running a schedule, and when each action ran."""

    timeline: Timeline
    """Measured: compute spans by the workers' clocks, transfers beneath them."""
    simulated: Timeline | None
    """What `td.simulate` says of the same schedule and times; None if no times were given."""
    replayed: Timeline
    """Simulated: the actions as long as they took, each started as soon as it could. What
    overhead and transfers cost, and the waiting that they caused elsewhere, is left out."""
    outputs: np.ndarray
    """[tokens, width]: the last stage's output for the whole batch."""
    loss: float | None
    """Mean square error against the target; None for a forward-only schedule and for dummies."""
    gradients: tuple[Any, ...]
    """Per stage, the gradients of its weights summed over micro-batches; () if forward only."""
    traffic: Both
    """Traffic between devices, predicted and measured; after a worker died and its work was done
    again, more is measured than predicted. None is measured if a worker did not say."""
    memory: Ledger | None
    """Measured: bytes by which each slot grew, weights included; None if a worker did not say."""
    clocks: tuple[Clock, ...]
    """Per slot, how its worker's clock was corrected, and how wrong that may be."""
    engine: str
    """"tasks" or "loop": what ran the actions."""
    load: Load
    """Of this machine meanwhile; workers elsewhere may have had more room or less."""

    @property
    def clock_error(self) -> float:
        """Seconds by which times of two devices may be wrong against each other: each may be off
        by its own error, and the other way."""
        return sum(sorted(clock.error for clock in self.clocks)[-2:])

    def __repr__(self) -> str:
        overhead = format_seconds(self.timeline.overhead_per_action)
        simulated = (
            f" ({100 * self.simulated.bubble_fraction:.1f} % simulated)" if self.simulated else ""
        )
        return (
            f"PipelineRun({self.timeline!r}{simulated}, overhead {overhead} per action, "
            f"loss {self.loss}, {self.traffic.measured or 'traffic not counted'!s})"
        )

    def _repr_html_(self) -> str:
        columns = {"measured": self.timeline, "replayed without delays": self.replayed}
        if self.simulated:
            columns["simulated"] = self.simulated
        each = [_shares(timeline) for timeline in columns.values()]
        rows = [(name, *(f"{100 * shares[name]:.1f} %" for shares in each)) for name in each[0]]
        table = html.table(("share of device-time", *columns), rows, repr(self), first="th")
        return (
            f"{table}<p>Overhead per action: median "
            f"{format_seconds(self.timeline.overhead_per_action)}; "
            f"clocks of the workers known to {format_seconds(self.clock_error)}; {self.load}, "
            f"of which other processes had {self.load.others:.1f}.</p>"
        )


def replay(schedule: Schedule, measured: Timeline) -> Timeline:
    """The Timeline of ``schedule`` if each action took what it did, and nothing held it up.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> gpipe = schedule("gpipe", stages=2, microbatches=2)
    >>> replay(gpipe, simulate(gpipe, 1.0, 2.0, latency=0.5)).makespan
    9.0
    """
    seconds = np.zeros((len(KINDS), schedule.stages, schedule.microbatches))
    ran = measured.computes
    at = measured.code[ran], measured.stage[ran], measured.microbatch[ran]
    seconds[at] = (measured.end - measured.start)[ran]
    both = None
    if schedule.pairs:  # of a pair each half has the time of both
        both = np.full(seconds.shape[1:], seconds.max())
        for first, second in pairwise(schedule):
            if first not in schedule.pairs:
                continue
            both[first[1:]] = seconds[(KINDS.index("F"), *first[1:])]
            for kind, *where in (first, second):
                seconds[(KINDS.index(kind), *where)] = 0.0
    F, B, I, W = seconds
    return simulate(schedule, F, B, backward_input=I, backward_weight=W, overlapped=both)


def _shares(timeline: Timeline) -> dict[str, float]:
    """The parts of all device-time: they sum to 1."""
    whole, why = timeline.devices * timeline.makespan or 1.0, timeline.idle_time.total
    seconds = {
        "busy": timeline.busy,
        "exposed transfer": why["transfer"],
        "overhead": why["overhead"],
        "true idle": max(0.0, timeline.idle - why["transfer"] - why["overhead"]),
    }
    return {name: each / whole for name, each in seconds.items()}
