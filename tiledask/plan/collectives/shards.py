"""Which heads every rank holds, which columns of fused matrices, and which numbers under ZeRO.

query heads over 4 ranks   0 1 2   3 4 5   6 7   8 9
kv heads that they use     0       0 1     1     1          kv head 1 is on ranks 1, 2 and 3
"""

from collections.abc import Sequence
from itertools import pairwise

from tiledask.errors import PlacementError
from tiledask.plan.intervals import Interval, ends_of, even
from tiledask.plan.products.shards import Shards, even_shards

__all__ = ["deal_heads", "shards", "side_by_side"]


def side_by_side(*shards: Shards) -> Shards:
    """Parts of dimensions that lie behind each other: every rank has its part of each.

    For matrices that were fused, such as gate | up or q | k | v. Dealt out evenly instead, one
    rank would have all of the gate and none of what it is multiplied with.
    """
    parts: list[list[Interval]] = [[] for _ in shards[0].parts]
    for offset, each in zip(ends_of(one.extent for one in shards), shards, strict=False):
        for mine, part in zip(parts, each.parts, strict=True):
            for start, stop in part:
                touches = mine and mine[-1][1] == offset + start
                mine.append((mine.pop()[0] if touches else offset + start, offset + stop))
    return Shards(sum(each.extent for each in shards), tuple(map(tuple, parts)))


def deal_heads(query: int, kv: int, ranks: int) -> tuple[Shards, Shards]:
    """(query heads, kv heads) of every rank, counted in heads.

    Query heads are shared out evenly; a rank has every kv head that its query heads look at, so
    with more ranks than kv heads these are on several ranks. A rank without a query head has none.

    >>> [each.parts for each in deal_heads(4, 2, 4)]
    [(((0, 1),), ((1, 2),), ((2, 3),), ((3, 4),)), (((0, 1),), ((0, 1),), ((1, 2),), ((1, 2),))]
    """
    if kv < 1 or query < 1 or query % kv:
        raise PlacementError(
            f"query heads share kv heads evenly, so kv heads divide query heads; got {query} query "
            f"and {kv} kv heads: use a divisor of {query}"
        )
    heads, share = even_shards(query, ranks), query // kv
    looks = (tuple((a // share, (b - 1) // share + 1) for a, b in part) for part in heads.parts)
    return heads, Shards(kv, tuple(looks))


def shards(sizes: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """By layer, how many of its numbers each rank keeps.

    A layer is divided as evenly as it can be, and those who get one more take turns, so that
    all layers together are divided as evenly as one array: no rank has more than ceil(P / n).

    >>> shards([5, 5, 5], 4)
    ((2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1))
    """
    until = [even(total, ranks) for total in ends_of(sizes)]
    return tuple(tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(until))
