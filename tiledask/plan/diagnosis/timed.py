"""A schedule with the times of its actions: what a trace is explained by, and what is changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import LOOPED, V_SHAPED, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["OWN", "Form", "TimedSchedule", "forms", "made", "title"]

OWN = "own order"
"""The name of an order that is not in the table of schedules."""
STEPWISE = ("zb-auto", "v-half", "v-min")
"""Schedules whose order is made action by action, in Python."""
MOST_STEPS = 4_000
"""Actions up to which those are made just to compare: some 0.1 s."""
TIMES = ("forward", "backward", "backward_input", "backward_weight")
"""Of a kind of action, in the order of KINDS -> the argument of :func:`tiledask.simulate`."""
Form = tuple[str, int, int]
"""(schedule of the table, devices, stages on each)."""


def forms(devices: int, most: int = 4) -> Iterator[Form]:
    """Every Form of the table, with up to ``most`` stages on each device."""
    for name in schedules:
        chunks: Sequence[int] = range(2, most + 1) if name in LOOPED else (1,)
        for v in (2,) if name in V_SHAPED else chunks:
            yield name, devices, v


@lru_cache(maxsize=1024)
def made(name: str, devices: int, chunks: int, microbatches: int, **times: Any) -> Schedule | None:
    """The Schedule ``name`` with ``chunks`` stages on each device, for ``times`` where they are
    given; None if there is none on that many devices, or it takes longer than anybody waits who
    only wants to compare."""
    stages = devices * chunks
    if name in STEPWISE and 3 * stages * microbatches > MOST_STEPS:
        return None
    if name in LOOPED:
        times["devices"] = devices
    try:
        order = schedule(name, stages, microbatches, **times)
    except ScheduleError:
        return None
    return order if order.devices == devices else None


def title(order: Schedule) -> str:
    """Its name, and of a schedule of the table with several stages on a device how many."""
    chunks = order.stages // order.devices if order.name != OWN else 1
    return order.name + (f", {chunks} chunks per device" if chunks > 1 else "")


@dataclass(frozen=True, repr=False, eq=False)
class TimedSchedule:
    """A schedule and its times, as they are, or as they were read off a trace."""

    schedule: Schedule
    seconds: np.ndarray  # of each kind of action on each stage, [4, stages], without the overhead
    hops: np.ndarray  # seconds over each boundary between stages
    overhead: float = 0.0  # seconds before each action in which its device does no work
    untold: tuple[str, ...] = ()
    """Of "latency" and "overhead" what nothing in the trace waited for, so that it does not say."""

    @property
    def times(self) -> dict[str, np.ndarray]:
        """The arguments of :func:`tiledask.simulate`, overheads in the actions."""
        return dict(zip(TIMES, self.seconds + self.overhead, strict=True)) | {"latency": self.hops}

    @cached_property
    def timeline(self) -> Timeline:
        """Simulated."""
        return simulate(self.schedule, **self.times)

    @property
    def idle(self) -> float:
        """Device-seconds without work; the overhead of an action is none."""
        busy = self.timeline.busy - self.overhead * len(self.schedule)
        return self.schedule.devices * self.timeline.makespan - busy
