"""When devices were busy: rows of device, start, end and, where they are known, kind, stage and
microbatch, in seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER

__all__ = ["Row", "Trace"]

MOST_DEVICES = 4096

Row = tuple[str, float, float, str, int, int]
"""(device, start, end, kind, stage, microbatch); "" and -1 for what is not known."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Busy intervals in flat columns, devices in the order in which they begin."""

    devices: int
    names: tuple[str, ...]  # what the trace calls them
    device: np.ndarray  # rising: positions in ``names``; each device's intervals by their starts
    start: np.ndarray  # seconds; the first interval starts at 0
    end: np.ndarray
    code: np.ndarray  # positions in KINDS; -1 for a kind that is not known
    stage: np.ndarray
    microbatch: np.ndarray
    turns: np.ndarray  # where each device's intervals begin, and where the last one's end
    busy: np.ndarray  # seconds of work of each device
    makespan: float  # seconds from the first start to the last end
    idle: float  # device-seconds without work
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
        own, *times, kinds, stages, microbatches = zip(*rows, strict=True)
        device = np.array([number[name] for name in own], np.int32)
        start, end = np.array(times, float) - zero
        code = np.array([KINDS.find(k) if k else -1 for k in kinds], np.int8)
        numbers = np.array(stages, np.int32), np.array(microbatches, np.int32)
        turns = np.searchsorted(device, np.arange(len(order) + 1))
        busy = np.bincount(device, end - start, minlength=len(order))
        makespan = float(end.max())
        over = np.where(device[1:] == device[:-1], end[:-1] - start[1:], 0.0)
        if over.max(initial=0.0) > 1e-9 * makespan:
            (name, x, y, *_), (_, u, v, *_) = rows[int(np.argmax(over)) :][:2]
            raise ConfigError(
                f"device {name} does two things at once: from {x:g} to {y:g} s and from {u:g} to "
                f"{v:g} s of {source}; give one row per action, no transfers but of kind "
                f"{TRANSFER}, and a run without pairs"
            )
        lost = len(order) * makespan - float(busy.sum())
        columns = device, start, end, code, *numbers, turns, busy
        return cls(len(order), tuple(order), *columns, makespan, lost, source)

    @property
    def is_labelled(self) -> bool:
        """Whether every row says kind, stage and micro-batch."""
        return min(int(c.min()) for c in (self.code, self.stage, self.microbatch)) >= 0
