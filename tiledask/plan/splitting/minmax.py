"""The exact min-max split of a row of layers over devices in a given order.

prefix  0   2   3   4  ...   n     bounds 0 = b0 < b1 < ... < bk = n cut the row into
        |---|-------|-- ... -|     k stages; stage s takes time
                                   (prefix[b(s+1)] - prefix[b(s)]) / speed + send[b(s+1)]

A limit on the stage time is tried by walking as far as it allows, stage by stage. The search
ends only when no split is strictly faster than the one in hand, so it ends on the optimum
itself, not near it. All comparisons are between whole numbers: floats answer first, and where
they are too close to call, Python's integers decide.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np

from tiledask.errors import PartitionError

__all__ = ["LayerSums", "min_max_bounds"]

_STATES = 100_000
"""Partial splits that are held at once where the chunks of a device share its memory."""

_BLOCK = 1_000_000
"""Entries of the evenness table that are held at once."""

_NEAR = 32
"""Layers on either side of the most even line that are looked at first."""

_LOOKS = 20_000_000
"""Pairs of a start and an end that are looked at for the most even split of all."""

_CLOSE = 1e-14
"""Distance, relative to the whole row, below which floats do not decide."""

Limits = list[tuple["LayerSums", list[int]]]
"""What no stage may go beyond: a room for every stage in time, first, and perhaps in memory."""


class LayerSums:
    """Sums of consecutive layers against a room per stage, without rounding.

    Stage s with the layers a, ..., e - 1 takes sums[e] - sums[a] + speeds[s] * sends[e] of its
    room. All values are whole numbers of any size; ``sends`` has an entry for each of the
    layers + 1 cuts and is 0 at the outer two.

    >>> row = LayerSums([2, 1, 4], [1, 1])
    >>> row.furthest(0, 0, room=3, top=3), row.within(0, np.array([0, 1]), 3, room=5).tolist()
    (2, [False, True])
    """

    def __init__(
        self, values: Sequence[int], speeds: Sequence[int], sends: list[int] | None = None
    ):
        self.sums = list(accumulate(values, initial=0))
        self.speeds, self.sends = list(speeds), sends
        dearest, fastest = max(sends or [0]), max(speeds)
        self.scale = self.sums[-1] + fastest * dearest or 1
        self.whole = self.scale < 2**62
        self._sums: np.ndarray
        self._speeds: Sequence[float]
        self._sends: np.ndarray | None
        if self.whole:
            self._sums, self._speeds = np.array(self.sums, np.int64), self.speeds
            self._sends = None if sends is None else np.array(sends, np.int64)
        else:
            self._sums = np.array([v / self.scale for v in self.sums])
            self._speeds = [v / fastest for v in self.speeds]
            scaled = [v * fastest / self.scale for v in sends or ()]
            self._sends = np.array(scaled) if sends else None

    def unlimited(self) -> list[int]:
        """Rooms that every stage keeps within."""
        return [self.scale] * len(self.speeds)

    def rooms(self, limit: Fraction, strict: bool = False) -> list[int]:
        """The room of each stage whose time may be at most, or strictly below, ``limit``."""
        n, d = limit.numerator, limit.denominator
        return [min((n * v - strict) // d, self.scale) for v in self.speeds]

    def furthest(self, s: int, start: int, room: int, top: int) -> int:
        """The last cut, ``top`` at most, where stage s can end; ``start`` if there is none."""
        far = self.sums[start] + room
        end = bisect_right(self.sums, far, start, top + 1) - 1
        if self.sends:
            while end > start and self.sums[end] + self.speeds[s] * self.sends[end] > far:
                end -= 1
        return max(end, start)

    def within(self, s: int, starts: np.ndarray, ends: np.ndarray, room: int) -> np.ndarray:
        """Whether stage s keeps its room, for arrays of starts and ends that broadcast."""
        used = self._sums[ends] - self._sums[starts]
        if self._sends is not None:
            used = used + self._speeds[s] * self._sends[ends]
        keeps: np.ndarray
        if self.whole:
            keeps = used <= room
            return keeps
        excess = used - room / self.scale
        keeps = excess <= 0
        close = np.abs(excess) <= _CLOSE
        if close.any():
            starts, ends = (np.broadcast_to(x, close.shape)[close].tolist() for x in (starts, ends))
            keeps[close] = [self.used(s, a, e) <= room for a, e in zip(starts, ends, strict=True)]
        return keeps

    def used(self, s: int, start: int, end: int) -> int:
        """What stage s takes of its room; over its speed, its time."""
        sent = self.speeds[s] * self.sends[end] if self.sends else 0
        return self.sums[end] - self.sums[start] + sent

    def slowest(self, bounds: Sequence[int]) -> Fraction:
        """The largest stage time of a split."""
        most, speed = 0, 1
        for s, (a, b) in enumerate(pairwise(bounds)):
            used = self.used(s, a, b)
            if used * speed > most * self.speeds[s]:
                most, speed = used, self.speeds[s]
        return Fraction(most, speed)

    def widest(self, starts: np.ndarray, room: int) -> int:
        """No stage within ``room`` has more layers than this, whichever start it has."""
        far = self._sums[starts] + (room if self.whole else room / self.scale + _CLOSE)
        return int((np.searchsorted(self._sums, far, side="right") - 1 - starts).max())

    def times(
        self, s: int, starts: int | np.ndarray, ends: int | np.ndarray, sending: bool = True
    ) -> np.ndarray:
        """Times of stage s as floats, for comparison with each other."""
        used = self._sums[ends] - self._sums[starts]
        if self._sends is not None and sending:
            used = used + self._speeds[s] * self._sends[ends]
        seconds: np.ndarray = used / self._speeds[s]
        return seconds


def min_max_bounds(
    time: LayerSums, memory: LayerSums | None = None, capacity: Sequence[int] = ()
) -> tuple[int, ...] | None:
    """The bounds of a split whose slowest stage is as fast as any split allows.

    ``capacity`` is the room in ``memory`` of each device; stage s is on device
    s mod len(capacity), and the stages of one device share its room. Of the optimal splits it
    returns the most even one (least sum of squared stage times, in floating point), and of
    those the one with the longest first stages. None if memory allows no split at all.

    >>> min_max_bounds(LayerSums([4, 4, 9, 8], [1, 1, 1]))
    (0, 2, 3, 4)
    """
    stages = len(time.speeds)
    rooms = [capacity[s % len(capacity)] for s in range(stages)] if memory else []

    def limits(allowed: list[int]) -> Limits:
        return [(time, allowed)] + ([(memory, rooms)] if memory else [])

    best = _fastest(time, lambda allowed: _any_split(limits(allowed)))
    if best is None:
        return None
    slowest = time.slowest(best)
    even = _most_even(limits(time.rooms(slowest)))
    if not memory:
        return even
    held = [0] * len(capacity)  # by the stages of each device together
    for s, (a, b) in enumerate(pairwise(even)):
        held[s % len(held)] += memory.used(s, a, b)
    if all(used <= room for used, room in zip(held, capacity, strict=True)):
        return even
    best = _fastest(time, lambda allowed: _shared(limits(allowed), capacity), slowest)
    return best and _shared(limits(time.rooms(time.slowest(best))), capacity)


def _fastest(
    time: LayerSums,
    split: Callable[[list[int]], tuple[int, ...] | None],
    low: Fraction = Fraction(0),
) -> tuple[int, ...] | None:
    """The fastest of all that ``split`` finds within rooms; None if it never finds one.

    No split is faster than ``low``. Limits grow from there until one is found, then halve the
    distance; a last try strictly below the best is the proof that there is no better.
    """
    low = max(low, Fraction(time.sums[-1], sum(time.speeds)))
    rooms, step = time.rooms(low), low / 16
    best = split(rooms)
    while best is None:
        if rooms == time.unlimited():
            return None
        low, step = low + step, 2 * step
        rooms = time.rooms(low) if step else time.unlimited()
        best = split(rooms)
    low = max(low - step / 2, Fraction(0))
    high = time.slowest(best)
    while better := split(time.rooms(high, strict=True)):
        best, high = better, time.slowest(better)
        middle = (low + high) / 2
        better = split(time.rooms(middle))
        if better:
            best, high = better, time.slowest(better)
        else:
            low = middle
    return best


def _tops(limits: Limits) -> list[int]:
    """The furthest cut after 0, 1, ... stages, if a stage may also stay empty."""
    tops, row = [0], limits[0][0]
    layers, stages = len(row.sums) - 1, len(row.speeds)
    for s in range(stages):
        top = layers - (stages - 1 - s)  # leave a layer for each later stage
        for row, rooms in reversed(limits):  # time last: within memory, not every cut is in time
            top = row.furthest(s, tops[-1], rooms[s], top)
        tops.append(top)
    return tops


def _any_split(limits: Limits) -> tuple[int, ...] | None:
    """One split within the limits, or None."""
    tops = _tops(limits)
    if tops[-1] < len(limits[0][0].sums) - 1:
        return None
    if all(a < b for a, b in pairwise(tops)):
        return tuple(tops)
    cuts = _cuts(limits, tops)  # somewhere a device must stop before a layer too large for the next
    if cuts is None:
        return None
    bounds = [int(cuts[-1][-1])]
    for s in reversed(range(len(cuts) - 1)):
        starts = cuts[s]
        bounds.append(int(starts[np.searchsorted(starts, bounds[-1]) - 1]))
    return tuple(reversed(bounds))


def _bottoms(limits: Limits) -> list[int]:
    """No split within the limits cuts earlier after 0, 1, ... stages."""
    stages = len(limits[0][0].speeds)
    bottoms = list(range(stages + 1))
    for row, rooms in limits:
        rest = row.sums[-1]
        for s in reversed(range(stages)):
            rest -= rooms[s]
            bottoms[s] = max(bottoms[s], bisect_left(row.sums, rest))
    bottoms[-1] = len(limits[0][0].sums) - 1
    return bottoms


def _cuts(limits: Limits, tops: list[int]) -> list[np.ndarray] | None:
    """Where stage s can end, for s = 0 (nothing yet) .. k; None if the last layer is not reached.

    The latest start before an end is the best one for it, in every limit. The sets may have
    gaps: a device that a large layer does not fit on must stop before it.
    """
    bottoms, cuts = _bottoms(limits), [np.array([0])]
    for s, (bottom, top) in enumerate(zip(bottoms[1:], tops[1:], strict=True)):
        starts = cuts[-1]
        ends = np.arange(max(bottom, starts[0] + 1), top + 1)
        latest = starts[np.searchsorted(starts, ends) - 1]
        for row, rooms in limits:
            keeps = row.within(s, latest, ends, rooms[s])
            ends, latest = ends[keeps], latest[keeps]
        if not len(ends):
            return None
        cuts.append(ends)
    return cuts


def _most_even(limits: Limits) -> tuple[int, ...]:
    """Of the splits within ``limits``, the one with the least sum of squared stage times.

    Layers that could be cut anywhere would flow to devices in proportion to their squared
    speeds. A split along that line bounds how far from it the best one can stray. Where that
    leaves too many to look at (a few layers so large that they alone set the limit), it is the
    best of those near the line.
    """
    cuts, time = _cuts(limits, _tops(limits)), limits[0][0]
    if cuts is None:
        raise AssertionError("limits that some split keeps within have cuts")
    layers = len(time.sums) - 1
    cost = time.times(int(np.argmax(time.speeds)), 0, np.arange(layers + 1), sending=False)
    shares = [(v / max(time.speeds)) ** 2 for v in time.speeds]
    weight = np.cumsum([0.0, *shares])
    after = np.cumsum([0.0, *shares[::-1]])[::-1]  # a difference would lose the slowest ones
    line = np.searchsorted(cost, cost[-1] * weight / weight[-1])
    reach, squares = _NEAR, math.inf
    bounds: tuple[int, ...] = ()
    while squares == math.inf:
        near = [c[np.abs(c - middle) <= reach] for c, middle in zip(cuts, line, strict=True)]
        squares, bounds = _least_squares(limits, near)
        reach *= 4
    enough = squares * (1 + 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        cuts = [cuts[0]] + [
            c[~(cost[c] ** 2 / w + (cost[-1] - cost[c]) ** 2 / rest > enough)]
            for c, w, rest in zip(cuts[1:], weight[1:], after[1:], strict=True)
        ]
    if not all(map(len, cuts)):  # speeds so far apart that squares of them are lost
        return bounds
    looks = sum(
        len(starts) * _width(limits, s, starts, cuts[s + 1]) for s, starts in enumerate(cuts[:-1])
    )
    return _least_squares(limits, cuts)[1] if looks <= _LOOKS else bounds


def _width(limits: Limits, s: int, starts: np.ndarray, ends: np.ndarray) -> int:
    """No stage s within ``limits`` from one of ``starts`` to one of ``ends`` has more layers."""
    width = min(row.widest(starts, rooms[s]) for row, rooms in limits)
    return max(1, min(width, int(ends[-1] - starts[0])))


def _least_squares(limits: Limits, cuts: list[np.ndarray]) -> tuple[float, tuple[int, ...]]:
    """(sum of squared stage times, bounds) of the most even split along ``cuts``; inf if none."""
    time = limits[0][0]
    layers = len(time.sums) - 1
    after = np.full(layers + 1, np.inf)  # of the stages from a cut on
    after[layers] = 0
    following = []  # per stage, last first: (starts, the best end of each)
    for s in reversed(range(len(time.speeds))):
        starts, before = cuts[s], np.full(layers + 1, np.inf)
        if not len(starts) or not len(cuts[s + 1]):
            return math.inf, ()
        width = _width(limits, s, starts, cuts[s + 1])
        block, best = max(1, _BLOCK // width), np.empty_like(starts)
        for i in range(0, len(starts), block):
            some = starts[i : i + block]
            best[i : i + block], before[some] = _best_ends(limits, s, some, width, after)
        following.append((starts, best))
        after = before
    if after[0] == math.inf:
        return math.inf, ()
    bounds = [0]
    for starts, best in reversed(following):
        bounds.append(int(best[np.searchsorted(starts, bounds[-1])]))
    return float(after[0]), tuple(bounds)


def _best_ends(
    limits: Limits, s: int, starts: np.ndarray, width: int, after: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each start the best end and its value: two [starts] arrays; inf where none is allowed."""
    ends = np.minimum(starts[:, None] + np.arange(width, 0, -1), len(after) - 1)
    value = limits[0][0].times(s, starts[:, None], ends) ** 2 + after[ends]
    for row, rooms in limits:
        value[~row.within(s, starts[:, None], ends, rooms[s])] = np.inf
    column = np.argmin(value, axis=1)  # the longest of equal ones
    rows = np.arange(len(starts))
    return ends[rows, column], value[rows, column]


_Grown = dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]
"""Partial splits: (end, memory that is free on each device) -> (squares, -bounds)."""


def _shared(limits: Limits, capacity: Sequence[int]) -> tuple[int, ...] | None:
    """The most even split within ``limits`` whose devices hold all their stages together.

    Partial splits are grown stage by stage; of those that end at the same layer and leave the
    same memory free only the best is kept. None if there is no split; raises PartitionError
    where more than 100,000 of them would have to be held.
    """
    (time, rooms), (memory, _) = limits
    tops, bottoms = _tops(limits), _bottoms(limits)
    layers, stages, devices = len(time.sums) - 1, len(time.speeds), len(capacity)
    if tops[-1] < layers:
        return None
    grown: _Grown = {(0, tuple(capacity)): (0.0, (0,))}
    for s in range(stages):
        device, last = s % devices, s + devices >= stages
        longer: _Grown = {}
        ends_of: dict[int, list[tuple[int, int, float]]] = {}
        for (start, free), (squares, bounds) in grown.items():
            if start not in ends_of:
                ends_of[start] = [
                    (e, memory.used(s, start, e), float(time.times(s, start, e)) ** 2)
                    for e in range(max(bottoms[s + 1], start + 1), tops[s + 1] + 1)
                    if time.used(s, start, e) <= rooms[s]
                ]
            for end, size, square in ends_of[start]:
                left = free[device] - size
                if left < 0:
                    break
                room = (*free[:device], 0 if last else left, *free[device + 1 :])
                if memory.sums[-1] - memory.sums[end] > sum(room):
                    continue
                key, value = (end, room), (squares + square, (*bounds, -end))
                if key not in longer or value < longer[key]:
                    longer[key] = value
        if len(longer) > _STATES:
            raise PartitionError(
                f"where the chunks of a device share its capacity, the best split is found "
                f"exactly for up to {_STATES} partial splits at a time, and {layers} layers in "
                f"{stages} stages on {devices} devices need {len(longer)}; group layers, use "
                f"fewer chunks, or raise the capacities until they no longer decide"
            )
        grown = longer
    best = min(grown.values(), default=None)
    return tuple(-b for b in best[1]) if best else None
