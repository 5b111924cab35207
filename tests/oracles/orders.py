"""One sum in every order: how far apart the results of rings are, and that they are all there.

A ring sums chunk c all the way round to rank c: each chunk in another order, and ranks that sit
otherwise on the ring in others again. In exact arithmetic all are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import rounds

__all__ = ["Spread", "order_spread", "ring_order"]

MOST = 8
"""Partial sums, of which there are 40,320 orders."""


@dataclass(frozen=True)
class Spread:
    """A sum in all orders, element by element."""

    lowest: Any
    highest: Any
    distinct: Any
    """How many different results each element has."""
    orders: int
    """How many orders were tried."""

    @property
    def width(self) -> float:
        """The largest distance between two results, over the largest result."""
        scale = float(np.max(np.abs(np.stack([self.lowest, self.highest]).astype(float))))
        gap = float(np.max(self.highest.astype(float) - self.lowest.astype(float)))
        return gap / scale if scale else 0.0

    def contains(self, total: Any) -> bool:
        """Whether ``total`` may come out, element by element."""
        return bool(((self.lowest <= total) & (total <= self.highest)).all())

    def __str__(self) -> str:
        return (
            f"{self.orders} orders, at most {int(self.distinct.max())} different results for an "
            f"element, {self.width:.1e} of the largest apart"
        )


def ring_order(chunk: int, ranks: int) -> tuple[int, ...]:
    """The order in which a ring adds the ranks' parts of a chunk.

    >>> ring_order(0, 4)
    (3, 2, 1, 0)
    """
    moves = [
        move
        for each in rounds("reduce_scatter", "ring", ranks)
        for move in each
        if chunk in move.chunks
    ]
    return (*(move.source for move in moves), chunk)


def order_spread(partials: Sequence[Any]) -> Spread:
    """The Spread of the sum of ``partials``, arrays of one shape and type, over all orders.

    Every order is that of a chunk on some ring, and n! of them are tried. Raises ConfigError for
    more than 8.

    >>> one, tiny = np.float16([1.0]), np.float16([2.0**-11])
    >>> spread = order_spread([one, tiny, tiny])
    >>> spread.lowest.tolist(), spread.highest.tolist()
    ([1.0], [1.0009765625])
    """
    if not 1 <= len(partials) <= MOST:
        raise ConfigError(
            f"all orders of 1 to {MOST} partial sums are tried ({MOST}! are 40,320), got "
            f"{len(partials)}; take fewer replicas"
        )
    results = []
    for order in permutations(partials):
        total = order[0].copy()
        for partial in order[1:]:
            total += partial
        results.append(total)
    every = np.sort(np.stack(results), axis=0)
    distinct = 1 + (every[1:] != every[:-1]).sum(axis=0)
    return Spread(every[0], every[-1], distinct, len(results))
