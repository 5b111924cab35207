"""Who did what when, simulated or measured: a row for each span, and why devices are idle.

    rank 1     ////[ F0 ].......[ F1 ]==----[ F2 ]....[ B0 ]....[ B1 ][ B2 ]\\\\\\\\
               |             |        | |                                   |
        warm-up     dependency        | overhead                    draining
                                      transfer

devices x makespan = busy + idle. Until the action before it on its device has ended and the results
that it uses are made, an action waits for other stages; then for transfers, as long as a block that
it uses is being sent to it; the rest is overhead, of whoever starts actions.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import PipelineCosts, numbers
from tiledask.plan.pipelines.schedule import Schedule, sources
from tiledask.plan.units import format_seconds

__all__ = ["Footprint", "IdleTime", "Span", "Timeline", "memory_over_time"]

COMPUTE = ("F", "B", "I", "W", "U", "M")
"""Kinds of compute: forward, full backward, input gradient, weight gradient; and of no stage the
update of a training, and the panels of a blocked product (M, multiply)."""
TRANSFER = "T"
"""A block on its way to the device; it may overlap compute. Its stage and micro-batch are those of
the action that made it, or -1 where that is not known."""
SPANS = (*COMPUTE, TRANSFER)
CAUSES = {
    "warm-up": "not yet filled",
    "dependency": "waits for other stages",
    "transfer": "waits for a transfer",
    "overhead": "ready, not started",
    "draining": "draining",
}
"""Key -> its one name wherever people read it."""
_WARM_UP, _DEPENDENCY, _TRANSFER, _OVERHEAD, _DRAINING = range(len(CAUSES))
Span = tuple[int, str, int, int, float, float]  # in COLUMNS, times in seconds
COLUMNS = ("device", "kind", "stage", "microbatch", "start", "end")


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
    overhead: np.ndarray
    """Of each compute span, seconds in which it could have started, with all that it uses."""

    per_device: dict[str, tuple[float, ...]] = field(init=False)
    """Cause -> seconds of each device; they sum to its idle time."""
    total: dict[str, float] = field(init=False)
    """Cause -> device-seconds, all devices together."""

    def __post_init__(self) -> None:
        at = self.device * len(CAUSES) + self.code
        seconds = np.bincount(at, self.end - self.start, minlength=self.devices * len(CAUSES))
        rows = map(tuple, seconds.reshape(self.devices, len(CAUSES)).T.tolist())
        per_device = dict(zip(CAUSES, rows, strict=True))
        total = {cause: sum(each) for cause, each in per_device.items()}
        vars(self).update(per_device=per_device, total=total)

    def __repr__(self) -> str:
        parts = [f"{CAUSES[cause]} {format_seconds(s)}" for cause, s in self.total.items() if s]
        whole = format_seconds(sum(self.total.values()))
        return f"IdleTime({self.devices} devices, {whole}{': ' * bool(parts)}{', '.join(parts)})"


@dataclass(frozen=True, eq=False)
class Footprint:
    """What every device holds at every moment."""

    steps: tuple[tuple[np.ndarray, np.ndarray], ...] = field(repr=False)
    """Per device (times, bytes): so many from each time on. Of equal times the last holds."""
    makespan: float

    peaks: tuple[float, ...] = field(init=False)
    """The most that each device holds."""
    peak: tuple[float, int, float] = field(init=False)
    """(the most that any device holds, that device, seconds until it first does)."""

    def __post_init__(self) -> None:
        peaks = tuple(held.max().item() for _, held in self.steps)
        first = [times[int(np.argmax(held))].item() for times, held in self.steps]
        time, device = min((t, d) for d, t in enumerate(first) if peaks[d] == max(peaks))
        vars(self).update(peaks=peaks, peak=(max(peaks), device, time))


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """Spans in flat columns. Time 0 is the start of the first compute span.

    >>> t = Timeline.of(2, [(0, "F", 0, 0, 0.0, 1.0), (1, "F", 1, 0, 1.0, 2.0)])
    >>> t.makespan, t.busy, t.idle
    (2.0, 2.0, 2.0)
    """

    devices: int
    """Number of devices, those that did nothing included."""
    device: np.ndarray
    """int32, rising: one device's spans follow the other's, each in the order of their starts."""
    code: np.ndarray
    """int8: the kind of each span, as a position in SPANS."""
    stage: np.ndarray
    microbatch: np.ndarray
    start: np.ndarray
    end: np.ndarray
    """Seconds."""
    origin: str = "simulated"
    """Or "measured"."""
    schedule: Schedule | None = None
    """Of a simulation: what it came from. Its actions are the spans, in this order."""
    costs: PipelineCosts | None = None
    """And the seconds that they took."""
    computes: np.ndarray = field(init=False)
    """bool: which spans are compute."""
    makespan: float = field(init=False)
    """Seconds from time 0 to the end of the last compute span."""
    busy_per_device: tuple[float, ...] = field(init=False)
    """Seconds in which each device computes (the union of its compute spans)."""
    idle_per_device: tuple[float, ...] = field(init=False)
    """Seconds in which each device does not compute."""
    busy: float = field(init=False)
    """Device-seconds of compute, all devices together."""
    idle: float = field(init=False)
    """Device-seconds without compute: devices x makespan - busy."""
    utilisation: float = field(init=False)
    """busy / (devices x makespan)."""
    bubble_fraction: float = field(init=False)
    """idle / (devices x makespan): the share of all device-time that is lost."""
    bubble_overhead: float = field(init=False)
    """idle / busy: the loss over the ideal, (p-1)/m for GPipe and 1F1B (SC21)."""

    def __post_init__(self) -> None:
        vars(self).update(computes=self.code < len(COMPUTE))
        acts = self.acts
        alone = np.maximum(acts.end - np.maximum(acts.start, acts.free[0]), 0.0)
        busy = np.bincount(acts.device, alone, minlength=self.devices).tolist()
        makespan = float(acts.end.max(initial=0.0))
        vars(self).update(makespan=makespan, busy=sum(busy), busy_per_device=tuple(busy))
        whole, idle = self.devices * makespan, self.devices * makespan - self.busy
        vars(self).update(idle=idle, idle_per_device=tuple(makespan - each for each in busy))
        utilisation, fraction = (x / whole if whole else 0.0 for x in (self.busy, idle))
        vars(self).update(utilisation=utilisation, bubble_fraction=fraction)
        vars(self).update(bubble_overhead=idle / self.busy if self.busy else 0.0)

    @classmethod
    def of(cls, devices: int, spans: Iterable[Span], origin: str = "simulated") -> "Timeline":
        """A Timeline of ``spans``, moved so that the first compute span starts at 0. Raises
        ScheduleError for a span of another kind or device, or that ends before it starts."""
        spans = sorted(spans, key=lambda s: (s[0], s[4], s[5]))
        for device, kind, stage, microbatch, start, end in spans:
            if kind not in SPANS or not 0 <= device < devices or not start <= end:
                raise ScheduleError(
                    f"{stage}{kind}{microbatch} is on rank {device} of {devices}, from {start} to "
                    f"{end} s; kinds are {', '.join(SPANS)}, and a span ends at or after its start"
                )
        zero = min((s[4] for s in spans if s[1] != TRANSFER), default=0.0)
        rows = [(d, SPANS.index(k), *rest) for d, k, *rest in spans]
        columns = np.array(rows, float).reshape(-1, 6).T
        whole = columns[:4].astype(np.int32)
        times = columns[4] - zero, columns[5] - zero
        return cls(devices, whole[0], whole[1].astype(np.int8), whole[2], whole[3], *times, origin)

    @property
    def acts(self) -> "Timeline":
        """The compute spans alone."""
        if (own := self.computes).all():
            return self
        columns = self.device[own], self.code[own], self.stage[own], self.microbatch[own]
        return Timeline(self.devices, *columns, self.start[own], self.end[own], self.origin)

    @cached_property
    def free(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds from which on the device of each span is free for it, and each for good."""
        free, last = np.zeros(len(self.device)), np.zeros(self.devices)
        turns = np.searchsorted(self.device, np.arange(self.devices + 1)).tolist()
        for d, (a, b) in enumerate(pairwise(turns)):
            reach = np.maximum.accumulate(np.append(0.0, self.end[a:b]))
            free[a:b], last[d] = reach[:-1], reach[-1]
        return free, last

    @cached_property
    def kind(self) -> np.ndarray:
        """One word per span: of COMPUTE, or TRANSFER."""
        return np.take(list(SPANS), self.code)

    @cached_property
    def lower_bound(self) -> float | None:
        """Seconds below which no order of the same actions goes, None for a measured run: the way
        to a device, its work, and the way on from it, or the longest way of one micro-batch."""
        if self.schedule is None or self.costs is None:
            return None
        # when each would end if none waited for its device; and for W nobody waits
        order, (F, B, I, W) = self.schedule, self.costs.seconds
        at, split = (self.code, self.stage, self.microbatch), np.zeros(F.shape, bool)
        split[self.stage[self.code == 2], self.microbatch[self.code == 2]] = True
        hop = self.costs.hop.T[:, np.arange(order.microbatches) % len(order.places)]
        down = np.cumsum(F + hop[:-1], axis=0)
        back = (np.where(split, I, B) + hop[1:]) * order.trains
        done = down[-1] + np.cumsum(back[::-1], axis=0)[::-1]
        ends = np.stack([down, done, done, done + W])[at]
        before, after = np.full((2, self.devices), np.inf)
        np.minimum.at(before, self.device, ends - self.costs.seconds[at])
        np.minimum.at(after, self.device, (done[0, self.microbatch] - ends) * (self.code != 3))
        work = np.bincount(self.device, self.costs.work, minlength=self.devices)
        return float(max(ends.max(), (before + work + after)[work > 0].max(initial=0.0)))

    @cached_property
    def idle_time(self) -> IdleTime:
        """Every moment in which a device does not compute, with its cause.

        Of a simulation, all waiting of an action that could start is its transfers'. Of a measured
        run, its transfers are the spans of kind T on its device with its micro-batch, and as stage
        the one that made the block: the stage before for a forward, the stage behind for a
        backward. A forward and a backward that start and end together are done at once, and wait
        together.
        """
        acts, (free, last) = self.acts, self.acts.free
        # the positions of the backwards that are done at once with the forward before them
        alike = (acts.start < acts.end)[1:] & (acts.code[:-1] == 0) & np.isin(acts.code[1:], (1, 2))
        for column in (acts.device, acts.start, acts.end):
            alike &= column[1:] == column[:-1]
        second = 1 + np.flatnonzero(alike)
        # when each could start: its device is free, what it or the second of its pair uses is made
        uses = sources(acts.code, acts.stage, acts.microbatch)
        made = np.append(acts.end, 0.0)[uses].max(axis=1, initial=0.0)
        made[second - 1] = np.maximum(made[second - 1], made[second])
        begin = np.maximum(acts.start, free)
        ready = np.minimum(np.maximum(free, made), begin)
        why = np.where(np.diff(acts.device, prepend=-1) > 0, _WARM_UP, _DEPENDENCY)
        travel, sent = begin - ready, (acts.device, _TRANSFER, ready, begin)
        if self.origin != "simulated":
            travel, sent = _transfers(self, ready, begin, second)
        drain = np.arange(self.devices), _DRAINING, last, self.makespan
        pieces: list[Any] = [(acts.device, why, free, ready), sent, drain]
        rows = np.concatenate([np.stack(np.broadcast_arrays(*piece), axis=1) for piece in pieces])
        rows = rows[rows[:, 3] > rows[:, 2]]
        where, cause, starts, ends = rows[np.lexsort((rows[:, 2], rows[:, 0]))].T
        overhead = begin - ready - travel
        return IdleTime(self.devices, where.astype(int), cause.astype(int), starts, ends, overhead)

    @property
    def overhead_per_action(self) -> float:
        """Median seconds from when an action could start, with its blocks there, to its start."""
        return float(np.median(self.idle_time.overhead)) if len(self.acts.end) else 0.0

    @property
    def span_bubble(self) -> float:
        """1 - busy / (devices x the largest per-device span): the Zero Bubble paper's rate."""
        first = np.full(self.devices, np.inf)
        np.minimum.at(first, self.acts.device, self.acts.start)
        span = (self.acts.free[1] - first).max(initial=0)
        return 1.0 - self.busy / (self.devices * float(span)) if span else 0.0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per device, the most (stage, micro-batch) activations that are held at once."""
        return tuple(map(int, memory_over_time(self).peaks))

    def state(self, device: int, time: float) -> str:
        """What ``device`` does at ``time``: an action such as "F0", or "idle"."""
        rows = self.computes & (self.device == device) & (self.start <= time) & (time < self.end)
        hits = np.flatnonzero(rows)
        return f"{self.kind[hits[0]]}{self.microbatch[hits[0]]}" if len(hits) else "idle"

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns device, kind, stage, microbatch, start, end."""
        from tiledask.plan.tables import frame  # here: whoever simulates does without it

        return frame({name: getattr(self, name) for name in COLUMNS})

    def __len__(self) -> int:
        return len(self.device)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.origin}: {int(self.computes.sum())} actions on {self.devices} "
            f"devices, makespan {format_seconds(self.makespan)}, "
            f"{100 * self.bubble_fraction:.1f} % of device-time idle)"
        )


def _transfers(
    timeline: Timeline, ready: np.ndarray, begin: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, Any]:
    """Between when each action could start and when it did: for how long blocks were on their way
    to it, and the pieces, [4, pieces]."""
    sent, pairs = defaultdict[tuple[int, ...], list[list[float]]](list), {*second.tolist()}
    blocks, columns = list[tuple[int, ...]](), (getattr(timeline, name) for name in COLUMNS)
    for d, kind, s, i, *way in zip(*(column.tolist() for column in columns), strict=True):
        if kind == TRANSFER:
            sent[d, s, i].append(way)
        else:
            blocks.append((d, s + (-1 if kind == "F" else 1), i) if kind in "FBI" else (d,))
    pieces, travel = list[tuple[float, ...]](), np.zeros(len(ready))
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


def memory_over_time(
    timeline: Timeline,
    activation: float | Sequence[float] = 1,
    weight_part: float | Sequence[float] | None = None,
    static: float | Sequence[float] = 0,
) -> Footprint:
    """What every device holds at every moment of a simulated or measured ``timeline``.

    activation     bytes that the forward of a stage keeps of a micro-batch for its backward, one
                   number or one per stage; 1 counts activations
    weight_part    bytes of them that are kept from I to W; default: all
    static         bytes of a device at all times, weights for instance: a number, or one each

    B lets go of what F has kept, when it ends; I of all but the ``weight_part`` (the paper's M_W,
    arXiv 2401.10241, section 3), and W of that. Without any backward (inference) an activation is
    let go when its forward ends. Raises ScheduleError for sizes that are negative or of the wrong
    number, and for a ``weight_part`` larger than its activation.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> held = memory_over_time(simulate(schedule("1f1b", stages=4, microbatches=8)))
    >>> held.peaks, held.peak
    ((4, 3, 2, 1), (4, 0, 3.0))
    """
    acts, of = timeline.acts, ("bytes", 1 + int(timeline.stage.max(initial=0)), "stage")
    whole = numbers(activation, "activation", *of)
    part = whole if weight_part is None else numbers(weight_part, "weight_part", *of)
    if (part > whole).any():
        raise ScheduleError(f"weight_part is at most activation; got {part} of {whole} by stage")
    none = np.zeros_like(whole)  # by F, B, I, W, U and M of each stage
    change = np.stack([whole, -whole, part - whole, -part, none, none])[acts.code, acts.stage]
    device, times = acts.device, np.where(acts.code == 0, acts.start, acts.end)
    if not acts.code.any():  # no backward: let go when the forward ends
        device, times = np.tile(device, 2), np.append(acts.end, times)
        change = np.append(-change, change)
    order = np.lexsort((times, device))  # at equal times what goes is before what comes
    steps = []
    for d, first in enumerate(numbers(static, "static", "bytes", timeline.devices, "device")):
        mine = order[slice(*np.searchsorted(device[order], (d, d + 1)))]
        held = first + np.append(0, np.cumsum(change[mine]))
        steps.append((np.append(0.0, times[mine]), held))
    return Footprint(tuple(steps), timeline.makespan)
