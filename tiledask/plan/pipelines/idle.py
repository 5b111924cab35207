"""Idle time by its cause: every moment in which a device does nothing, and why.

    rank 1     ////[ F0 ]....xxx[ F1 ]==----[ F2 ]....[ B0 ]....[ B1 ][ B2 ]\\\\\\\\
               |         |   |        | |                                   |
        warm-up  dependency  |          | overhead                    draining
                     imbalance          transfer

Until the action before it on its device has ended and the results that it uses are made, an action
waits for other stages; then for transfers, as long as a block that it uses is being sent to it; the
rest is overhead, of whoever starts actions. As much of a wait for other stages as equal stages
would have too is the schedule's: warm-up, draining, dependency. The rest is imbalance. To tell them
apart the timeline is replayed with every action as long as the mean of its kind.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from tiledask.plan.pipelines.schedule import sources
from tiledask.plan.pipelines.spans import KINDS, TRANSFER, Spans
from tiledask.plan.units import format_seconds

__all__ = ["CAUSES", "IdleTime", "idle_time"]

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "warm-up": "not yet filled",
        "dependency": "waits for other stages",
        "imbalance": "waits for slower stages",
        "transfer": "waits for a transfer",
        "overhead": "ready, not started",
        "draining": "draining",
    }
)
"""Key -> its one name wherever people read it."""
_WARM_UP, _DEPENDENCY, _IMBALANCE, _TRANSFER, _OVERHEAD, _DRAINING = range(len(CAUSES))


@dataclass(frozen=True, eq=False, repr=False)
class IdleTime:
    """Pieces of idle time in flat columns. On each device they are apart, in the order of their
    starts, and with its compute spans they make up the makespan.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> simulate(schedule("gpipe", 2, 2)).idle_time
    IdleTime(2 devices, 6 s: not yet filled 1 s, waits for other stages 3 s, draining 2 s)
    """

    devices: int
    device: np.ndarray
    code: np.ndarray
    """The cause, as a position in CAUSES."""
    start: np.ndarray
    end: np.ndarray
    """Seconds."""
    overhead: np.ndarray
    """Of each compute span, seconds in which it could have started, and nothing that it uses was on
    its way."""

    @cached_property
    def per_device(self) -> dict[str, tuple[float, ...]]:
        """Cause -> seconds of each device; they sum to its idle time."""
        at = self.device * len(CAUSES) + self.code
        seconds = np.bincount(at, self.end - self.start, minlength=self.devices * len(CAUSES))
        by_cause = seconds.reshape(self.devices, len(CAUSES)).T.tolist()
        return {cause: tuple(each) for cause, each in zip(CAUSES, by_cause, strict=True)}

    @property
    def total(self) -> dict[str, float]:
        """Cause -> device-seconds, all devices together."""
        return {cause: sum(each) for cause, each in self.per_device.items()}

    def __repr__(self) -> str:
        parts = [f"{CAUSES[cause]} {format_seconds(s)}" for cause, s in self.total.items() if s]
        whole = format_seconds(sum(self.total.values()))
        return f"IdleTime({self.devices} devices, {whole}{': ' * bool(parts)}{', '.join(parts)})"


def idle_time(spans: Spans) -> IdleTime:
    """The IdleTime of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers'. Of a measured run,
    its transfers are the spans of kind T on its device with its micro-batch, and as stage the one
    that made the block: the stage before for a forward, the stage behind for a backward. A forward
    and a backward that start and end together are done at once, and wait together.
    """
    acts, makespan = spans.acts, spans.makespan
    free, last = acts.free
    close, little = last.max(initial=0.0), 1e-9 * makespan  # less is rounding
    second = _seconds(acts)
    # when each could start: its device is free, and what it or the second of its pair uses is made
    uses = sources(acts.code, acts.stage, acts.microbatch)
    made = np.append(acts.end, 0.0)[uses].max(axis=1, initial=0.0)
    made[second - 1] = np.maximum(made[second - 1], made[second])
    begin = np.maximum(acts.start, free)
    ready = np.minimum(np.maximum(free, made), begin)
    wait, even = _with_equal_stages(acts, begin - ready, uses.tolist(), second)
    own = np.where(ready - free <= wait + little, ready, free + wait)
    drain = even.max(initial=0.0) - even
    done = np.where(close - last <= drain + little, close, last + drain)
    first = np.diff(acts.device, prepend=-1) > 0
    kind = np.full_like(ready, _TRANSFER)
    travel, sent = begin - ready, np.stack([acts.device, kind, ready, begin])
    if spans.origin != "simulated":
        travel, sent = _transfers(spans, ready, begin, second)
    devices = np.arange(spans.devices)
    pieces: list[Any] = [
        (acts.device, np.where(first, _WARM_UP, _DEPENDENCY), free, own),
        (acts.device, _IMBALANCE, own, ready),
        sent,
        (devices, _DRAINING, last, done),
        (devices, _IMBALANCE, done, close),
        (devices, _DRAINING, close, makespan),
    ]
    rows = np.concatenate([np.stack(np.broadcast_arrays(*piece), axis=1) for piece in pieces])
    rows = rows[rows[:, 3] > rows[:, 2]]
    where, cause, starts, ends = rows[np.lexsort((rows[:, 2], rows[:, 0]))].T
    overhead = begin - ready - travel
    return IdleTime(spans.devices, where.astype(int), cause.astype(int), starts, ends, overhead)


def _seconds(acts: Spans) -> np.ndarray:
    """The positions of the backwards that are done at once with the forward before them."""
    alike = (acts.start < acts.end)[1:] & (acts.code[:-1] == KINDS.index("F"))
    alike &= np.isin(acts.code[1:], [KINDS.index(kind) for kind in "BI"])
    for column in (acts.device, acts.start, acts.end):
        alike &= column[1:] == column[:-1]
    return 1 + np.flatnonzero(alike)


def _with_equal_stages(
    acts: Spans, held: np.ndarray, uses: list[list[int]], second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action took the mean of its kind and was ``held`` up as it was."""
    kind, pairs = acts.code.astype(int), {*second.tolist()}
    kind[second] = kind[second - 1] = len(KINDS)  # both at once take their own time
    mean = np.bincount(kind, acts.end - acts.start) / np.maximum(np.bincount(kind), 1)
    takes, device = (held + mean[kind]).tolist(), acts.device.tolist()
    for k in pairs:
        uses[k - 1] += uses[k]
    wait, end, free = [0.0] * len(takes), [0.0] * (len(takes) + 1), [0.0] * acts.devices
    # an action ends after all that it uses; of equal times the device's own order holds
    for k in np.lexsort((acts.end, acts.start)).tolist():
        if k in pairs:
            end[k] = end[k - 1]
            continue
        since = ready = free[device[k]]
        for n in uses[k]:
            if end[n] > ready:
                ready = end[n]
        wait[k] = ready - since
        free[device[k]] = end[k] = ready + takes[k]
    return np.array(wait), np.array(free)


def _transfers(
    spans: Spans, ready: np.ndarray, begin: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Between when each action could start and when it did: for how long blocks were on their way
    to it, and the pieces, [4, pieces]."""
    sent = defaultdict[tuple[int, ...], list[tuple[float, float]]](list)
    for d, kind, s, i, a, b in spans.rows():
        if kind == TRANSFER:
            sent[d, s, i].append((a, b))
    source = {"F": -1, "B": 1, "I": 1}
    blocks = [
        (d, s + source[kind], i) if kind in source else (d,)
        for d, kind, s, i, *_ in spans.acts.rows()
    ]
    pieces, travel, pairs = list[tuple[float, ...]](), np.zeros(len(ready)), {*second.tolist()}
    for k in np.flatnonzero(begin > ready).tolist():
        both, at, until = blocks[k : k + 1 + (k + 1 in pairs)], ready[k], begin[k]
        device = both[0][0]
        for a, b in sorted(way for block in both for way in sent.get(block, ())):
            if min(b, until) > max(a, at):
                pieces.append((device, _OVERHEAD, at, max(a, at)))
                pieces.append((device, _TRANSFER, max(a, at), min(b, until)))
                travel[k] += min(b, until) - max(a, at)
                at = min(b, until)
        pieces.append((device, _OVERHEAD, at, until))
    return travel, np.array(pieces).reshape(-1, 4).T
