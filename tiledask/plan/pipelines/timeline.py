"""Who did what when: one table for simulated and for measured pipeline runs.

rank 0    F0 F1 F2 F3 .. .. .. B0 ...        each span has a device, a kind, a stage,
rank 1    .. F0 F1 F2 F3 .. B0 ...           a micro-batch, a start and an end
                ^ idle: makespan minus the union of the device's compute spans

devices x makespan  =  busy + idle, and idle_time has the causes of idle (idle.py)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import PipelineCosts, lower_bound
from tiledask.plan.pipelines.idle import IdleTime, idle_time
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.spans import COMPUTE, KINDS, TRANSFER, Spans, memory_over_time
from tiledask.plan.tables import frame
from tiledask.plan.units import format_seconds

__all__ = ["COMPUTE", "KINDS", "TRANSFER", "Span", "Timeline"]

Span = tuple[int, str, int, int, float, float]
"""(device, kind, stage, microbatch, start, end), times in seconds."""


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Spans):
    """Spans in flat columns. Time 0 is the start of the first compute span.

    >>> t = Timeline.of(2, [(0, "F", 0, 0, 0.0, 1.0), (1, "F", 1, 0, 1.0, 2.0)])
    >>> t.makespan, t.busy, t.idle
    (2.0, 2.0, 2.0)
    """

    schedule: Schedule | None = None
    """Of a simulation: what it came from. Its actions are the spans, in this order."""
    costs: PipelineCosts | None = None
    """And the seconds that they took."""

    @classmethod
    def of(cls, devices: int, spans: Iterable[Span], origin: str = "simulated") -> "Timeline":
        """A Timeline of ``spans``, moved so that the first compute span starts at 0. Raises
        ScheduleError for a span of another kind or device, or that ends before it starts."""
        spans = sorted(spans, key=lambda s: (s[0], s[4], s[5]))
        for device, kind, stage, microbatch, start, end in spans:
            if kind not in KINDS or not 0 <= device < devices or not start <= end:
                raise ScheduleError(
                    f"{stage}{kind}{microbatch} is on rank {device} of {devices}, from {start} to "
                    f"{end} s; kinds are {', '.join(KINDS)}, and a span ends at or after its start"
                )
        zero = min((s[4] for s in spans if s[1] != TRANSFER), default=0.0)
        rows = [(d, KINDS.index(k), *rest) for d, k, *rest in spans]
        columns = np.array(rows, float).reshape(-1, 6).T
        whole = columns[:4].astype(np.int32)
        times = columns[4] - zero, columns[5] - zero
        return cls(devices, whole[0], whole[1].astype(np.int8), whole[2], whole[3], *times, origin)

    @cached_property
    def kind(self) -> np.ndarray:
        """One word per span: of COMPUTE, or TRANSFER."""
        kinds: np.ndarray = np.array(list(KINDS))[self.code]
        return kinds

    @cached_property
    def lower_bound(self) -> float | None:
        """Seconds below which no order of the same actions goes; None for a measured run."""
        if self.schedule is None or self.costs is None:
            return None
        return lower_bound(self.schedule, self.costs)

    @cached_property
    def busy_per_device(self) -> tuple[float, ...]:
        """Seconds in which each device computes (the union of its compute spans)."""
        acts = self.acts
        alone = np.maximum(acts.end - np.maximum(acts.start, acts.free[0]), 0.0)
        return tuple(np.bincount(acts.device, alone, minlength=self.devices).tolist())

    @property
    def idle_per_device(self) -> tuple[float, ...]:
        """Seconds in which each device does not compute."""
        return tuple(self.makespan - busy for busy in self.busy_per_device)

    @property
    def busy(self) -> float:
        """Device-seconds of compute, all devices together."""
        return sum(self.busy_per_device)

    @property
    def idle(self) -> float:
        """Device-seconds without compute: devices x makespan - busy."""
        return self.devices * self.makespan - self.busy

    @cached_property
    def idle_time(self) -> IdleTime:
        """Every moment in which a device does not compute, with its cause."""
        return idle_time(self)

    @property
    def overhead_per_action(self) -> float:
        """Median seconds from when an action could start, with its blocks there, to its start."""
        return float(np.median(self.idle_time.overhead)) if len(self.acts.end) else 0.0

    @property
    def utilisation(self) -> float:
        """busy / (devices x makespan)."""
        return self.busy / (self.devices * self.makespan) if self.makespan else 0.0

    @property
    def bubble_fraction(self) -> float:
        """idle / (devices x makespan): the share of all device-time that is lost."""
        return self.idle / (self.devices * self.makespan) if self.makespan else 0.0

    @property
    def bubble_overhead(self) -> float:
        """idle / busy: the loss over the ideal, (p-1)/m for GPipe and 1F1B (SC21)."""
        return self.idle / self.busy if self.busy else 0.0

    @property
    def span_bubble(self) -> float:
        """1 - busy / (devices x the largest per-device span): the Zero Bubble paper's rate."""
        first = self.acts.turns[:-1][np.diff(self.acts.turns) > 0]
        span = (self.acts.free[1][self.acts.device[first]] - self.acts.start[first]).max(initial=0)
        return 1.0 - self.busy / (self.devices * float(span)) if span else 0.0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per device, the most (stage, micro-batch) activations alive at once: from the start of
        the forward to the end of B or W; without any backward until the forward ends."""
        return tuple(map(int, memory_over_time(self).peaks))

    def state(self, device: int, time: float) -> str:
        """What ``device`` does at ``time``: an action such as "F0", or "idle"."""
        rows = self.computes & (self.device == device) & (self.start <= time) & (time < self.end)
        hits = np.flatnonzero(rows)
        return f"{self.kind[hits[0]]}{self.microbatch[hits[0]]}" if len(hits) else "idle"

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns device, kind, stage, microbatch, start, end."""
        names = ("device", "kind", "stage", "microbatch", "start", "end")
        return frame({name: getattr(self, name) for name in names})

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.origin}: {int(self.computes.sum())} actions on {self.devices} "
            f"devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.bubble_fraction:.1f} % of device-time idle)"
        )
