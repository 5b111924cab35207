"""The exact min-max split of a row of layers over devices in a given order.

prefix  0   2   3   4  ...   n     bounds 0 = b0 < b1 < ... < bk = n cut the row into
        |---|-------|-- ... -|     k stages; stage s costs (prefix[b(s+1)] - prefix[b(s)]) / speed

A limit on the stage time is tried by growing the set of cuts that can be reached stage by
stage. Every try moves one side of the search onto a stage time that really occurs, so the
search ends on the optimum itself, not near it. All comparisons are between whole numbers.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

__all__ = ["min_max_bounds", "prefix_sums", "reach"]

_ROWS = 1_000_000
"""Entries of the evenness table that are held at once."""


def prefix_sums(values: Sequence[int]) -> np.ndarray:
    """Sums of the first 0, 1, ..., n values: int64 [n + 1], or Python ints where those overflow."""
    sums = [0]
    for value in values:
        sums.append(sums[-1] + value)
    return np.array(sums, np.int64 if sums[-1] < 2**61 else object)


def reach(prefix: np.ndarray, limit: int) -> np.ndarray:
    """For every start, the furthest end whose sum stays within ``limit``: [n + 1].

    >>> reach(prefix_sums([2, 1, 4]), 3).tolist()
    [2, 2, 2, 3]
    """
    limit = min(int(limit), int(prefix[-1]))
    return np.searchsorted(prefix, prefix + limit, side="right") - 1


def min_max_bounds(
    costs: Sequence[int], speeds: Sequence[Fraction], ceilings: Sequence[np.ndarray]
) -> tuple[int, ...] | None:
    """The bounds of a split whose slowest stage is as fast as any split allows.

    ``ceilings[s][i]`` is the furthest end that memory allows device s when it starts at layer
    i (see :func:`reach`). Of the optimal splits it returns the most even one (least sum of
    squared stage times), and of those the one with the longest first stages. None if memory
    allows no split at all.

    >>> free = reach(prefix_sums([0] * 4), 0)
    >>> min_max_bounds([4, 4, 9, 8], [Fraction(1)] * 3, [free] * 3)
    (0, 2, 3, 4)
    """
    prefix = prefix_sums(costs)
    ends = _reachable(ceilings)
    if ends is None:
        return None
    low = Fraction(int(prefix[-1])) / sum(speeds)
    high = _slowest(prefix, speeds, _any_split(ends, ceilings))
    while low < high:
        limit = (low + high) / 2
        by_speed = {v: reach(prefix, limit * v // 1) for v in set(speeds)}
        limits = [np.minimum(by_speed[v], c) for v, c in zip(speeds, ceilings, strict=True)]
        ends = _reachable(limits)
        if ends is None:
            low = min(total / v for v, far in by_speed.items() for total in _next_sum(prefix, far))
        else:
            high = _slowest(prefix, speeds, _any_split(ends, limits))
    by_speed = {v: reach(prefix, high * v // 1) for v in set(speeds)}
    limits = [np.minimum(by_speed[v], c) for v, c in zip(speeds, ceilings, strict=True)]
    return _most_even(prefix, speeds, limits)


def _reachable(limits: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Where stage s can end, for s = 0 (nothing yet) .. k; None if the last layer is not reached.

    The sets may have gaps: a device that a large layer does not fit on must stop before it.
    """
    layers, stages = len(limits[0]) - 1, len(limits)
    ends = [np.array([0])]
    for s, far in enumerate(limits):
        starts = ends[-1][far[ends[-1]] > ends[-1]]
        change = np.bincount(starts + 1, minlength=layers + 2)
        change -= np.bincount(far[starts] + 1, minlength=layers + 2)
        found = np.flatnonzero(np.cumsum(change)[: layers + 1])
        # leave a layer for each later stage: no other end can lead to the last layer
        ends.append(found[found <= layers - (stages - 1 - s)])
    return ends if layers in ends[-1] else None


def _any_split(ends: list[np.ndarray], limits: Sequence[np.ndarray]) -> tuple[int, ...]:
    """One split along the reachable cuts, walked back from the last layer."""
    bounds = [len(limits[0]) - 1]
    for starts, far in zip(reversed(ends[:-1]), reversed(limits), strict=True):
        end = bounds[-1]
        bounds.append(int(starts[(starts < end) & (far[starts] >= end)][-1]))
    return tuple(reversed(bounds))


def _slowest(prefix: np.ndarray, speeds: Sequence[Fraction], bounds: Sequence[int]) -> Fraction:
    """The largest stage time of a split."""
    sums = [int(prefix[b]) - int(prefix[a]) for a, b in pairwise(bounds)]
    return max(Fraction(total) / v for total, v in zip(sums, speeds, strict=True))


def _next_sum(prefix: np.ndarray, far: np.ndarray) -> list[Fraction]:
    """The smallest sum of consecutive layers that goes beyond ``far``; empty if none does."""
    starts = np.flatnonzero(far < len(prefix) - 1)
    return [Fraction(int(min(prefix[far[starts] + 1] - prefix[starts])))] if len(starts) else []


def _most_even(
    prefix: np.ndarray, speeds: Sequence[Fraction], limits: Sequence[np.ndarray]
) -> tuple[int, ...]:
    """Of the splits within ``limits``, the one with the least sum of squared stage times."""
    cuts = _reachable(limits)
    # whole numbers stay whole, so that equal splits tie exactly; huge ones are scaled
    sums = (prefix / int(prefix[-1]) if prefix.dtype == object else prefix).astype(float)
    ends, after = np.array([len(prefix) - 1]), np.zeros(1)
    following = []  # per stage, last first: (starts, the best end of each)
    for starts, speed, far in zip(reversed(cuts[:-1]), speeds[::-1], limits[::-1], strict=True):
        times, block = sums / float(speed), max(1, _ROWS // len(ends))
        parts = [
            _best_ends(times, far, starts[i : i + block], ends, after)
            for i in range(0, len(starts), block)
        ]
        best, after = (np.concatenate(column) for column in zip(*parts, strict=True))
        alive = np.isfinite(after)
        ends, after = starts[alive], after[alive]
        following.append(dict(zip(ends.tolist(), best[alive].tolist(), strict=True)))
    bounds = [0]
    for best_end in reversed(following):
        bounds.append(best_end[bounds[-1]])
    return tuple(bounds)


def _best_ends(times, far, starts, ends, after):
    """For each start the best end and its value: two [starts] arrays; inf where none is allowed."""
    value = times[ends][None, :] - times[starts][:, None]
    value = value * value + after
    value[(ends <= starts[:, None]) | (ends > far[starts][:, None])] = np.inf
    column = len(ends) - 1 - np.argmin(value[:, ::-1], axis=1)  # the last of equal ones
    return ends[column], value[np.arange(len(starts)), column]
