"""What a collective moves, counted from its moves: bytes and messages of every rank.

A message without an element is not sent where every rank knows that there is none: in reductions,
to which all bring arrays of one shape. Of 1 element in an all_reduce of 4 ranks only one chunk
has any, and 6 messages are left of 24.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import isqrt

from tiledask.plan.collectives.algorithms import Move, rounds
from tiledask.plan.intervals import even
from tiledask.plan.products.traffic import Traffic

__all__ = ["SHAPES_AGREE", "cost", "even", "loads", "ranks_of"]

SHAPES_AGREE = ("all_reduce", "reduce_scatter", "reduce")
"""Kinds to which every rank brings an array of the same shape."""


@lru_cache(10_000)  # a training has few different ones, of every rank in every micro-batch
def cost(
    kind: str,
    algorithm: str,
    counts: tuple[int, ...],
    itemsize: int,
    root: int = 0,
    sum_itemsize: int | None = None,
) -> Traffic:
    """The Traffic of a collective whose chunks have ``counts`` elements of ``itemsize`` bytes.

    ``counts``: one per rank; of an all_to_all one per pair, n*s + d from rank s to rank d.
    ``sum_itemsize``: bytes of an element of a sum under way, where that is wider than the array's.

    >>> cost("all_reduce", "ring", (2, 1, 1), 8).sent
    (40, 48, 40)
    """
    moved = chain.from_iterable(loads(kind, algorithm, counts, itemsize, root, sum_itemsize))
    moves = ((move.source, move.destination, nbytes) for move, nbytes in moved)
    return Traffic.of(ranks_of(kind, counts), moves)


def loads(
    kind: str,
    algorithm: str,
    counts: Sequence[int],
    itemsize: int,
    root: int = 0,
    sum_itemsize: int | None = None,
) -> Iterator[list[tuple[Move, int]]]:
    """By round, the moves that are made and the bytes of each; arguments as for `cost`."""
    for moves in rounds(kind, algorithm, ranks_of(kind, counts), root):
        each = ((move, sum(counts[c] for c in move.chunks)) for move in moves)
        yield [
            (move, elements * (sum_itemsize if move.adds and sum_itemsize else itemsize))
            for move, elements in each
            if elements or kind not in SHAPES_AGREE
        ]


def ranks_of(kind: str, counts: Sequence[int]) -> int:
    """How many ranks have chunks of these ``counts``."""
    return isqrt(len(counts)) if kind == "all_to_all" else len(counts)
