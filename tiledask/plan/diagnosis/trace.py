"""When devices were busy: rows of actions, blocks of kernels, or shares of polled utilisation.

rows      device,start,end [,kind,stage,microbatch]     one action each
blocks    the same of kernels: actions that touch have run together
polls     time,device0,device1,...                      how much, and not when
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["UNITS", "Row", "Trace", "of_polls", "of_timeline"]

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds of each unit that a file may be in."""
IDLE_BELOW = 0.005
"""Devices that a sample without work has busy at most: tools round to whole percents."""
MOST_DEVICES = 4096
TURNS = 0.1
"""Share of the busy time with two devices or more at once, below which they take turns."""

Row = tuple[str, float, float, str, int, int]
"""(device, start, end, kind, stage, microbatch); "" and -1 for what is not told."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Busy intervals in flat columns, devices in the order in which they begin."""

    names: tuple[str, ...]
    """What the trace calls its devices."""
    device: np.ndarray
    """int32, rising: positions in ``names``; each device's intervals by their starts."""
    start: np.ndarray
    """Seconds; the first interval starts at 0."""
    end: np.ndarray
    code: np.ndarray
    """int8: positions in KINDS; -1 for a kind that is not told."""
    stage: np.ndarray
    microbatch: np.ndarray
    grain: float = 0.0
    """Seconds by which an edge may be wrong: the time between two samples."""
    blocks: bool = False
    """Whether one interval may be several actions without a pause."""
    levels: np.ndarray | None = None
    """Of polls: [samples, 2], the seconds of each and how many devices were busy, on average."""
    source: str = ""
    """What was read, and what had to be assumed."""

    @classmethod
    def of(cls, rows: Iterable[Row], names: Sequence[str] = (), **about: Any) -> "Trace":
        """The Trace of these rows, in any order. ``names`` are devices that should be there.

        Raises ConfigError for no rows, numbers that are not finite, a start below 0, an end before
        its start, two intervals of a device at once, and a device that never works.
        """
        rows, source = [*rows], about.get("source", "the trace")
        _check_rows(rows, source)
        first: dict[str, float] = {}
        for name, begin, *_ in rows:
            first[name] = min(begin, first.get(name, np.inf))
        if lazy := [name for name in names if name not in first]:
            raise ConfigError(
                f"device {lazy[0]} does no work in {source}, and every device of a pipeline holds "
                f"a stage; leave it out if it is not part of the run"
            )
        if len(first) > MOST_DEVICES:
            raise ConfigError(
                f"{source} has {len(first)} devices, and up to {MOST_DEVICES} are read; give one "
                f"pipeline, and check what names a device"
            )
        order = sorted(first, key=lambda name: (first[name], len(name), name))
        number = {name: d for d, name in enumerate(order)}
        rows.sort(key=lambda row: (number[row[0]], row[1], row[2]))
        device, start, end, kind, stage, microbatch = zip(*rows, strict=True)
        trace = cls(
            tuple(order),
            np.array([number[name] for name in device], np.int32),
            np.array(start, float) - min(start),
            np.array(end, float) - min(start),
            np.array([KINDS.find(k) if k else -1 for k in kind], np.int8),
            np.array(stage, np.int32),
            np.array(microbatch, np.int32),
            **about,
        )
        trace._check_overlap()
        return trace

    def _check_overlap(self) -> None:
        same = self.device[1:] == self.device[:-1]
        over = np.where(same, self.end[:-1] - self.start[1:], 0.0)
        if over.max(initial=0.0) > 1e-9 * self.makespan:
            a = int(np.argmax(over))
            spans = zip(self.start[a : a + 2], self.end[a : a + 2], strict=True)
            (x, y), (u, v) = spans
            raise ConfigError(
                f"device {self.names[self.device[a]]} does two things at once: from {x:g} to "
                f"{y:g} s and from {u:g} to {v:g} s (from the trace's first start); give one row "
                f"per action, no transfers but of kind {TRANSFER}, and a run without pairs"
            )

    @property
    def devices(self) -> int:
        return len(self.names)

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start to the last end; of polls, those watched."""
        return float(self.end.max() if self.levels is None else self.levels[:, 0].sum())

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
        return all(bool((c >= 0).all()) for c in (self.code, self.stage, self.microbatch))

    @cached_property
    def busy_together(self) -> np.ndarray:
        """Seconds in which 0, 1, ... devices are busy: [devices + 1].

        Polls say how many on average; a sample with 1.25 counts as a quarter with 2.

        >>> Trace.of([("a", 0, 2, "", -1, -1), ("b", 1, 4, "", -1, -1)]).busy_together.tolist()
        [0.0, 3.0, 1.0]
        """
        if self.levels is not None:
            width, level = self.levels.T
        else:
            at = np.concatenate([self.start, self.end])
            order = np.argsort(at, kind="stable")
            change = np.repeat([1, -1], len(self.start))[order]
            width, level = np.diff(at[order]), np.cumsum(change)[:-1].astype(float)
        low = np.minimum(level.astype(int), self.devices - 1)
        seconds = np.bincount(low, width * (1 - (level - low)), minlength=self.devices + 1)
        return seconds + np.bincount(low + 1, width * (level - low), minlength=self.devices + 1)

    @property
    def overlap(self) -> float:
        """Of the time in which any device is busy, the share in which two or more are."""
        busy = float(self.busy_together[1:].sum())
        return float(self.busy_together[2:].sum()) / busy if busy else 0.0

    @property
    def is_one_at_a_time(self) -> bool:
        """Whether devices take turns: hardly ever two at once, whatever the noise.

        Where one device has most of the work, the others' is little beside it: there the rule is
        stricter.
        """
        if self.devices == 1:
            return False
        most = float(self.busy_per_device.max())
        waiting = self.devices * (self.makespan - most)
        uneven = self.devices * most - float(self.busy_per_device.sum())
        return self.overlap < (TURNS if waiting > uneven else TURNS / 5)


def _check_rows(rows: Sequence[Row], source: str) -> None:
    for name, start, end, kind, *labels in rows:
        if not 0 <= start <= end < np.inf:
            raise ConfigError(
                f"device {name} of {source} works from {start:g} to {end:g} s; times are finite "
                f"and 0 or more, and an interval ends at or after its start"
            )
        if kind and kind not in KINDS:
            raise ConfigError(
                f"device {name} of {source} does {kind!r}; kinds are {', '.join(KINDS)}, "
                f"{TRANSFER} for a transfer, or nothing if it is not known"
            )
        if max(labels) >= max(1000, len(rows)):
            raise ConfigError(
                f"stage or microbatch {max(labels)} in {source}, of {len(rows)} rows; they count "
                f"from 0, and each has a row"
            )
    if not any(row[2] > row[1] for row in rows):
        raise ConfigError(f"{source} has no work in it; a trace needs an interval above 0 s")


def of_timeline(timeline: Timeline) -> Trace:
    """The Trace of a Timeline, with its labels, without its transfers.

    >>> of_timeline(Timeline.of(1, [(0, "F", 0, 0, 0.0, 1.0)])).is_labelled
    True
    """
    t, work = timeline, timeline.kind != TRANSFER
    columns = (t.device.astype(str), t.start, t.end, t.kind, t.stage, t.microbatch)
    rows = zip(*(column[work].tolist() for column in columns), strict=True)
    names, source = [str(d) for d in range(t.devices)], f"the {t.origin} timeline"
    return Trace.of(rows, names, source=source)


def of_polls(time: np.ndarray, shares: np.ndarray, names: Sequence[str], source: str) -> Trace:
    """The Trace of polled utilisation: how much each device works and how many at once, not when.

    ``time``: [samples], seconds, of which each sample holds to the next; ``shares``: 0 to 1,
    [samples, devices]. Time before the first work and after the last does not count. Raises
    ConfigError for fewer than two samples, and for two at one time.
    """
    if len(time) < 2:
        raise ConfigError(f"{source} has {len(time)} samples; a trace of polls needs two or more")
    rising = np.argsort(time, kind="stable")
    time, shares = time[rising], shares[rising]
    width = np.diff(time)
    if width.min() <= 0:
        at = time[int(np.argmin(width))]
        raise ConfigError(f"{source} has two samples at {at:g} s; keep one")
    step = float(np.median(width))
    width = np.append(width, step)
    busy = shares.sum(axis=1)
    works = np.flatnonzero(busy > IDLE_BELOW)
    seconds = (width @ shares).tolist()
    rows = [(n, 0.0, s, "", -1, -1) for n, s in zip(names, seconds, strict=True) if s]
    inside = slice(*(works[[0, -1]] + [0, 1])) if works.size else slice(0)
    levels = np.stack([width, busy], axis=1)[inside]
    return Trace.of(rows, names, grain=step, levels=levels, source=source)
