"""What came out of running a schedule or a program: results, when each action ran, what it took."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.clocks import Clock
from tiledask.distributed.cluster.counters import Load
from tiledask.distributed.ranks.records import Records
from tiledask.plan import html
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds

__all__ = ["PipelineRun", "ProgramRun", "replay"]


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
    """Per stage, the gradients of its weights summed over micro-batches; () if forward only. Those
    of a stage that is on several devices are summed where they come together."""
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
        overhead, simulated = format_seconds(self.timeline.overhead_per_action), self.simulated
        idle = f" ({100 * simulated.bubble_fraction:.1f} % simulated)" if simulated else ""
        return (
            f"PipelineRun({self.timeline!r}{idle}, overhead {overhead} per action, "
            f"loss {self.loss}, {self.traffic.measured or 'traffic not counted'!s})"
        )

    def _repr_html_(self) -> str:
        """The parts of all device-time, which sum to 1."""
        columns = {"measured": self.timeline, "replayed without delays": self.replayed}
        columns |= {"simulated": self.simulated} if self.simulated else {}
        rows = [["busy"], ["exposed transfer"], ["overhead"], ["true idle"]]
        for t in columns.values():
            delays = [t.idle_time.total[cause] for cause in ("transfer", "overhead")]
            seconds = t.busy, *delays, max(0.0, t.idle - sum(delays))
            for row, each in zip(rows, seconds, strict=True):
                row.append(f"{100 * each / (t.devices * t.makespan or 1.0):.1f} %")
        table = html.table(("share of device-time", *columns), rows, repr(self), first="th")
        return (
            f"{table}<p>Overhead per action: median "
            f"{format_seconds(self.timeline.overhead_per_action)}; "
            f"clocks of the workers known to {format_seconds(self.clock_error)}; {self.load}, "
            f"of which other processes had {self.load.others:.1f}.</p>"
        )


@dataclass(frozen=True, repr=False)
class ProgramRun:
    """What came out of running a program."""

    outputs: np.ndarray
    """These are as of a PipelineRun."""
    loss: float | None
    gradients: tuple[Any, ...]
    traffic: Both
    """Bytes and messages between ranks: counted in the program, and as they were received."""
    records: Records
    """Every message, with its block and micro-batch."""

    def __repr__(self) -> str:
        return f"ProgramRun(loss {self.loss}, {self.traffic.measured!r})"


def replay(schedule: Schedule, measured: Timeline) -> Timeline:
    """The Timeline of ``schedule`` if each action took what it did, and nothing held it up.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> gpipe = schedule("gpipe", stages=2, microbatches=2)
    >>> replay(gpipe, simulate(gpipe, 1.0, 2.0, latency=0.5)).makespan
    9.0
    """
    seconds = np.zeros((len(KINDS), schedule.stages, schedule.microbatches))
    acts, both = measured.acts, None
    seconds[acts.code, acts.stage, acts.microbatch] = acts.end - acts.start
    if schedule.pairs:  # of a pair each half has the time of both
        both = np.full(seconds.shape[1:], seconds.max())
        for first, second in pairwise(schedule):
            if first in schedule.pairs:
                both[first[1:]] = seconds[(0, *first[1:])]
                for kind, *where in (first, second):
                    seconds[(KINDS.index(kind), *where)] = 0.0
    F, B, I, W = seconds
    return simulate(schedule, F, B, backward_input=I, backward_weight=W, overlapped=both)
