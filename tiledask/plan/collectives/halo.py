"""Which rows the ranks need of each other when an array is cut along one dimension: its halos.

rows of rank 0    rank 1          rank 2      before=1, after=2, and nothing beyond the ends
[ . . . . . ]   [ . . . . ]     [ . . . ]
          '------^                             the last row of 0 goes to 1
            ^^---------'-'                     the first two rows of 1 go to 0
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.intervals import ends_of

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
    """
    if min(before, after) < 0:
        raise ConfigError(f"a halo is 0 rows wide or more, got before={before}, after={after}")
    held, strips = list(pairwise(ends_of(extents))), []
    for rank, (first, last) in enumerate(held):
        for other, (start, stop) in enumerate(held):
            start, stop = max(start, first - before), min(stop, last + after)
            if other != rank and first < last and start < stop:
                strips.append(Strip(other, rank, start, stop))
    return tuple(strips)


def halo_widths(extents: Sequence[int], rank: int, before: int, after: int) -> tuple[int, int]:
    """Rows that ``rank`` really gets before and behind its own."""
    start = sum(extents[:rank])
    behind = sum(extents) - start - extents[rank]
    return (min(before, start), min(after, behind)) if extents[rank] else (0, 0)
