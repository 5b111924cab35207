"""Idle time by its cause: every moment in which a device does nothing, and why.

    rank 1     ////[ F0 ]....xxx[ F1 ]==----[ F2 ]....[ B0 ]....[ B1 ][ B2 ]\\\\\\\\
               |         |   |        | |                                   |
        warm-up  dependency  |          | overhead                    draining
                     imbalance          transfer

An action could start when the action before it on its device had ended and the results that it
uses had been made, wherever that was. Until then its device waits for other stages. After it, the
device waits for a block as long as one that the action uses is being sent to it, and the rest is
the time of whoever starts actions: the scheduler's messages, a thread that wakes up late.

As much of a wait for other stages as equal stages would have too is the schedule's: warm-up before
the device's first action, draining after its last, dependency in between. The rest is imbalance. To
tell them apart the timeline is replayed with every action as long as the mean of its kind; the
order, and what each action waited for transfers and for whoever starts it, stay as they were.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from tiledask.plan.pipelines.spans import KINDS, TRANSFER, Spans
from tiledask.plan.units import format_seconds

__all__ = ["CAUSES", "IdleTime", "Waits", "idle_time", "waits"]

_F, _B, _I, _T = map(KINDS.index, ("F", "B", "I", TRANSFER))


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


@dataclass(frozen=True)
class Waits:
    """How long each compute span was waited for, in the order of a Timeline's compute spans."""

    device: np.ndarray
    """int32 [actions]."""
    free: np.ndarray
    """float64 [actions]: when everything before it on the device had ended; 0 before the first."""
    ready: np.ndarray
    """float64 [actions]: when it could start; as ``free`` where nothing was waited for."""
    true_idle: np.ndarray
    """float64 [actions]: ready - free, seconds."""
    transfer: np.ndarray
    """float64 [actions]: seconds after that in which a block that it uses was on its way."""
    overhead: np.ndarray
    """float64 [actions]: the rest, until it did start."""
    arriving: np.ndarray
    """float64 [n, 3]: (action, start, end) of every piece of ``transfer``, in order, apart."""
    uses: np.ndarray
    """int64 [actions, 2]: the actions whose results it uses, -1 for none."""
    pairs: np.ndarray
    """int64: the actions that are done at once with the one after them."""


def waits(spans: Spans) -> Waits:
    """The Waits of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers': nothing else
    holds it up. Of a measured run, its transfers are the spans of kind T on its device
    with its micro-batch, and as stage the one that made the block: the stage before for a forward,
    the stage behind for a backward. A forward and a backward that start together are done at
    once, and wait together. Compute spans that overlap have no wait between them.
    """
    rows = np.flatnonzero(spans.computes)
    device, start = spans.device[rows], spans.start[rows]
    first = np.searchsorted(device, np.arange(spans.devices + 1)).tolist()
    free = np.zeros(len(rows))  # since when the device has been; from 0 before its first action
    for a, b in pairwise(first):
        free[a + 1 : b] = np.maximum.accumulate(spans.end[rows[a:b]])[:-1]
    gap = np.maximum(start - free, 0.0)
    uses = _uses(spans, rows)
    made = np.append(spans.end[rows], -np.inf)[uses].max(axis=1)
    pair = np.flatnonzero(  # a forward and a backward at once wait for what either uses
        (device[1:] == device[:-1])
        & (start[1:] == start[:-1])
        & (spans.end[rows][1:] == spans.end[rows][:-1])
        & (spans.code[rows][:-1] == _F)
        & np.isin(spans.code[rows][1:], (_B, _I))
        & (spans.end[rows][1:] > start[1:])
    )
    made[pair] = np.maximum(made[pair], made[pair + 1])
    ready = np.where(gap > 0, np.clip(made, free, np.maximum(start, free)), free)
    true_idle = ready - free
    held_up = np.where(gap > 0, start - ready, 0.0)
    late = np.flatnonzero(held_up > 0)
    pieces: Iterable[tuple[float, float, float]]
    if spans.origin == "simulated":
        pieces = zip(late.tolist(), ready[late].tolist(), start[late].tolist(), strict=True)
    else:
        pieces = _arriving(spans, rows, pair, late, ready)
    arriving = np.array([*pieces], float).reshape(-1, 3)
    seconds = arriving[:, 2] - arriving[:, 1]
    transfer = np.bincount(arriving[:, 0].astype(np.int64), seconds, minlength=len(rows))
    overhead = held_up - transfer
    return Waits(device, free, ready, true_idle, transfer, overhead, arriving, uses, pair)


def _uses(spans: Spans, rows: np.ndarray) -> np.ndarray:
    """Positions in ``rows`` of the actions whose results each action uses, -1 for none: [rows, 2].

    The rule of needs.py: activations from the stage before; a backward's own activations and the
    gradient from the stage behind; for W what I left.
    """
    code, stage, microbatch = spans.code[rows], spans.stage[rows], spans.microbatch[rows]
    shape = 2 + int(stage.max(initial=0)) + 1, 1 + int(microbatch.max(initial=0))
    activations, gradient = np.full(shape, -1), np.full(shape, -1)  # stage s at row s + 1
    forward, backward = code == _F, (code == _B) | (code == _I)
    activations[stage[forward] + 1, microbatch[forward]] = np.flatnonzero(forward)
    gradient[stage[backward] + 1, microbatch[backward]] = np.flatnonzero(backward)
    own = np.where(
        forward,
        activations[stage, microbatch],
        np.where(backward, activations[stage + 1, microbatch], gradient[stage + 1, microbatch]),
    )
    return np.stack([own, np.where(backward, gradient[stage + 2, microbatch], -1)], axis=1)


def _arriving(
    spans: Spans, rows: np.ndarray, pairs: np.ndarray, late: np.ndarray, ready: np.ndarray
) -> Iterator[tuple[float, float, float]]:
    """(action, start, end) while a block that one of the actions ``late`` uses is on its way."""
    # (device, stage that made it, micro-batch) -> when such a block was on its way
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for j in np.flatnonzero(spans.code == _T).tolist():
        key = int(spans.device[j]), int(spans.stage[j]), int(spans.microbatch[j])
        found.setdefault(key, []).append((float(spans.start[j]), float(spans.end[j])))
    with_next = set(pairs.tolist())
    for k in late.tolist():
        ways = []
        for j in rows[k : k + 2] if k in with_next else rows[k : k + 1]:
            side = {_F: -1, _B: 1, _I: 1}.get(int(spans.code[j]), 0)
            key = int(spans.device[j]), int(spans.stage[j]) + side, int(spans.microbatch[j])
            ways += found.get(key, []) if side else []
        reach, start = float(ready[k]), float(spans.start[rows[k]])
        for a, b in sorted(ways):
            a, b = max(a, reach), min(b, start)
            if b > a:
                reach = b
                yield k, a, b


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


def idle_time(spans: Spans, waited: Waits) -> IdleTime:
    """The IdleTime of a Timeline, whose Waits are ``waited``.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> slow_end = simulate("gpipe", 2, 4, forward=[1.0, 2.0], backward=[2.0, 4.0])
    >>> found = idle_time(slow_end, slow_end.waits)
    >>> found.per_device["imbalance"], found.per_device["warm-up"]
    ((10.5, 0.0), (0.0, 1.0))
    """
    makespan = spans.makespan
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
