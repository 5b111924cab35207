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

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from tiledask.plan.pipelines.spans import KINDS, TRANSFER, Spans
from tiledask.plan.pipelines.walk import sources
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
_Interval = tuple[float, float]


@dataclass(frozen=True)
class Waits:
    """How long each compute span was waited for, in the order of a Timeline's compute spans."""

    free: np.ndarray
    """float64 [actions]: when everything before it on the device had ended; 0 before the first."""
    ready: np.ndarray
    """float64 [actions]: when it could start; as ``free`` where nothing was waited for."""
    begin: np.ndarray
    """float64 [actions]: when it started, or was ready if that was later."""
    arriving: Mapping[int, list[_Interval]]
    """By action, when a block that it uses was on its way in between: in order, apart."""
    uses: np.ndarray
    """int64 [actions, 2]: the actions whose results it uses, -1 for none."""
    pairs: np.ndarray
    """int64: the actions that are done at once with the one after them."""

    @property
    def overhead(self) -> np.ndarray:
        """float64 [actions]: seconds in which it could have started, and nothing was on its way."""
        overhead: np.ndarray = self.begin - self.ready
        for k, ways in self.arriving.items():
            overhead[k] -= sum(b - a for a, b in ways)
        return overhead


def waits(spans: Spans) -> Waits:
    """The Waits of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers': nothing else
    holds it up. Of a measured run, its transfers are the spans of kind T on its device
    with its micro-batch, and as stage the one that made the block: the stage before for a forward,
    the stage behind for a backward. A forward and a backward that start and end together are done
    at once, and wait together. Compute spans that overlap have no wait between them.
    """
    rows = np.flatnonzero(spans.computes)
    device, code, start, end = (c[rows] for c in (spans.device, spans.code, spans.start, spans.end))
    free = np.zeros(len(rows))  # since when the device has been; from 0 before its first action
    for a, b in pairwise(np.searchsorted(device, np.arange(spans.devices + 1)).tolist()):
        free[a + 1 : b] = np.maximum.accumulate(end[a:b])[:-1]
    uses = sources(code, spans.stage[rows], spans.microbatch[rows])
    made = np.append(end, -np.inf)[uses].max(axis=1)
    pairs = np.flatnonzero(  # a forward and a backward at once wait for what either uses
        (device[1:] == device[:-1])
        & (start[1:] == start[:-1])
        & (end[1:] == end[:-1])
        & (code[:-1] == _F)
        & np.isin(code[1:], (_B, _I))
        & (end[1:] > start[1:])
    )
    made[pairs] = np.maximum(made[pairs], made[pairs + 1])
    begin = np.maximum(start, free)
    ready = np.clip(made, free, begin)
    late = np.flatnonzero(begin > ready).tolist()
    if spans.origin == "simulated":
        arriving = {k: [(float(ready[k]), float(begin[k]))] for k in late}
    else:
        sent = _sent(spans, rows)
        for k in pairs.tolist():
            sent[k] = sent[k] + sent[k + 1]
        arriving = {k: _within(sent[k], float(ready[k]), float(begin[k])) for k in late}
    return Waits(free, ready, begin, arriving, uses, pairs)


def _sent(spans: Spans, rows: np.ndarray) -> list[list[_Interval]]:
    """Of each action, when a block from another stage was on its way to it."""
    found: dict[tuple[int, int, int], list[_Interval]] = defaultdict(list)
    columns = spans.device, spans.stage, spans.microbatch, spans.code, spans.start, spans.end
    every = list(zip(*(column.tolist() for column in columns), strict=True))
    for device, stage, number, code, start, end in every:
        if code == _T:
            found[device, stage, number].append((start, end))
    maker = {_F: -1, _B: 1, _I: 1}
    return [
        found.get((device, stage + maker[code], number), []) if code in maker else []
        for device, stage, number, code, *_ in (every[row] for row in rows.tolist())
    ]


def _within(ways: list[_Interval], reach: float, end: float) -> list[_Interval]:
    """What of ``ways`` lies between two moments, in order and apart."""
    found = []
    for a, b in sorted(ways):
        if min(b, end) > max(a, reach):
            found.append((max(a, reach), min(b, end)))
            reach = found[-1][1]
    return found


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
    makespan, rounding = spans.makespan, _EXACT * spans.makespan
    device = spans.device[spans.computes]
    last = np.zeros(spans.devices)
    np.maximum.at(last, device, spans.end[spans.computes])
    even, even_end = _with_equal_stages(spans, waited, last)
    pieces: list[tuple[int, float, int, float]] = []  # device, start, cause, end
    columns = device, waited.free, waited.ready, waited.begin, even
    before = -1
    for k, (d, free, ready, begin, alike) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        own = ready if ready - free <= alike + rounding else free + alike
        pieces.append((d, free, _DEPENDENCY if d == before else _WARM_UP, own))
        pieces.append((d, own, _IMBALANCE, ready))
        before, reach = d, ready
        for a, b in waited.arriving.get(k, ()):
            pieces += [(d, reach, _OVERHEAD, a), (d, a, _TRANSFER, b)]
            reach = b
        pieces.append((d, reach, _OVERHEAD, begin))
    close = float(last.max(initial=0.0))
    drains = (even_end.max(initial=0.0) - even_end).tolist()
    for d, (done, drain) in enumerate(zip(last.tolist(), drains, strict=True)):
        own = close if close - done <= drain + rounding else done + drain
        pieces.append((d, done, _DRAINING, own))
        pieces += [(d, own, _IMBALANCE, close), (d, close, _DRAINING, makespan)]
    pieces = sorted(piece for piece in pieces if piece[3] > piece[1])
    where, start, cause, end = zip(*pieces, strict=True) if pieces else ((),) * 4
    whole = np.array(where, np.int64), np.array(cause, np.int64)
    return IdleTime(spans.devices, *whole, np.array(start, float), np.array(end, float))


def _with_equal_stages(
    spans: Spans, waited: Waits, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action took the mean of its kind. ``last``: when each device is done as it is."""
    rows = np.flatnonzero(spans.computes)
    kind = spans.code[rows].astype(np.int64)
    # both at once take their own time
    kind[waited.pairs] = kind[waited.pairs + 1] = kind.max(initial=0) + 1
    length = spans.end[rows] - spans.start[rows]
    mean = np.bincount(kind, length) / np.maximum(np.bincount(kind), 1)
    if np.abs(length - mean[kind]).max(initial=0.0) <= _EXACT * length.max(initial=0.0):
        return waited.ready - waited.free, last  # they are equal
    held, took = (waited.begin - waited.ready).tolist(), mean[kind].tolist()
    device, uses = spans.device[rows].tolist(), waited.uses.tolist()
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
        free[d] = end[k] = ready + held[k] + took[k]
    return wait, np.array(free)
