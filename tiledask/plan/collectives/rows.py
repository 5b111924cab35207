"""An image cut along its rows: who makes which output rows, and which rows it must borrow.

rows of the image   0 . . 1 . . 2 . . 3 .      four ranks with 3, 3, 3 and 2 rows
windows of 3 rows    [---]                     a window belongs to whom its middle row belongs,
                         [---]  [---]          so it reaches (reach-1)//2 rows before its rank's
                                               own and reach//2 rows behind them, or fewer
A halo, before=1 and after=2, and nothing beyond the ends:

rows of rank 0    rank 1          rank 2
[ . . . . . ]   [ . . . . ]     [ . . . ]
          '------^                             the last row of 0 goes to 1
            ^^---------'-'                     the first two rows of 1 go to 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.intervals import Interval, ends_of
from tiledask.plan.products.traffic import Piece, Traffic, traffic_of

__all__ = ["RowSplit", "halo_cost", "halo_strips", "halo_widths", "split_rows"]


def halo_strips(extents: Sequence[int], before: int, after: int) -> tuple[Piece, ...]:
    """The rows that one rank sends another in an exchange, of ranks that hold ``extents`` each.

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
                strips.append(Piece(other, rank, ((start, stop),)))
    return tuple(strips)


def halo_cost(kind: str, extents: Sequence[int], row: int, before: int, after: int) -> Traffic:
    """The Traffic of a halo_exchange of rows of ``row`` bytes, or of a halo_reduce: back."""
    lent = traffic_of(len(extents), halo_strips(extents, before, after), row)
    return Traffic(lent.bytes.T, lent.messages.T) if kind == "halo_reduce" else lent


def halo_widths(extents: Sequence[int], rank: int, before: int, after: int) -> tuple[int, int]:
    """Rows that ``rank`` really gets before and behind its own."""
    start = sum(extents[:rank])
    behind = sum(extents) - start - extents[rank]
    return (min(before, start), min(after, behind)) if extents[rank] else (0, 0)


@dataclass(frozen=True)
class RowSplit:
    """Made by `split_rows`; each by rank."""

    rows: tuple[int, ...]  # of the image; ``out`` are those of the output
    out: tuple[int, ...]
    reads: tuple[Interval, ...]
    """The rows of the image that its windows read; none where it makes no output row."""
    zeros: tuple[tuple[int, int], ...]
    """Rows of zeros above and below these."""
    before: int  # the most rows that any rank needs before its own: the halo that all get
    after: int
    strips: tuple[Piece, ...]
    """Every loan of rows, from whoever has them; none where no window crosses."""
    widths: tuple[tuple[int, int], ...]
    """Rows that it borrows before and behind its own."""
    local: tuple[Interval, ...]
    """Where what it reads lies in its own rows with their halos."""


def split_rows(
    rows: Sequence[int],
    size: int,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
) -> RowSplit:
    """The RowSplit of windows of ``size`` rows over an image of which each rank has ``rows``.

    ``padding``: rows of zeros above and below. Raises PlacementError if no window fits.

    >>> split = split_rows([3, 3, 3, 2], size=3, padding=(1, 1))
    >>> split.out, split.before, split.after
    ((3, 3, 3, 2), 1, 1)
    >>> split_rows([4, 4], size=2, stride=2).strips  # no window crosses
    ()
    """
    ends, reach = ends_of(rows), (size - 1) * dilation + 1
    h, padded = ends[-1], ends[-1] + sum(padding)
    if not rows or min(rows) < 0 or reach > padded:
        raise PlacementError(
            f"a window of {reach} rows does not fit into the {padded} that ranks with {rows} rows "
            f"and padding of {padding} have; use more padding or a smaller window"
        )
    firsts = np.arange((padded - reach) // stride + 1) * stride - padding[0]
    middles = np.clip(firsts + (reach - 1) // 2, 0, max(h - 1, 0))
    owners = np.searchsorted(ends[1:], middles, side="right") if h else np.zeros(len(firsts), int)
    reads, zeros = list[Interval](), list[tuple[int, int]]()
    for rank in range(len(rows)):
        mine = firsts[owners == rank].tolist()
        start, stop = (mine[0], mine[-1] + reach) if mine else (ends[rank], ends[rank])
        above, below = (min(max(beyond, 0), stop - start) for beyond in (-start, stop - h))
        zeros.append((above, below))
        reads.append((min(max(start, 0), h), min(max(stop, 0), h)))
    out = tuple(np.bincount(owners, minlength=len(rows)).tolist())
    before = max(0, *(own - start for own, (start, _) in zip(ends, reads, strict=False)))
    after = max(0, *(stop - own for own, (_, stop) in zip(ends[1:], reads, strict=True)))
    widths = tuple(halo_widths(rows, rank, before, after) for rank in range(len(rows)))
    origins = [own - ahead for own, (ahead, _) in zip(ends, widths, strict=False)]
    local = tuple((a - at, b - at) for (a, b), at in zip(reads, origins, strict=True))
    halos = before, after, halo_strips(rows, before, after)
    return RowSplit(tuple(rows), out, tuple(reads), tuple(zeros), *halos, widths, local)
