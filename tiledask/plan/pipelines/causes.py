"""Idle time by its cause: every moment in which a device does nothing, and why.

    rank 1     ////[ F0 ]....xxx[ F1 ]==----[ F2 ]....[ B0 ]....[ B1 ][ B2 ]\\\\\\\\
               |         |   |        | |                                   |
        warm-up  dependency  |          | overhead                    draining
                     imbalance          transfer

Until an action could start its device waits for the results of other stages (`idle.waits`). As
much of that wait as equal stages would have too is the schedule's: warm-up before the device's
first action, draining after its last, dependency in between. The rest is imbalance. To tell them
apart the timeline is replayed with every action as long as the mean of its kind; the order, and
what each action waited for transfers and for whoever starts it, stay as they were.

This is what a device waited for. What would be gained by faster links or equal stages, the waits
that they cause elsewhere included, is another question: plan/diagnosis answers it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from tiledask.plan.pipelines.idle import Spans, Waits
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
"""Name -> what a legend says of it."""
_WARM_UP, _DEPENDENCY, _IMBALANCE, _TRANSFER, _OVERHEAD, _DRAINING = range(len(CAUSES))
_EXACT = 1e-9
"""Of the makespan: less is rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class IdleTime:
    """Pieces of idle time in flat columns. On each device they are apart, in the order of their
    starts, and with its compute spans they make up the makespan.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> simulate("gpipe", 4, 8, latency=0.25).idle_time
    IdleTime(4 devices, 42 s: warm-up 6.75 s, dependency 20.2 s, transfer 1.5 s, draining 13.5 s)
    """

    devices: int
    device: np.ndarray
    """int64, rising."""
    code: np.ndarray
    """int64: the cause, as a position in CAUSES."""
    start: np.ndarray
    """Seconds."""
    end: np.ndarray
    """Seconds."""

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

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        told = [f"{cause} {format_seconds(s)}" for cause, s in self.total.items() if s]
        whole = format_seconds(sum(self.total.values()))
        return f"IdleTime({self.devices} devices, {whole}{': ' * bool(told)}{', '.join(told)})"


def idle_time(spans: Spans, waited: Waits, makespan: float) -> IdleTime:
    """The IdleTime of a Timeline, whose Waits are ``waited`` and that takes ``makespan`` seconds.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> slow_end = simulate("gpipe", 2, 4, forward=[1.0, 2.0], backward=[2.0, 4.0])
    >>> found = idle_time(slow_end, slow_end.waits, slow_end.makespan)
    >>> found.per_device["imbalance"], found.per_device["warm-up"]
    ((10.5, 0.0), (0.0, 1.0))
    """
    free, ready, device = waited.free, waited.ready, waited.device
    last = np.zeros(spans.devices)
    np.maximum.at(last, device, spans.end[spans.computes])
    even, even_end = _with_equal_stages(spans, waited, last)
    rounding = _EXACT * makespan
    first = np.searchsorted(device, np.arange(spans.devices + 1))
    begins = np.zeros(len(device), bool)
    begins[first[:-1][np.diff(first) > 0]] = True
    # until an action could start
    own = np.where(ready - free <= even + rounding, ready, free + even)
    ramp = np.where(begins, _WARM_UP, _DEPENDENCY)
    # from then on: blocks on their way, and what is left between them
    action, a, b = waited.arriving.T
    action = action.astype(np.int64)
    started = np.maximum(spans.start[spans.computes], ready)
    held = np.flatnonzero(started > ready)
    # between pieces: from when it could start or one has arrived, until the next goes or it starts
    since = np.concatenate([ready[held], b]), np.concatenate([held, action])
    until = np.concatenate([a, started[held]]), np.concatenate([action, held])
    by_since, by_until = np.lexsort(since), np.lexsort(until)
    # after the last action
    close = np.full(spans.devices, last.max(initial=0.0))
    even_drain = even_end.max(initial=0.0) - even_end
    drained = np.where(close - last <= even_drain + rounding, close, last + even_drain)
    every = np.arange(spans.devices)
    pieces: list[tuple[np.ndarray, Any, np.ndarray, np.ndarray]] = [
        (device, ramp, free, own),
        (device, _IMBALANCE, own, ready),
        (device[action], _TRANSFER, a, b),
        (device[since[1][by_since]], _OVERHEAD, since[0][by_since], until[0][by_until]),
        (every, _DRAINING, last, drained),
        (every, _IMBALANCE, drained, close),
        (every, _DRAINING, close, np.full(spans.devices, makespan)),
    ]
    where, start, end = (np.concatenate([piece[n] for piece in pieces]) for n in (0, 2, 3))
    why = np.concatenate([np.broadcast_to(cause, len(at)) for at, cause, *_ in pieces])
    order = np.lexsort((start, where))
    kept = order[(end > start)[order]]
    return IdleTime(spans.devices, where[kept], why[kept], start[kept], end[kept])


def _with_equal_stages(
    spans: Spans, waited: Waits, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action took the mean of its kind. ``last``: when each device is done as it is."""
    rows = np.flatnonzero(spans.computes)
    kind = spans.code[rows].astype(np.int64)
    kind[waited.pairs] = kind[waited.pairs + 1] = (
        kind.max(initial=0) + 1
    )  # both at once take their own time
    length = spans.end[rows] - spans.start[rows]
    mean = np.bincount(kind, length) / np.maximum(np.bincount(kind), 1)
    if np.abs(length - mean[kind]).max(initial=0.0) <= _EXACT * length.max(initial=0.0):
        return waited.true_idle, last  # they are equal
    held = (waited.transfer + waited.overhead).tolist()
    device, uses = waited.device.tolist(), waited.uses.tolist()
    joined = set((waited.pairs + 1).tolist())
    wait, end = np.zeros(len(rows)), [0.0] * len(rows)
    free = [0.0] * spans.devices
    # an action ends after all that it uses; of equal times the device's own order holds
    for k in np.lexsort((spans.end[rows], spans.start[rows])).tolist():
        d = device[k]
        if k in joined:
            end[k] = end[k - 1]
            continue
        needed = uses[k] + uses[k + 1] if k + 1 in joined else uses[k]
        ready = max(free[d], *(end[n] for n in needed if n >= 0), 0.0)
        wait[k] = ready - free[d]
        free[d] = end[k] = ready + held[k] + float(mean[kind[k]])
    return wait, np.array(free)
