"""The exact min-max split of a row of layers over devices in a given order.

prefix  0   2   3   4  ...   n     bounds 0 = b0 < b1 < ... < bk = n cut the row into
        |---|-------|-- ... -|     k stages; stage s takes time
                                   (prefix[b(s+1)] - prefix[b(s)]) / speed + send[b(s+1)]

Two dynamic programmes over (stage, where it ends): the least bottleneck, then of all splits that
reach it the most even one. Floats answer first, and where they are too close to call, Python's
integers decide.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf, lcm

import numpy as np

from tiledask.errors import PartitionError

__all__ = ["LayerSums", "min_max_bounds"]

_CLOSE = 1e-14
"""Distance, relative to the whole row, below which floats do not decide."""

_STATES = 100_000
"""Partial splits that are held at once where the chunks of a device share its memory."""


class LayerSums:
    """What stages take of a room: stage s with the layers a, ..., e - 1 takes
    (sum of their values + speeds[s] * sends[e]) / speeds[s] of its own.

    All values are whole numbers of any size; ``sends`` has an entry for each of the layers + 1
    cuts and is 0 at the outer two.

    >>> LayerSums([2, 1, 4], [1, 2]).used(0, 0, 2), LayerSums([2, 1, 4], [1, 2]).used(1, 2, 3)
    (6, 4)
    """

    def __init__(
        self, values: Sequence[int], speeds: Sequence[int], sends: Sequence[int] | None = None
    ):
        self.sums, self.speeds = list(accumulate(values, initial=0)), list(speeds)
        self.sends = [0] * len(self.sums) if sends is None else list(sends)
        self.unit = lcm(*speeds)
        """Of 1 in the unit in which every stage takes a whole number."""
        most = (self.sums[-1] + max(speeds) * max(self.sends)) * self.unit
        self.scale = 1 if most < 2**62 else most
        """By what floats are made smaller; 1 where 64 bits hold all."""

    def used(self, s: int, start: int, end: int) -> int:
        """What stage s takes, in units."""
        summed = self.sums[end] - self.sums[start] + self.speeds[s] * self.sends[end]
        return summed * (self.unit // self.speeds[s])

    def table(self, s: int) -> np.ndarray:
        """The same of every start and end, over ``scale``: [layers + 1, layers + 1]."""
        each, speed = self.unit // self.speeds[s], self.speeds[s]
        if self.scale == 1:
            sums, sends = np.array(self.sums, np.int64), np.array(self.sends, np.int64)
            used: np.ndarray = (sums[None, :] - sums[:, None] + speed * sends) * each
            return used
        sums, sends = (
            np.array([v * k / self.scale for v in row])
            for row, k in ((self.sums, each), (self.sends, speed * each))
        )
        return sums[None, :] - sums[:, None] + sends

    def seconds(self, table: np.ndarray) -> np.ndarray:
        """What stands in a table as floats, for comparison with each other."""
        return table / self.unit if self.scale == 1 else table

    def within(self, s: int, limit: int) -> np.ndarray:
        """Of every start and end, whether stage s takes no more than that."""
        table = self.table(s)
        if self.scale == 1:
            return table <= limit
        keeps = table <= limit / self.scale
        for start, end in np.argwhere(np.abs(table - limit / self.scale) <= _CLOSE).tolist():
            keeps[start, end] = self.used(s, start, end) <= limit
        return keeps


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
    below = np.tri(len(time.sums), k=-1, dtype=bool).T  # a stage has a layer or more

    def allowed(s: int) -> np.ndarray:
        """Which starts and ends stage s may have by itself."""
        return below if memory is None else below & memory.within(s, capacity[s % len(capacity)])

    slowest = _least_bottleneck(time, allowed)
    if slowest is None:
        return None
    even = _most_even(time, allowed, slowest)
    if memory is None or _all_fit(memory, capacity, even):
        return even
    sizes, rooms = memory.sums, tuple(capacity)
    best = _shared(time, sizes, rooms, slowest, even=False)
    if best is None:
        return None
    slowest = max(time.used(s, a, b) for s, (a, b) in enumerate(pairwise(best)))
    return _shared(time, sizes, rooms, slowest, even=True)


Allowed = Callable[[int], np.ndarray]
"""Stage -> which starts and ends it may have: [layers + 1, layers + 1]."""


def _least_bottleneck(time: LayerSums, allowed: Allowed) -> int | None:
    """What the slowest stage takes at least; None if no split is allowed."""
    before, starts = np.full(len(time.sums), inf), list[np.ndarray]()
    before[0] = 0
    for s in range(len(time.speeds)):
        slower = np.where(allowed(s), np.maximum(before[:, None], time.table(s)), inf)
        starts.append(slower.argmin(axis=0))
        before = slower.min(axis=0)
    if before[-1] == inf:
        return None
    bounds = [len(time.sums) - 1]
    for best in reversed(starts):
        bounds = [int(best[bounds[0]]), *bounds]
    slowest = 0
    while bounds:  # by floats: until none is strictly faster
        slowest = max(time.used(s, a, b) for s, (a, b) in enumerate(pairwise(bounds)))
        bounds = _any_split(time, allowed, slowest - 1)
    return slowest


def _any_split(time: LayerSums, allowed: Allowed, limit: int) -> list[int]:
    """A split of which no stage takes more than that; empty if there is none."""
    stages = range(len(time.speeds))
    reached = [np.arange(len(time.sums)) == 0]
    for s in stages:
        keeps = allowed(s) & time.within(s, limit)
        reached.append((reached[-1][:, None] & keeps).any(axis=0))
    if not reached[-1][-1]:
        return []
    bounds = [len(time.sums) - 1]
    for s in reversed(stages):
        keeps = allowed(s) & time.within(s, limit)
        bounds = [int(np.flatnonzero(reached[s] & keeps[:, bounds[0]])[-1]), *bounds]
    return bounds


def _most_even(time: LayerSums, allowed: Allowed, slowest: int) -> tuple[int, ...]:
    """Of the splits that take no longer, the one with the least sum of squared stage times."""
    last = len(time.sums) - 1
    after, ends = np.full(last + 1, inf), []  # of the stages from a cut on; the best end of each
    after[last] = 0
    for s in reversed(range(len(time.speeds))):
        keeps = allowed(s) & time.within(s, slowest)
        value = np.where(keeps, time.seconds(time.table(s)) ** 2 + after[None, :], inf)
        after = value.min(axis=1)
        even = value <= after[:, None] * (1 + 1e-12)
        ends.append(last - np.argmax(even[:, ::-1], axis=1))  # the longest of equal ones
    bounds = [0]
    for best in reversed(ends):
        bounds.append(int(best[bounds[-1]]))
    return tuple(bounds)


def _all_fit(memory: LayerSums, capacity: Sequence[int], bounds: Sequence[int]) -> bool:
    """Whether the stages of each device fit together."""
    held = [0] * len(capacity)
    for s, (a, b) in enumerate(pairwise(bounds)):
        held[s % len(held)] += memory.used(s, a, b)
    return all(used <= room for used, room in zip(held, capacity, strict=True))


_Grown = dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]
"""Partial splits: (end, memory that is free on each device) -> (value, -bounds)."""


def _shared(
    time: LayerSums, sizes: list[int], capacity: tuple[int, ...], slowest: int, *, even: bool
) -> tuple[int, ...] | None:
    """The split whose devices hold all their stages together: the fastest of those that take
    ``slowest`` or longer, or the most ``even`` of those that take no longer; None without one.

    Partial splits are grown stage by stage; of those that end at the same layer and leave the
    same memory free only the best is kept. Raises PartitionError where more than 100,000 of them
    would have to be held.
    """
    layers, stages, devices = len(sizes) - 1, len(time.speeds), len(capacity)
    grown: _Grown = {(0, capacity): (0.0, (0,))}
    for s in range(stages):
        device, last = s % devices, s + devices >= stages
        longer: _Grown = {}
        for (start, free), (value, bounds) in grown.items():
            for end in range(start + 1, layers - (stages - 1 - s) + 1):
                left = free[device] - (sizes[end] - sizes[start])
                took = time.used(s, start, end)
                if left < 0:
                    break
                room = (*free[:device], 0 if last else left, *free[device + 1 :])
                if (even and took > slowest) or sizes[-1] - sizes[end] > sum(room):
                    continue
                square = (took / (time.unit if time.scale == 1 else time.scale)) ** 2
                worth = value + square if even else max(value, took, slowest)
                key, found = (end, room), (worth, (*bounds, -end))
                if key not in longer or found < longer[key]:
                    longer[key] = found
        if len(longer) > _STATES:
            raise PartitionError(
                f"where the chunks of a device share its capacity, the best split is found "
                f"exactly for up to {_STATES} partial splits at a time, and {layers} layers in "
                f"{stages} stages on {devices} devices need {len(longer)}; group layers, use "
                f"fewer chunks, or raise the capacities until they no longer decide"
            )
        grown = longer
    ends = [found for (end, _), found in grown.items() if end == layers]
    return tuple(-b for b in min(ends)[1]) if ends else None
