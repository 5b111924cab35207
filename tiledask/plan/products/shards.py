"""Which indices of one dimension every rank holds: even, uneven, side by side, or shared.

                    rank 0   rank 1   rank 2   rank 3
even(10, 4)         0 1 2    3 4 5    6 7      8 9
side by side        gate 0 1 2 | up 0 1 2, ...            each rank has its part of both
10 heads over 5     kv 0 1   1 2      3        4          kv head 1 is on ranks 0 and 1
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.intervals import Interval, split

__all__ = ["Shards", "even_shards"]


@dataclass(frozen=True)
class Shards:
    """Parts of a dimension of ``extent`` indices: one tuple of intervals for each rank.

    Intervals of different ranks may overlap: what they share is held by both.
    """

    extent: int
    parts: tuple[tuple[Interval, ...], ...]

    def __post_init__(self) -> None:
        for rank, part in enumerate(self.parts):
            for start, stop in part:
                if not 0 <= start < stop <= self.extent:
                    raise PlacementError(
                        f"rank {rank} holds indices {start}..{stop} of a dimension of "
                        f"{self.extent}: an interval is start < stop within 0..{self.extent}; "
                        f"leave empty ones out"
                    )

    @property
    def ranks(self) -> int:
        return len(self.parts)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Indices that each rank holds."""
        return tuple(sum(stop - start for start, stop in part) for part in self.parts)

    @cached_property
    def in_a_row(self) -> bool:
        """Whether the parts, one rank's after the other's, are the dimension."""
        flat = [at for part in self.parts for at in part]
        ends = [0, *(stop for _, stop in flat)]
        return ends == [*(start for start, _ in flat), self.extent]

    @property
    def covers(self) -> bool:
        """Whether every index is held by some rank."""
        held = {index for rank in range(self.ranks) for index in self.indices(rank).tolist()}
        return len(held) == self.extent

    def scaled(self, width: int) -> "Shards":
        """The same parts, each index being ``width`` indices: heads as columns."""
        parts = (tuple((width * a, width * b) for a, b in part) for part in self.parts)
        return Shards(width * self.extent, tuple(parts))

    def shared(self) -> Iterator[tuple[tuple[int, ...], Interval]]:
        """(ranks, interval) of what more than one rank holds, in rising order.

        >>> list(Shards(3, (((0, 2),), ((1, 3),), ((2, 3),))).shared())
        [((0, 1), (1, 2)), ((1, 2), (2, 3))]
        """
        ends = sorted({end for part in self.parts for at in part for end in at})
        runs: list[tuple[tuple[int, ...], Interval]] = []
        for start, stop in pairwise(ends):
            holders = tuple(
                r for r, part in enumerate(self.parts) if any(a <= start < b for a, b in part)
            )
            if runs and runs[-1][0] == holders:
                start = runs.pop()[1][0]
            runs.append((holders, (start, stop)))
        return (run for run in runs if len(run[0]) > 1)

    def local(self, rank: int, interval: Interval) -> slice:
        """Where ``rank`` has ``interval`` in what it holds."""
        before = 0
        for start, stop in self.parts[rank]:
            if start <= interval[0] and interval[1] <= stop:
                return slice(before + interval[0] - start, before + interval[1] - start)
            before += stop - start
        raise PlacementError(f"rank {rank} does not hold {interval} in one piece: {self}")

    def indices(self, rank: int) -> np.ndarray:
        """Every index that ``rank`` holds, in the order in which it holds them."""
        intervals = [np.arange(start, stop) for start, stop in self.parts[rank]]
        return np.concatenate([np.arange(0), *intervals])

    def __str__(self) -> str:
        parts = " | ".join(
            " + ".join(f"{a}..{b}" for a, b in part) or "none" for part in self.parts
        )
        return f"{self.extent} as {parts}"


@lru_cache(4096)
def even_shards(extent: int, ranks: int) -> Shards:
    """Parts in a row, as even as numpy.array_split makes them; some empty if ranks > extent.

    >>> even_shards(10, 4).counts, even_shards(2, 3).parts
    ((3, 3, 2, 2), (((0, 1),), ((1, 2),), ()))
    """
    intervals = split(0, extent, ranks)
    return Shards(extent, tuple((at,) if at[0] < at[1] else () for at in intervals))
