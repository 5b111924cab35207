"""What a planned product costs: its time from measured rates.

a rank's time  =  multiply + read (or the larger of the two, where reading takes no core)
                  + sum of the partial sums
the product's  =  the slowest rank's + tasks
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import extents_of
from tiledask.plan.products.traffic import Piece

__all__ = ["MachineRates", "product_seconds"]


@dataclass(frozen=True)
class MachineRates:
    """What one machine does, measured while all ranks do it at once."""

    flops: float
    """FLOP/s of one rank in a large local product."""
    touch: float
    """Bytes/s at which a local product passes over its operands and result."""
    call: float
    """Seconds that any local product takes, however small."""
    read: float
    """Bytes/s that one rank reads from another."""
    message: float
    """Seconds that any piece takes, however small."""
    run: float
    """Seconds for each stretch of memory that a piece is made of."""
    task: float
    """Seconds of Dask for one task, submitting and waiting included."""
    overlapped: bool
    """Whether reading goes on beside multiplying: False if every core multiplies already."""


def product_seconds(
    plan: ProductPlan, itemsize: int, sum_itemsize: int, rates: MachineRates
) -> tuple[float, tuple[float, ...]]:
    """(the predicted seconds of ``plan``, those of each rank multiplying and summing).
    ``sum_itemsize``: bytes of C's elements in sums."""
    slowest, busy = 0.0, list[float]()
    for rank in range(plan.ranks):
        (m, n, _), multiply, read = plan.extents(rank), 0.0, 0.0
        for panel in plan.panels[rank]:
            k = panel.size
            touched = (m * k + k * n) * itemsize + 2 * m * n * sum_itemsize
            pairs = len(panel.a) * len(panel.b)
            multiply += 2 * m * n * k / rates.flops + touched / rates.touch + pairs * rates.call
            read += _reading(panel.a, plan.a, rank, itemsize, rates)
            read += _reading(panel.b, plan.b, rank, itemsize, rates)
        added = sum(p.size for p in plan.partials[rank]) * sum_itemsize
        add = _reading(plan.partials[rank], plan.work, rank, sum_itemsize, rates)
        add += 2 * added / rates.touch
        together = max(multiply, read) if rates.overlapped else multiply + read
        slowest = max(slowest, together + add)
        busy.append(multiply + add)
    tasks = plan.ranks * (2 if plan.sums else 1)  # partial sums are added up by tasks too
    return slowest + tasks * rates.task, tuple(busy)


def _reading(
    pieces: Iterable[Piece], tiling: Tiling, rank: int, itemsize: int, rates: MachineRates
) -> float:
    """Seconds in which ``rank`` reads what others have of these, from row-major blocks."""
    seconds = 0.0
    for piece in pieces:
        if piece.source != rank:
            shape, block = extents_of(piece.region), extents_of(tiling.regions[piece.source])
            d = len(shape) - 1
            while d > 0 and shape[d] == block[d]:
                d -= 1
            runs = prod(shape[:d])
            seconds += rates.message + runs * rates.run + prod(shape) * itemsize / rates.read
    return seconds
