"""Which rows the ranks need of each other when an array is cut along one dimension: its halos.

rows of rank 0    rank 1          rank 2      before=1, after=2, and nothing beyond the ends
[ . . . . . ]   [ . . . . ]     [ . . . ]
          '------^                             the last row of 0 goes to 1
            ^^---------'-'                     the first two rows of 1 go to 0
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from tiledask.errors import ConfigError

__all__ = ["Strip", "halo_strips", "halo_widths"]


class Strip(NamedTuple):
    """Rows that one rank sends another, numbered in the whole array."""

    source: int
    destination: int
    start: int
    stop: int


def halo_strips(extents: Sequence[int], before: int, after: int) -> tuple[Strip, ...]:
    """Every Strip of an exchange, for ranks that hold ``extents`` rows each.

    A rank gets ``before`` rows before its own and ``after`` behind them, from whoever has them,
    fewer at the two ends of the array, and none if it has no rows itself.

    >>> halo_strips([5, 4, 3], before=1, after=2)
    (Strip(source=1, destination=0, start=5, stop=7), Strip(source=0, destination=1, start=4, \
stop=5), Strip(source=2, destination=1, start=9, stop=11), Strip(source=1, destination=2, \
start=8, stop=9))
    """
    if min(before, after) < 0:
        raise ConfigError(f"a halo is 0 rows wide or more, got before={before}, after={after}")
    ends = (0, *accumulate(extents))
    strips = []
    for rank, rows in enumerate(extents):
        first, last = (before, after) if rows else (0, 0)
        for other in range(len(extents)):
            if other != rank:
                start = max(ends[other], ends[rank] - first)
                stop = min(ends[other + 1], ends[rank + 1] + last)
                if start < stop:
                    strips.append(Strip(other, rank, start, stop))
    return tuple(strips)


def halo_widths(extents: Sequence[int], rank: int, before: int, after: int) -> tuple[int, int]:
    """Rows that ``rank`` really gets before and behind its own.

    >>> [halo_widths([5, 4, 0, 3], rank, 1, 2) for rank in range(4)]
    [(0, 2), (1, 2), (0, 0), (1, 0)]
    """
    start = sum(extents[:rank])
    if not extents[rank]:
        return 0, 0
    behind = sum(extents) - start - extents[rank]
    return min(before, start), min(after, behind)
