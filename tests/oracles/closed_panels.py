"""The panels of a product on a grid: pieces of the inner dimension with one owner in x, one in w.

columns of x over 3 ranks   |  0  |  1  |  2  |
rows of w over 2 ranks      |   0    |   1    |
panels                      | 00  |10|11| 21  |
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tiledask.plan.products.shards import Shards, even_shards


class Panel(NamedTuple):
    """Columns of x, which are rows of w, that have one owner in each."""

    column: int
    """Of the grid: where x's are."""
    of_x: slice
    """Where they lie in the owner's block of x."""
    row: int
    """Of the grid: where w's are."""
    of_w: slice
    """Where they lie in the owner's block of w."""

    @property
    def extent(self) -> int:
        columns: int = self.of_x.stop - self.of_x.start
        return columns


def panels(extent: int, rows: int, columns: int) -> Iterator[Panel]:
    """The panels of ``extent`` columns of x over ``columns`` ranks, rows of w over ``rows``.

    >>> [(panel.column, panel.row, panel.extent) for panel in panels(6, rows=2, columns=3)]
    [(0, 0, 2), (1, 0, 1), (1, 1, 1), (2, 1, 2)]
    """
    of_x, of_w = even_shards(extent, columns), even_shards(extent, rows)
    ends = {end for shards in (of_x, of_w) for part in shards.parts for at in part for end in at}
    for start, stop in pairwise(sorted(ends)):
        column, row = _holder(of_x, start), _holder(of_w, start)
        yield Panel(column, of_x.local(column, (start, stop)), row, of_w.local(row, (start, stop)))


def _holder(shards: Shards, index: int) -> int:
    return next(rank for rank, part in enumerate(shards.parts) for a, b in part if a <= index < b)
