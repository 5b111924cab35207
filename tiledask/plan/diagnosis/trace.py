"""When devices were busy: rows of device, start, end and, where they are known, kind, stage and
microbatch, in seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["Row", "Trace", "of_timeline"]

MOST_DEVICES = 4096
TURNS = 0.1
"""Share of the busy time with two devices or more at once, below which they take turns."""

Row = tuple[str, float, float, str, int, int]
"""(device, start, end, kind, stage, microbatch); "" and -1 for what is not known."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Busy intervals in flat columns, devices in the order in which they begin."""

    names: tuple[str, ...]  # what the trace calls its devices
    device: np.ndarray  # rising: positions in ``names``; each device's intervals by their starts
    start: np.ndarray  # seconds; the first interval starts at 0
    end: np.ndarray
    code: np.ndarray  # positions in KINDS; -1 for a kind that is not known
    stage: np.ndarray
    microbatch: np.ndarray
    source: str  # what was read, and what had to be assumed
    grain: float = 0.0  # seconds by which an edge may be wrong

    @classmethod
    def of(cls, rows: Iterable[Row], names: Sequence[str] = (), *, source: str) -> "Trace":
        """The Trace of these rows, in any order. ``names`` are devices that should be there.

        Raises ConfigError for rows without work, labels far beyond their number, two intervals of
        a device at once, and a device that never works.
        """
        rows = sorted(rows, key=lambda row: (row[1], len(row[0]), row[0]))
        order = dict.fromkeys(row[0] for row in rows)
        lazy = [name for name in names if name not in order]
        if lazy or len(order) > MOST_DEVICES or not any(row[2] > row[1] for row in rows):
            idle = f"device {lazy[0]} does no work" if lazy else f"{len(order)} devices work"
            raise ConfigError(
                f"{idle} in {source}; a trace has the work of one pipeline, of {MOST_DEVICES} "
                f"devices at most, in intervals above 0 s"
            )
        if (label := max(max(row[4:]) for row in rows)) >= max(1000, len(rows)):
            raise ConfigError(
                f"stage or microbatch {label} in {source}, of {len(rows)} rows; they count from 0, "
                f"and each has a row"
            )
        number, zero = {name: d for d, name in enumerate(order)}, rows[0][1]
        rows.sort(key=lambda row: (number[row[0]], row[1], row[2]))
        device, start, end, kind, stage, microbatch = zip(*rows, strict=True)
        trace = cls(
            tuple(order),
            np.array([number[name] for name in device], np.int32),
            np.array(start, float) - zero,
            np.array(end, float) - zero,
            np.array([KINDS.find(k) if k else -1 for k in kind], np.int8),
            np.array(stage, np.int32),
            np.array(microbatch, np.int32),
            source,
        )
        same = trace.device[1:] == trace.device[:-1]
        over = np.where(same, trace.end[:-1] - trace.start[1:], 0.0)
        if over.max(initial=0.0) > 1e-9 * trace.makespan:
            (name, x, y, *_), (_, u, v, *_) = rows[int(np.argmax(over)) :][:2]
            raise ConfigError(
                f"device {name} does two things at once: from {x:g} to {y:g} s and from {u:g} to "
                f"{v:g} s of {source}; give one row per action, no transfers but of kind "
                f"{TRANSFER}, and a run without pairs"
            )
        return trace

    @property
    def devices(self) -> int:
        return len(self.names)

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max())

    @cached_property
    def busy_per_device(self) -> np.ndarray:
        """Seconds of work of each device."""
        return np.bincount(self.device, self.end - self.start, minlength=self.devices)

    @property
    def idle(self) -> float:
        """Device-seconds without work."""
        return self.devices * self.makespan - float(self.busy_per_device.sum())

    @cached_property
    def turns(self) -> np.ndarray:
        """Where each device's intervals begin, and where the last one's end."""
        return np.searchsorted(self.device, np.arange(self.devices + 1))

    @property
    def is_labelled(self) -> bool:
        """Whether every row says kind, stage and micro-batch."""
        return min(int(c.min()) for c in (self.code, self.stage, self.microbatch)) >= 0

    @cached_property
    def overlap(self) -> float:
        """Of the time in which any device is busy, the share in which two or more are.

        >>> rows = [("a", 0, 2, "", -1, -1), ("b", 1, 4, "", -1, -1)]
        >>> Trace.of(rows, source="two rows").overlap
        0.25
        """
        at = np.concatenate([self.start, self.end])
        order = np.argsort(at, kind="stable")
        busy = np.cumsum(np.repeat([1, -1], len(self.start))[order])[:-1]
        seconds = np.bincount(np.clip(busy, 0, 2), np.diff(at[order]), minlength=3)
        return float(seconds[2] / seconds[1:].sum())

    @property
    def is_one_at_a_time(self) -> bool:
        """Whether devices take turns: hardly ever two at once, whatever the noise. Where one device
        has most of the work, the others' is little beside it: there the rule is stricter."""
        most = float(self.busy_per_device.max())
        waiting = self.devices * (self.makespan - most)
        uneven = self.devices * most - float(self.busy_per_device.sum())
        limit = TURNS if waiting > uneven else TURNS / 5
        return self.devices > 1 and self.overlap < limit


def of_timeline(timeline: Timeline) -> Trace:
    """The Trace of a Timeline, with its labels, without its transfers.

    >>> of_timeline(Timeline.of(1, [(0, "F", 0, 0, 0.0, 1.0)])).is_labelled
    True
    """
    t, work = timeline, timeline.kind != TRANSFER
    columns = (t.device.astype(str), t.start, t.end, t.kind, t.stage, t.microbatch)
    rows = zip(*(column[work].tolist() for column in columns), strict=True)
    return Trace.of(rows, [str(d) for d in range(t.devices)], source=f"the {t.origin} timeline")
