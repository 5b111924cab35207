"""What a rank function is expected to call: every collective with its label, kind and bytes."""

from collections.abc import Sequence
from typing import NamedTuple

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.rows import halo_strips
from tiledask.plan.products.traffic import Traffic


class Expected(NamedTuple):
    """One collective before anything runs; programs return these in the order of their calls."""

    label: str
    kind: str
    cost: Traffic
    """By rank, the bytes and the messages."""


def expected(
    label: str,
    kind: str,
    counts: Sequence[int],
    itemsize: int,
    algorithm: str | None = None,
    sum_itemsize: int | None = None,
) -> tuple[Expected, ...]:
    """One collective of chunks of ``counts`` elements, as for `cost`; none for a rank alone.

    >>> expected("dx", "all_gather", [2, 1, 1], 8)[0].cost.sent
    (32, 16, 16)
    """
    n = len(counts)
    if n == 1:
        return ()
    chosen = algorithm or default(kind, n)
    return (Expected(label, kind, cost(kind, chosen, tuple(counts), itemsize, 0, sum_itemsize)),)


def all_reduced(
    label: str,
    elements: int,
    ranks: int,
    itemsize: int,
    algorithm: str | None = None,
    sum_itemsize: int | None = None,
) -> tuple[Expected, ...]:
    """One all_reduce of an array of ``elements``.

    >>> all_reduced("gradients", 129068, 4, 4)[0].cost.sent[0]
    774408
    """
    counts = even(elements, ranks)
    return expected(label, "all_reduce", counts, itemsize, algorithm, sum_itemsize)


def halo(
    label: str, rows: Sequence[int], before: int, after: int, row_bytes: int, back: bool = False
) -> tuple[Expected, ...]:
    """One halo_exchange, or its adjoint halo_reduce (``back``); none if no row is lent.

    >>> halo("halo", [3, 3, 2], 1, 1, row_bytes=10)[0].cost.sent
    (10, 20, 10)
    """
    moves = []
    for strip in halo_strips(rows, before, after):
        ends = (strip.destination, strip.source) if back else (strip.source, strip.destination)
        moves.append((*ends, row_bytes * strip.size))
    if not moves:
        return ()
    kind = "halo_reduce" if back else "halo_exchange"
    return (Expected(label, kind, Traffic.of(len(rows), moves)),)
