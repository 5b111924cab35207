"""A schedule with the times of its actions: what a trace is explained by, and what is changed.

Form            which schedule of the table, how many devices, chunks and micro-batches
TimedSchedule   a schedule and the seconds of everything in it; simulated: makespan, idle time
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.validate import peak_in_flight

__all__ = ["Form", "TimedSchedule", "forms"]

FORWARD_ONLY = ("gpipe", "interleaved", "looped-bfs")
"""One name for each order of forwards: the others are one of them when backwards are left out."""
STEPWISE = ("zb-auto", "v-half", "v-min")
"""Schedules whose order is made action by action, in Python."""
MOST_STEPS = 4_000
"""Actions up to which those are made just to compare: some 0.1 s."""


class Form(NamedTuple):
    """One schedule of the table, by what :func:`tiledask.schedule` needs."""

    name: str
    devices: int
    chunks: int
    """Stages on each device."""
    microbatches: int
    trains: bool = True

    def made(self, **times: Any) -> Schedule | None:
        """The Schedule, made for ``times`` where they are given; None if there is none on that many
        devices, or it takes longer than anybody waits who only wants to compare."""
        return _made(self, **times)

    def __str__(self) -> str:
        chunks = f", {self.chunks} chunks per device" if self.chunks > 1 else ""
        return self.name + chunks + ("" if self.trains else ", forward only")


@lru_cache(maxsize=1024)
def _made(form: Form, **times: Any) -> Schedule | None:
    stages, options = form.devices * form.chunks, {"forward_only": not form.trains, **times}
    if form.name in STEPWISE and 3 * stages * form.microbatches > MOST_STEPS:
        return None
    if is_looped(form.name):
        options["devices"] = form.devices
    try:
        made = schedule(form.name, stages, form.microbatches, **options)
    except ScheduleError:
        return None
    return made if made.devices == form.devices else None


def forms(devices: int, microbatches: int, trains: bool = True, most: int = 4) -> Iterator[Form]:
    """Every Form of the table, with up to ``most`` chunks per device."""
    for name in schedules if trains else FORWARD_ONLY:
        chunks: Sequence[int] = range(2, most + 1) if is_looped(name) else (1,)
        for v in (2,) if name in V_SHAPED else chunks:
            yield Form(name, devices, v, microbatches, trains)


@dataclass(frozen=True, repr=False)
class TimedSchedule:
    """A schedule and its times, one per stage, in seconds."""

    schedule: Schedule
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    backward_input: tuple[float, ...] = ()
    """() for half of the backward."""
    backward_weight: tuple[float, ...] = ()
    latency: tuple[float, ...] = ()
    """Per boundary between stages; () for none."""
    overhead: float = 0.0
    """Seconds between an action's being ready and its start, each time."""
    form: Form | None = None
    """None for an order that is not in the table."""

    @property
    def seconds(self) -> dict[str, tuple[float, ...]]:
        """Of each kind of action, a backward in halves where its parts are not given."""
        half = tuple(b / 2 for b in self.backward)
        return {
            "forward": self.forward,
            "backward": self.backward,
            "backward_input": self.backward_input or half,
            "backward_weight": self.backward_weight or half,
        }

    @property
    def times(self) -> dict[str, tuple[float, ...]]:
        """The arguments of :func:`tiledask.simulate`, overheads in the actions."""
        times = {name: tuple(t + self.overhead for t in ts) for name, ts in self.seconds.items()}
        return times | {"latency": self.latency or (0.0,) * (self.schedule.stages - 1)}

    def retimed(
        self, change: Callable[[tuple[float, ...]], tuple[float, ...]], **more: Any
    ) -> "TimedSchedule":
        """The same with ``change`` made to the times of each kind, and ``more`` to the rest."""
        changed: dict[str, Any] = {name: change(times) for name, times in self.seconds.items()}
        return replace(self, **changed, **more)

    @cached_property
    def timeline(self) -> Timeline:
        """Simulated."""
        return simulate(self.schedule, **self.times)

    @property
    def makespan(self) -> float:
        """Seconds."""
        return self.timeline.makespan

    @property
    def devices(self) -> int:
        return self.schedule.devices

    @property
    def idle(self) -> float:
        """Device-seconds without work; the overhead of an action is none."""
        busy = self.timeline.busy - self.overhead * len(self.schedule)
        return self.devices * self.makespan - busy

    @property
    def idle_share(self) -> float:
        """idle / (devices x makespan)."""
        whole = self.devices * self.makespan
        return self.idle / whole if whole else 0.0

    @cached_property
    def memory(self) -> float:
        """Activations of the fullest device, of the whole batch on its share of the layers: GPipe
        keeps 1; 1F1B keeps p / m; stages are taken to be equal."""
        chunk = self.devices / self.schedule.stages / self.schedule.microbatches
        return max(peak_in_flight(self.schedule)) * chunk

    @cached_property
    def device_times(self) -> tuple[float, ...]:
        """Seconds of work of each device for one micro-batch (mean over micro-batches)."""
        s, table = self.schedule, np.array([*self.seconds.values()])
        work = np.bincount(s.device, table[s.kind, s.stage], minlength=s.devices)
        return tuple((work / s.microbatches).tolist())
