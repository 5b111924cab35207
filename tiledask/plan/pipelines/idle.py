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
from types import MappingProxyType

import numpy as np

from tiledask.plan.pipelines.schedule import sources
from tiledask.plan.pipelines.spans import KINDS, Spans
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
_EXACT = 1e-9
"""Of the makespan: less is rounding."""
_MAKER = {KINDS.index("F"): -1, KINDS.index("B"): 1, KINDS.index("I"): 1}
"""From which stage the block comes that an action of a kind is sent."""


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
    overhead: list[float]
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
    device, start, end = acts.device.tolist(), acts.start.tolist(), acts.end.tolist()
    uses, second = _uses(acts)
    # of each action when its device was free, when it could start and when it did
    last, free, ready, begin = [0.0] * spans.devices, list[float](), list[float](), list[float]()
    for k, d in enumerate(device):
        free.append(last[d])
        begin.append(max(start[k], last[d]))
        made = max((end[n] for n in uses[k]), default=last[d])
        ready.append(min(max(made, last[d]), begin[k]))
        last[d] = max(last[d], end[k])
    held = [a - b for a, b in zip(begin, ready, strict=True)]
    wait, even = _with_equal_stages(acts, held, uses, second)
    pieces, overhead = list[tuple[int, float, float, int]](), list[float]()
    ways = _ways(spans, acts, second, ready, begin)
    little, close, even_close = _EXACT * spans.makespan, max(last), max(even)
    for k, d in enumerate(device):
        own = ready[k] if ready[k] - free[k] <= wait[k] + little else free[k] + wait[k]
        first = not k or device[k - 1] != d
        pieces.append((d, free[k], own, _WARM_UP if first else _DEPENDENCY))
        pieces.append((d, own, at := ready[k], _IMBALANCE))
        overhead.append(held[k])
        for sent, there in ways[k]:
            pieces += (d, at, sent, _OVERHEAD), (d, sent, there, _TRANSFER)
            overhead[k], at = overhead[k] - (there - sent), there
        pieces.append((d, at, begin[k], _OVERHEAD))
    for d in range(spans.devices):
        drain = even_close - even[d]
        done = close if close - last[d] <= drain + little else last[d] + drain
        pieces += (d, last[d], done, _DRAINING), (d, done, close, _IMBALANCE)
        pieces.append((d, close, spans.makespan, _DRAINING))
    kept = sorted(piece for piece in pieces if piece[2] > piece[1])
    where, a, b, cause = np.array(kept, float).reshape(-1, 4).T
    return IdleTime(spans.devices, where.astype(int), cause.astype(int), a, b, overhead)


def _uses(acts: Spans) -> tuple[list[list[int]], set[int]]:
    """The actions whose results each uses; and which are done at once with the one before them,
    where the first waits for what either uses."""
    found = sources(acts.code, acts.stage, acts.microbatch).tolist()
    uses, second = [[n for n in each if n >= 0] for each in found], set[int]()
    columns = acts.device, acts.start, acts.end
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    kinds = [KINDS[code] for code in acts.code.tolist()]
    for k in range(1, len(rows)):
        at_once = rows[k] == rows[k - 1] and rows[k][1] < rows[k][2]
        if at_once and kinds[k - 1] + kinds[k] in ("FB", "FI"):
            uses[k - 1] += uses[k]
            second.add(k)
    return uses, second


def _ways(
    spans: Spans, acts: Spans, second: set[int], ready: list[float], begin: list[float]
) -> list[list[tuple[float, float]]]:
    """Of each action, (from, to) when a block that it uses was on its way between its being ready
    and its beginning; in order, apart."""
    if spans.origin == "simulated":
        return [[each] if each[0] < each[1] else [] for each in zip(ready, begin, strict=True)]
    sent: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
    blocks, found = spans.only(~spans.computes), list[list[tuple[float, float]]]()
    columns = blocks.device, blocks.stage, blocks.microbatch, blocks.start, blocks.end
    for *block, a, b in zip(*(column.tolist() for column in columns), strict=True):
        sent[tuple(block)].append((a, b))
    for k, (reach, until) in enumerate(zip(ready, begin, strict=True)):
        ways, apart = list[tuple[float, float]](), list[tuple[float, float]]()
        for n in (k, k + 1) if k + 1 in second else (k,):
            if (code := int(acts.code[n])) in _MAKER:
                maker = int(acts.stage[n]) + _MAKER[code]
                ways += sent.get((int(acts.device[n]), maker, int(acts.microbatch[n])), ())
        for a, b in sorted(ways):
            if min(b, until) > max(a, reach):
                apart.append((max(a, reach), min(b, until)))
                reach = min(b, until)
        found.append(apart)
    return found


def _with_equal_stages(
    acts: Spans, held: list[float], uses: list[list[int]], second: set[int]
) -> tuple[list[float], list[float]]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action took the mean of its kind and was ``held`` up as it was by transfers and whoever starts
    it."""
    kind, length = acts.code.astype(int), acts.end - acts.start
    both = sorted(second)
    kind[both] = len(KINDS)
    kind[[k - 1 for k in both]] = len(KINDS)  # both at once take their own time
    mean = (np.bincount(kind, length) / np.maximum(np.bincount(kind), 1))[kind].tolist()
    wait, end, free = [0.0] * len(kind), [0.0] * len(kind), [0.0] * acts.devices
    # an action ends after all that it uses; of equal times the device's own order holds
    for k in np.lexsort((acts.end, acts.start)).tolist():
        d = int(acts.device[k])
        if k in second:
            end[k] = end[k - 1]
            continue
        ready = max(free[d], *(end[n] for n in uses[k]), 0.0)
        wait[k] = ready - free[d]
        free[d] = end[k] = ready + held[k] + mean[k]
    return wait, free
