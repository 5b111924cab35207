"""A schedule with the times of its actions: what a trace is explained by, and what is changed.

Form            which schedule of the table, how many devices, chunks and micro-batches
TimedSchedule   a schedule and the seconds of everything in it; simulated: makespan, idle time
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import peak_in_flight

__all__ = ["Form", "TimedSchedule", "forms", "made"]

STEPWISE = ("zb-auto", "v-half", "v-min")
"""Schedules whose order is made action by action, in Python."""
MOST_STEPS = 4_000
"""Actions up to which those are made just to compare: some 0.1 s."""
TIMES = ("forward", "backward", "backward_input", "backward_weight")
"""Of a kind of action, in the order of KINDS -> the argument of :func:`tiledask.simulate`."""


class Form(NamedTuple):
    """One schedule of the table, by what :func:`tiledask.schedule` needs."""

    name: str
    devices: int
    chunks: int  # stages on each device
    microbatches: int

    def __str__(self) -> str:
        return self.name + (f", {self.chunks} chunks per device" if self.chunks > 1 else "")


@lru_cache(maxsize=1024)
def made(form: Form, **times: Any) -> Schedule | None:
    """The Schedule of ``form``, for ``times`` where they are given; None if there is none on that
    many devices, or it takes longer than anybody waits who only wants to compare."""
    stages = form.devices * form.chunks
    if form.name in STEPWISE and 3 * stages * form.microbatches > MOST_STEPS:
        return None
    if is_looped(form.name):
        times["devices"] = form.devices
    try:
        order = schedule(form.name, stages, form.microbatches, **times)
    except ScheduleError:
        return None
    return order if order.devices == form.devices else None


def forms(devices: int, microbatches: int, most: int = 4) -> Iterator[Form]:
    """Every Form of the table, with up to ``most`` chunks per device."""
    for name in schedules:
        chunks: Sequence[int] = range(2, most + 1) if is_looped(name) else (1,)
        for v in (2,) if name in V_SHAPED else chunks:
            yield Form(name, devices, v, microbatches)


@dataclass(frozen=True, repr=False, eq=False)
class TimedSchedule:
    """A schedule and its times."""

    schedule: Schedule
    seconds: np.ndarray  # of each kind of action on each stage, [4, stages], without the overhead
    hops: np.ndarray  # seconds over each boundary between stages
    overhead: float = 0.0  # seconds before each action in which its device does no work
    form: Form | None = None  # None for an order that is not in the table

    @property
    def times(self) -> dict[str, np.ndarray]:
        """The arguments of :func:`tiledask.simulate`, overheads in the actions."""
        return dict(zip(TIMES, self.seconds + self.overhead, strict=True)) | {"latency": self.hops}

    @cached_property
    def timeline(self) -> Timeline:
        """Simulated."""
        return simulate(self.schedule, **self.times)

    @property
    def makespan(self) -> float:
        """Seconds."""
        return self.timeline.makespan

    @property
    def idle(self) -> float:
        """Device-seconds without work; the overhead of an action is none."""
        busy = self.timeline.busy - self.overhead * len(self.schedule)
        return self.schedule.devices * self.makespan - busy

    @property
    def idle_share(self) -> float:
        """idle / (devices x makespan)."""
        whole = self.schedule.devices * self.makespan
        return self.idle / whole if whole else 0.0

    @cached_property
    def memory(self) -> float:
        """Activations of the fullest device, of the whole batch on its share of the layers: GPipe
        keeps 1; 1F1B keeps p / m; stages are taken to be equal."""
        s = self.schedule
        return max(peak_in_flight(s)) * s.devices / s.stages / s.microbatches
