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
    code: np.ndarray
    """The cause, as a position in CAUSES."""
    start: np.ndarray
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

    Of a simulation, all waiting of an action that could start is its transfers'. Of a measured run,
    its transfers are the spans of kind T on its device with its micro-batch, and as stage the one
    that made the block: the stage before for a forward, the stage behind for a backward. A forward
    and a backward that start and end together are done at once, and wait together.
    """
    acts, makespan = spans.acts, spans.makespan
    device, begin, end = acts.device.tolist(), acts.start.tolist(), acts.end.tolist()
    uses, second = _uses(acts)
    # of each action when its device was free, when it could start and when it did
    last, free, ready = [0.0] * spans.devices, list[float](), list[float]()
    for k, d in enumerate(device):
        free.append(last[d])
        begin[k] = max(begin[k], last[d])
        ready.append(min(max([last[d], *(end[n] for n in uses[k])]), begin[k]))
        last[d] = max(last[d], end[k])
    held = [a - b for a, b in zip(begin, ready, strict=True)]
    wait, even = _with_equal_stages(acts, held, uses, second)
    pieces, overhead, sent = list[tuple[int, float, float, int]](), list[float](), _sent(spans)
    little, close = _EXACT * makespan, max(last)
    for k, d in enumerate(device):
        own = ready[k] if ready[k] - free[k] <= wait[k] + little else free[k] + wait[k]
        first = not k or device[k - 1] != d
        pieces.append((d, free[k], own, _WARM_UP if first else _DEPENDENCY))
        pieces.append((d, own, ready[k], _IMBALANCE))
        ways = [(ready[k], begin[k])]
        if spans.origin != "simulated":
            both = (k, k + 1) if k + 1 in second else (k,)
            ways = sorted(way for n in both for way in sent.get(_block(acts, n), ()))
        at, travels = ready[k], 0.0
        for a, b in ways:
            if min(b, begin[k]) > max(a, at):
                pieces.append((d, at, max(a, at), _OVERHEAD))
                pieces.append((d, max(a, at), min(b, begin[k]), _TRANSFER))
                travels += min(b, begin[k]) - max(a, at)
                at = min(b, begin[k])
        pieces.append((d, at, begin[k], _OVERHEAD))
        overhead.append(held[k] - travels)
    for d in range(spans.devices):
        drain = max(even) - even[d]
        done = close if close - last[d] <= drain + little else last[d] + drain
        pieces += (d, last[d], done, _DRAINING), (d, done, close, _IMBALANCE)
        pieces.append((d, close, makespan, _DRAINING))
    kept = sorted(piece for piece in pieces if piece[2] > piece[1])
    where, starts, ends, cause = np.array(kept, float).reshape(-1, 4).T
    return IdleTime(spans.devices, where.astype(int), cause.astype(int), starts, ends, overhead)


def _uses(acts: Spans) -> tuple[list[list[int]], set[int]]:
    """The actions whose results each uses; and which are done at once with the one before them,
    where the first waits for what either uses."""
    found = sources(acts.code, acts.stage, acts.microbatch).tolist()
    uses, second = [[n for n in each if n >= 0] for each in found], set[int]()
    columns = acts.device, acts.start, acts.end
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    kinds = "".join(KINDS[code] for code in acts.code.tolist())
    for k in range(1, len(rows)):
        at_once = rows[k] == rows[k - 1] and rows[k][1] < rows[k][2]
        if at_once and kinds[k - 1 : k + 1] in ("FB", "FI"):
            uses[k - 1] += uses[k]
            second.add(k)
    return uses, second


def _sent(spans: Spans) -> dict[tuple[int, ...], list[tuple[float, float]]]:
    """When the block that a stage made of a micro-batch was on its way to a device."""
    sent: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
    blocks = spans.only(~spans.computes)
    columns = blocks.device, blocks.stage, blocks.microbatch, blocks.start, blocks.end
    for d, s, i, a, b in zip(*(column.tolist() for column in columns), strict=True):
        sent[d, s, i].append((a, b))
    return sent


def _block(acts: Spans, n: int) -> tuple[int, ...]:
    """Device, stage and micro-batch of the block that an action is sent."""
    maker = {"F": -1, "B": 1, "I": 1}.get(KINDS[acts.code[n]], -(10**9))
    return int(acts.device[n]), int(acts.stage[n]) + maker, int(acts.microbatch[n])


def _with_equal_stages(
    acts: Spans, held: list[float], uses: list[list[int]], second: set[int]
) -> tuple[list[float], list[float]]:
    """(seconds that each action would wait for results, when each device would be done), if every
    action took the mean of its kind and was ``held`` up as it was."""
    kind, length = acts.code.astype(int), acts.end - acts.start
    kind[[n for k in second for n in (k - 1, k)]] = len(KINDS)  # both at once take their own time
    mean = (np.bincount(kind, length) / np.maximum(np.bincount(kind), 1))[kind].tolist()
    wait, end, free = [0.0] * len(kind), [0.0] * len(kind), [0.0] * acts.devices
    # an action ends after all that it uses; of equal times the device's own order holds
    for k in np.lexsort((acts.end, acts.start)).tolist():
        d = int(acts.device[k])
        if k in second:
            end[k] = end[k - 1]
            continue
        ready = max([free[d], *(end[n] for n in uses[k])])
        wait[k] = ready - free[d]
        free[d] = end[k] = ready + held[k] + mean[k]
    return wait, free
