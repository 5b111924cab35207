"""What a collective moves, counted from its moves: bytes and messages of every rank.

A message without an element is not sent where every rank knows that there is none: in reductions,
to which all bring arrays of one shape. Of 1 element in an all_reduce of 4 ranks only one chunk
has any, and 6 messages are left of 24.
"""

from functools import lru_cache
from math import isqrt

from tiledask.plan.collectives.algorithms import default, rounds
from tiledask.plan.intervals import even
from tiledask.plan.products.traffic import Traffic

__all__ = ["SHAPES_AGREE", "cost", "even"]

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
    ``algorithm``: by its name, or "" for the default. ``sum_itemsize``: bytes of an element of a
    sum under way, where that is wider than the array's.

    >>> cost("all_reduce", "ring", (2, 1, 1), 8).sent
    (40, 48, 40)
    """
    n = isqrt(len(counts)) if kind == "all_to_all" else len(counts)
    moved = list[tuple[int, int, int]]()
    for moves in rounds(kind, algorithm or default(kind, n), n, root):
        for source, destination, chunks, adds in moves:
            elements = sum(counts[chunk] for chunk in chunks)
            if elements or kind not in SHAPES_AGREE:
                width = sum_itemsize if adds and sum_itemsize else itemsize
                moved.append((source, destination, elements * width))
    return Traffic.of(n, moved)
