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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from tiledask.plan.pipelines.graph import sources
from tiledask.plan.pipelines.spans import KINDS, Spans
from tiledask.plan.units import format_seconds

__all__ = ["CAUSES", "IdleTime", "idle_time"]

_F, _B, _I = map(KINDS.index, "FBI")

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
_EXACT = 1e-9
"""Of the makespan: less is rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class IdleTime:
    """Pieces of idle time in flat columns. On each device they are apart, in the order of their
    starts, and with its compute spans they make up the makespan.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> simulate("gpipe", 2, 2).idle_time
    IdleTime(2 devices, 6 s: not yet filled 1 s, waits for other stages 3 s, draining 2 s)
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
    overhead: np.ndarray
    """float64 [actions]: seconds in which each compute span could have started, and nothing that
    it uses was on its way."""

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
        parts = [f"{CAUSES[cause]} {format_seconds(s)}" for cause, s in self.total.items() if s]
        whole = format_seconds(sum(self.total.values()))
        return f"IdleTime({self.devices} devices, {whole}{': ' * bool(parts)}{', '.join(parts)})"


def idle_time(spans: Spans) -> IdleTime:
    """The IdleTime of a Timeline.

    Of a simulation, all waiting of an action that could start is its transfers': nothing else
    holds it up. Of a measured run, its transfers are the spans of kind T on its device with its
    micro-batch, and as stage the one that made the block: the stage before for a forward, the stage
    behind for a backward. A forward and a backward that start and end together are done at once,
    and wait together. Compute spans that overlap have no wait between them.

    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> slow_end = simulate("gpipe", 2, 4, forward=[1.0, 2.0], backward=[2.0, 4.0])
    >>> slow_end.idle_time.per_device["imbalance"], slow_end.idle_time.per_device["warm-up"]
    ((10.5, 0.0), (0.0, 1.0))
    """
    acts = spans.acts
    device, code, end = acts.device, acts.code, acts.end
    free, ready, begin, uses, pairs = _starts(acts)
    # transfers: whose they are, and from when to when
    who, sent, there = (late := np.flatnonzero(begin > ready)), ready[late], begin[late]
    if spans.origin != "simulated":
        found = list(_arriving(spans, acts, pairs, late, ready, begin))
        who = np.array([k for k, _, _ in found], int)
        sent, there = np.array([way for _, *way in found], float).reshape(-1, 2).T
    overhead = begin - ready - np.bincount(who, there - sent, minlength=len(begin))
    last = np.zeros(spans.devices)
    np.maximum.at(last, device, end)
    wait, even_end = ready - free, last
    length, kind = end - acts.start, code.astype(int)
    kind[pairs] = kind[pairs + 1] = len(KINDS)  # both at once take their own time
    mean = (np.bincount(kind, length) / np.maximum(np.bincount(kind), 1))[kind]
    if np.abs(length - mean).max(initial=0.0) > _EXACT * length.max(initial=0.0):
        wait, even_end = _with_equal_stages(acts, mean, begin - ready, uses, pairs)
    # what is the schedule's of each wait, and of the end of each device
    makespan, close = spans.makespan, last.max(initial=0.0)
    little, drain = _EXACT * makespan, even_end.max(initial=0.0) - even_end
    own = np.where(ready - free <= wait + little, ready, free + wait)
    done = np.where(close - last <= drain + little, close, last + drain)
    # overhead is before, between and behind the transfers of an action
    each = np.append(np.arange(len(begin)), who)
    before, after = np.append(ready, there), np.append(begin, sent)
    before, after = (column[np.lexsort((column, each))] for column in (before, after))
    every, first = np.arange(spans.devices), np.diff(device, prepend=-1) != 0
    pieces = (
        (device, free, own, np.where(first, _WARM_UP, _DEPENDENCY)),
        (device, own, ready, _IMBALANCE),
        (device[who], sent, there, _TRANSFER),
        (device[np.sort(each)], before, after, _OVERHEAD),
        (every, last, done, _DRAINING),
        (every, done, close, _IMBALANCE),
        (every, close, makespan, _DRAINING),
    )
    columns = zip(*(np.broadcast_arrays(*piece) for piece in pieces), strict=True)
    where, a, b, cause = map(np.concatenate, columns)
    order = np.lexsort((a, where))
    order = order[b[order] > a[order]]
    codes = where[order].astype(int), cause[order].astype(int)
    return IdleTime(spans.devices, *codes, a[order], b[order], overhead)


def _starts(acts: Spans) -> tuple[np.ndarray, ...]:
    """Of each action when its device was free, when it could start and when it did; what it uses;
    and the actions that are done at once with the one after them."""
    device, code, start, end = acts.device, acts.code, acts.start, acts.end
    free = np.zeros(len(code))  # from 0 before a device's first action
    for a, b in pairwise(acts.turns.tolist()):
        free[a + 1 : b] = np.maximum.accumulate(end[a:b])[:-1]
    uses = sources(code, acts.stage, acts.microbatch)
    made = np.append(end, -np.inf)[uses].max(axis=1)
    alike = (device[1:] == device[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    both = (code[:-1] == _F) & np.isin(code[1:], (_B, _I)) & (end[1:] > start[1:])
    pairs = np.flatnonzero(alike & both)  # which wait for what either uses
    made[pairs] = np.maximum(made[pairs], made[pairs + 1])
    begin = np.maximum(start, free)
    return free, np.clip(made, free, begin), begin, uses, pairs


def _arriving(
    spans: Spans,
    acts: Spans,
    pairs: np.ndarray,
    late: np.ndarray,
    ready: np.ndarray,
    begin: np.ndarray,
) -> Iterator[tuple[int, float, float]]:
    """(an action, from, to): when a block that a ``late`` one uses was on its way between its
    being ready and its beginning; in order, apart."""
    sent: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
    blocks = spans.only(~spans.computes)
    columns = blocks.device, blocks.stage, blocks.microbatch, blocks.start, blocks.end
    for d, s, i, a, b in zip(*(column.tolist() for column in columns), strict=True):
        sent[d, s, i].append((a, b))
    joined, sender = set(pairs.tolist()), {_F: -1, _B: 1, _I: 1}
    for k in late.tolist():
        reach, until, ways = float(ready[k]), float(begin[k]), list[tuple[float, float]]()
        for n in (k, k + 1) if k in joined else (k,):
            if (code := int(acts.code[n])) in sender:
                maker = int(acts.stage[n]) + sender[code]
                ways += sent.get((int(acts.device[n]), maker, int(acts.microbatch[n])), ())
        for a, b in sorted(ways):
            if min(b, until) > max(a, reach):
                yield k, max(a, reach), min(b, until)
                reach = min(b, until)


def _with_equal_stages(
    acts: Spans, took: np.ndarray, held: np.ndarray, uses: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action ``took`` so long and was ``held`` up as it was by transfers and whoever starts it."""
    device, needs = acts.device.tolist(), uses.tolist()
    joined, delay, length = set((pairs + 1).tolist()), held.tolist(), took.tolist()
    wait, end, free = np.zeros(len(device)), [0.0] * len(device), [0.0] * acts.devices
    # an action ends after all that it uses; of equal times the device's own order holds
    for k in np.lexsort((acts.end, acts.start)).tolist():
        d = device[k]
        if k in joined:
            end[k] = end[k - 1]
            continue
        needed = needs[k] + needs[k + 1] if k + 1 in joined else needs[k]
        ready = max(free[d], *(end[n] for n in needed if n >= 0), 0.0)
        wait[k] = ready - free[d]
        free[d] = end[k] = ready + delay[k] + length[k]
    return wait, np.array(free)
