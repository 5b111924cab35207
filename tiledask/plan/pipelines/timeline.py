"""Who did what when: one table for simulated and for measured pipeline runs.

rank 0    F0 F1 F2 F3 .. .. .. B0 ...        each span has a device, a kind, a stage,
rank 1    .. F0 F1 F2 F3 .. B0 ...           a micro-batch, a start and an end
                ^ idle: makespan minus the union of the device's compute spans

devices x makespan  =  busy + idle, and idle_time has the causes of idle (idle.py)
"""

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.frames import frame
from tiledask.plan.pipelines.costs import PipelineCosts, lower_bound
from tiledask.plan.pipelines.idle import IdleTime, idle_time
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.spans import COMPUTE, KINDS, TRANSFER, Spans, memory_over_time
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

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
        columns = list(zip(*spans, strict=True)) or [()] * 6
        code = np.array([KINDS.index(kind) for kind in columns[1]], np.int8)
        where, stages, microbatches = (np.array(columns[n], np.int32) for n in (0, 2, 3))
        starts, ends = (np.array(columns[n], float) - zero for n in (4, 5))
        return cls(devices, where, code, stages, microbatches, starts, ends, origin)

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
        busy = []
        for a, b in pairwise(self.acts.turns.tolist()):
            end = self.acts.end[a:b]
            before = np.append(-np.inf, np.maximum.accumulate(end)[:-1])
            apart = end - np.maximum(self.acts.start[a:b], before)
            busy.append(float(np.maximum(apart, 0.0).sum()))
        return tuple(busy)

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
        return float(np.median(self.idle_time.overhead or [0.0]))

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
        ends = pairwise(self.acts.turns.tolist())
        start, end = self.acts.start, self.acts.end
        span = max((end[a:b].max() - start[a] for a, b in ends if a < b), default=0.0)
        return 1.0 - self.busy / (self.devices * span) if span else 0.0

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

    def to_frame(self) -> "pd.DataFrame":
        """A pandas DataFrame with the columns device, kind, stage, microbatch, start, end."""
        names = ("device", "kind", "stage", "microbatch", "start", "end")
        return frame({name: getattr(self, name) for name in names})

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome's trace events, which Perfetto and chrome://tracing show; packed if ``path``
        ends in .gz. A device is a thread, and so is what is on its way to it, or at once."""
        zero = float(self.start.min(initial=0.0))  # a block may come before 0
        threads: dict[tuple[str, int], float] = {}  # (name, how many are like it): free from
        events: list[dict[str, Any]] = []
        columns = self.device, self.kind, self.stage, self.microbatch, self.start, self.end
        for d, kind, stage, batch, start, end in zip(*(c.tolist() for c in columns), strict=True):
            name = f"rank {d}" + ", on its way" * (kind == TRANSFER)
            alike = ((name, n) for n in count())
            thread = next(each for each in alike if threads.get(each, -np.inf) <= start)
            threads[thread] = end
            name = f"{stage}{kind}{batch}".replace("-1", "")
            args = {"device": d, "stage": stage, "microbatch": batch}
            event = {"name": name, "cat": kind, "ph": "X", "args": args, "pid": 0}
            event["tid"] = list(threads).index(thread)
            events.append(event | {"ts": 1e6 * (start - zero), "dur": 1e6 * (end - start)})
        for tid, (name, _) in enumerate(threads):
            of_thread = {"ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
            events.append(of_thread | {"name": "thread_name"})
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
        with open(path, "wb") as file:
            file.write(gzip.compress(text, mtime=0) if os.fspath(path).endswith(".gz") else text)

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.origin}: {int(self.computes.sum())} actions on {self.devices} "
            f"devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.bubble_fraction:.1f} % of device-time idle)"
        )
