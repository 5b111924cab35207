"""Who did what when: one table for simulated and for measured pipeline runs.

rank 0    F0 F1 F2 F3 .. .. .. B0 ...        each span has a device, a kind, a stage,
rank 1    .. F0 F1 F2 F3 .. B0 ...           a micro-batch, a start and an end
                ^ idle: makespan minus the union of the device's compute spans

devices x makespan  =  busy + idle  =  busy + exposed_transfer + overhead + true_idle    (idle.py)
"""

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan import html
from tiledask.plan.frames import frame
from tiledask.plan.pipelines.bound import (
    Bound,
    CriticalPath,
    Evidence,
    critical_path,
    lower_bound,
)
from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.idle import CAUSES, IdleTime, Waits, idle_time, waits
from tiledask.plan.pipelines.spans import COMPUTE, KINDS, TRANSFER, Spans
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMPUTE", "KINDS", "TRANSFER", "Span", "Timeline", "union_length"]

Span = tuple[int, str, int, int, float, float]
"""(device, kind, stage, microbatch, start, end), times in seconds."""


def union_length(intervals: np.ndarray) -> float:
    """Length of the union of ``intervals`` [n, 2], in the order of their starts."""
    start, end = intervals.T
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate([[-np.inf], reach[:-1]]))
    return float(np.maximum(end - start, 0.0).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Spans):
    """Spans in flat columns. Time 0 is the start of the first compute span, or of the gathering of
    weights that it waits for.

    >>> t = Timeline.of(2, [(0, "F", 0, 0, 0.0, 1.0), (1, "F", 1, 0, 1.0, 2.0)])
    >>> t.makespan, t.busy, t.idle, t.bubble_fraction, t.bubble_overhead
    (2.0, 2.0, 2.0, 0.5, 1.0)
    """

    evidence: Evidence | None = None
    """Of a simulation: what it came from."""

    @classmethod
    def of(cls, devices: int, spans: Iterable[Span], origin: str = "simulated") -> "Timeline":
        """A Timeline of ``spans``, moved so that the first compute span starts at 0.

        Raises ScheduleError for a span on no device of 0..devices-1, or that ends before it starts.
        """
        spans = sorted(spans, key=lambda s: (s[0], s[4], s[5]))
        zero = min((s[4] for s in spans if s[1] != TRANSFER), default=0.0)
        for device, kind, stage, microbatch, start, end in spans:
            if kind not in KINDS:
                raise ScheduleError(
                    f"a span of kind {kind!r} on rank {device}; kinds are {', '.join(KINDS)}"
                )
            if not 0 <= device < devices or not start <= end:
                raise ScheduleError(
                    f"{stage}{kind}{microbatch} is on rank {device} of {devices}, from {start} "
                    f"to {end} s; ranks count from 0 and a span ends at or after its start"
                )
        columns = list(zip(*spans, strict=True)) or [()] * 6
        return cls(
            devices,
            np.array(columns[0], np.int32),
            np.array([KINDS.index(kind) for kind in columns[1]], np.int8),
            np.array(columns[2], np.int32),
            np.array(columns[3], np.int32),
            np.array(columns[4], np.float64) - zero,
            np.array(columns[5], np.float64) - zero,
            origin,
        )

    @cached_property
    def kind(self) -> np.ndarray:
        """One word per span: of COMPUTE, or TRANSFER."""
        kinds: np.ndarray = np.array(list(KINDS))[self.code]
        return kinds

    @cached_property
    def _first(self) -> np.ndarray:
        """Where each device's spans begin, and where the last one's end."""
        return np.searchsorted(self.device, np.arange(self.devices + 1))

    def _spans(self, device: int, computes: bool = True) -> np.ndarray:
        """[n, 2]: starts and ends of what a device computes, or of what is on its way to it."""
        rows = slice(*self._first[device : device + 2])
        wanted = self.computes[rows] == computes
        return np.stack([self.start[rows][wanted], self.end[rows][wanted]], axis=1)

    @cached_property
    def bound(self) -> Bound | None:
        """What no order of the same actions beats, and why; None for a measured run."""
        return lower_bound(self.evidence.schedule, self.evidence.costs) if self.evidence else None

    @property
    def lower_bound(self) -> float | None:
        """Seconds below which no order of the same actions goes; None for a measured run."""
        return self.bound.seconds if self.bound else None

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The chain of actions that decided the makespan; None for a measured run."""
        return critical_path(self.evidence.schedule, self.evidence.walk) if self.evidence else None

    @cached_property
    def busy_per_device(self) -> tuple[float, ...]:
        """Seconds in which each device computes (the union of its compute spans)."""
        return tuple(union_length(self._spans(d)) for d in range(self.devices))

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

    @property
    def transfer(self) -> float:
        """Device-seconds in which a block travels to a device (may overlap compute)."""
        return sum(union_length(self._spans(d, computes=False)) for d in range(self.devices))

    @cached_property
    def waits(self) -> Waits:
        """How long each action was waited for, and for what."""
        return waits(self)

    @cached_property
    def idle_time(self) -> IdleTime:
        """Every moment in which a device does not compute, with its cause."""
        return idle_time(self, self.waits)

    @property
    def exposed_transfer_per_device(self) -> tuple[float, ...]:
        """Seconds in which each device waits for a block that is on its way to it, and whose
        action could otherwise start."""
        return self.idle_time.per_device["transfer"]

    @property
    def exposed_transfer(self) -> float:
        """Device-seconds of waiting for blocks on their way, all devices together."""
        return sum(self.exposed_transfer_per_device)

    @property
    def overhead(self) -> float:
        """Device-seconds in which an action could start, no block that it waits for is on its
        way, and it does not: the time of whoever runs the schedule. 0 in a simulation."""
        return self.idle_time.total["overhead"]

    @property
    def true_idle(self) -> float:
        """Device-seconds in which a device has nothing that it could do: what its next action uses
        is not made yet, or it has done all of its actions. The bubble of the schedule itself,
        idle - exposed_transfer - overhead."""
        return max(0.0, self.idle - self.exposed_transfer - self.overhead)

    @cached_property
    def overhead_per_action(self) -> float:
        """Median seconds from when an action could start, with its blocks there, to its start."""
        return float(np.median(self.waits.overhead)) if len(self.waits.overhead) else 0.0

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
        spans = [self._spans(d) for d in range(self.devices)]
        span = max((s[:, 1].max() - s[:, 0].min() for s in spans if len(s)), default=0.0)
        return 1.0 - self.busy / (self.devices * span) if span else 0.0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per device, the most (stage, micro-batch) activations alive at once.

        One is alive from the start of its forward to the end of its backward: the full
        backward, or the weight gradient where the backward is split. Without any backward
        (inference) it is alive until its forward ends.
        """
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
        """Write Chrome's trace events, which Perfetto and chrome://tracing show: devices are
        threads. Packed if ``path`` ends in .gz.

        What is on its way to a device has a thread of its own, and so has work at the same time as
        other work. Kinds are categories; stage, micro-batch and device stand in ``args``.
        """
        zero = float(self.start.min(initial=0.0))  # a block may come before 0
        data = {"traceEvents": list(self._trace_events(zero)), "displayTimeUnit": "ms"}
        text = json.dumps(data).encode()
        with open(path, "wb") as file:
            file.write(gzip.compress(text, mtime=0) if os.fspath(path).endswith(".gz") else text)

    def _trace_events(self, zero: float) -> Iterator[dict[str, Any]]:
        def named(kind: str, tid: int, **args: Any) -> dict[str, Any]:
            return {"name": kind, "ph": "M", "pid": 0, "tid": tid, "args": args}

        yield named("process_name", 0, name=f"{self.origin}: {self.devices} devices")
        threads: dict[tuple[int, bool, int], int] = {}
        free: dict[tuple[int, bool, int], float] = {}
        columns = self.device, self.kind, self.stage, self.microbatch, self.start, self.end
        for d, kind, stage, batch, start, end in zip(*(c.tolist() for c in columns), strict=True):
            travels = kind not in COMPUTE
            lane = next(n for n in count() if free.get((d, travels, n), -np.inf) <= start)
            place = d, travels, lane
            if place not in threads:
                threads[place] = len(threads)
                words = f"rank {d}" + (", on its way" if travels else "")
                yield named("thread_name", threads[place], name=words)
            free[place] = end
            name = f"stage {stage}, micro-batch {batch}"
            if kind != TRANSFER:
                first, last = (str(n) if n >= 0 else "" for n in (stage, batch))
                name = f"{first}{kind}{last}"
            yield {
                "name": name,
                "cat": kind,
                "ph": "X",
                "ts": 1e6 * (start - zero),
                "dur": 1e6 * (end - start),
                "pid": 0,
                "tid": threads[place],
                "args": {"device": d, "stage": stage, "microbatch": batch},
            }

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.origin}: {int(self.computes.sum())} actions on {self.devices} "
            f"devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.bubble_fraction:.1f} % of device-time idle)"
        )

    def _repr_html_(self) -> str:
        idle = {
            CAUSES[cause]: each for cause, each in self.idle_time.per_device.items() if any(each)
        }
        parts = {"busy": self.busy_per_device, **idle}
        of = self.makespan
        rows = [
            (d, *(f"{format_seconds(s)} ({100 * s / of:.1f} %)" if of else "0 s" for s in each))
            for d, each in enumerate(zip(*parts.values(), strict=True), 1)
        ]
        return html.table(("device", *parts), rows, repr(self))
