"""The exact search for the best contiguous split of a row of layers, in whole numbers.

    sums   0   2   3   7  ...   n      stage s from layer a up to, not with, layer e takes
           |---|-------|-- ... -|      (sums[e] - sums[a]) / speed + send[e] of its limit

For a limit on stage times, partial splits are grown from the last stage to the first, and of those
that leave the same layers the most even is kept. Limits grow until there is a split, then halve
the distance; the last, strictly below the best, is the proof that nothing is better.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from tiledask.errors import PartitionError

__all__ = ["LayerRow", "best_bounds"]

MOST_STATES = 100_000
"""Partial splits held at once where the chunks of a device share its memory."""


_Grown = dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]
"""Partial splits: (first layer, room left on each device) -> (sum of squares, -bounds behind)."""


@dataclass(frozen=True)
class LayerRow:
    """Layers and stages in whole numbers of any size."""

    costs: Sequence[int]
    speeds: Sequence[int]
    """Of each stage."""
    sends: Sequence[int]
    """Time of a cut before each layer and behind the last; 0 at both ends."""
    memory: Sequence[int]
    """Of each layer."""
    room: Sequence[int]
    """Of each device; stage s is on device s mod their number."""
    shared: bool = False
    """Whether the stages of a device have one room together, not one each."""


def best_bounds(row: LayerRow) -> tuple[int, ...] | None:
    """The bounds of the split with the fastest slowest stage; None if memory allows none.

    Of several the most even (least sum of squared stage times, in floating point), and of those
    the one with the longest first stages.

    >>> best_bounds(LayerRow([4, 4, 9, 8], [1, 1, 1], [0] * 5, [0] * 4, [0] * 3))
    (0, 2, 3, 4)
    """
    best = _fastest(row)
    if best is None or len(row.room) == len(row.speeds):
        return best
    held = [0] * len(row.room)
    for s, (a, b) in enumerate(pairwise(best)):
        held[s % len(held)] += sum(row.memory[a:b])
    if all(used <= room for used, room in zip(held, row.room, strict=True)):
        return best
    return _fastest(replace(row, shared=True))


def _fastest(row: LayerRow) -> tuple[int, ...] | None:
    whole = Fraction(sum(row.costs) + max(row.speeds) * max(row.sends))
    low = Fraction(sum(row.costs), sum(row.speeds))
    limit, step = low, low / 16
    best = _most_even(row, limit)
    while best is None:
        if limit >= whole:
            return None
        low, limit = limit, limit + step if step else whole
        step, best = 2 * step, _most_even(row, limit)
    high = _slowest(row, best)
    while better := _most_even(row, high, strict=True):
        high, middle = _slowest(row, better), (low + _slowest(row, better)) / 2
        if better := _most_even(row, middle):
            high = _slowest(row, better)
        else:
            low = middle
    return _most_even(row, high)


def _slowest(row: LayerRow, bounds: Sequence[int]) -> Fraction:
    """The time of the slowest stage."""
    stages = zip(row.speeds, pairwise(bounds), strict=True)
    return max(Fraction(sum(row.costs[a:b]), v) + row.sends[b] for v, (a, b) in stages)


def _most_even(row: LayerRow, limit: Fraction, strict: bool = False) -> tuple[int, ...] | None:
    """The most even split whose stages take at most ``limit``, or less than it; None for none."""
    sums, held = (list(accumulate(each, initial=0)) for each in (row.costs, row.memory))
    whole = sums[-1] + max(row.speeds) * max(row.sends)
    most = [min((limit.numerator * v - strict) // limit.denominator, whole) for v in row.speeds]
    reach = list(accumulate(most, initial=0))
    unit = 1 if whole < 2**62 else whole  # squares of larger numbers pass the range of floats
    layers, stages, devices = len(row.costs), len(row.speeds), len(row.room)
    grown: _Grown = {(layers, tuple(row.room) if row.shared else ()): (0.0, ())}
    for s in reversed(range(stages)):
        longer: _Grown = {}
        device, speed, top = s % devices, row.speeds[s], bisect_right(sums, reach[s])
        for (end, free), (squares, bounds) in grown.items():
            room = free[device] if row.shared else row.room[device]
            sent = speed * row.sends[end]
            for start in range(min(end, top) - 1, s - 1, -1):
                used = sums[end] - sums[start] + sent
                left = room - held[end] + held[start]
                if used > most[s] or left < 0:
                    break
                if row.shared:
                    kept = left if s >= devices else 0  # nothing more comes to this device
                    left_free = (*free[:device], kept, *free[device + 1 :])
                    if held[start] > sum(left_free):
                        continue
                else:
                    left_free = ()
                value = squares + (used / (speed * unit)) ** 2, (-end, *bounds)
                key = start, left_free
                if key not in longer or value < longer[key]:
                    longer[key] = value
        if row.shared and len(longer) > MOST_STATES:
            raise PartitionError(
                f"where the chunks of a device share its capacity, the best split is found exactly "
                f"for up to {MOST_STATES} partial splits at a time, and {layers} layers in "
                f"{stages} stages on {devices} devices need {len(longer)}; group layers, use fewer "
                f"chunks, or raise the capacities until they no longer decide"
            )
        grown = longer
    first = min((value for (start, _), value in grown.items() if start == 0), default=None)
    return None if first is None else (0, *(-bound for bound in first[1]))
