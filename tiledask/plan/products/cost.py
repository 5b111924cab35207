"""What a planned product costs: its time from measured rates, and the least that any must move.

a rank's time  =  multiply + read (or the larger of the two, where reading takes no core)
                  + sum of the partial sums
the product's  =  the slowest rank's + tasks and requests
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod, sqrt

from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import extents_of
from tiledask.plan.products.traffic import Piece

__all__ = ["MachineRates", "ProductCost", "break_even", "cost", "least_moved"]


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
    request: float
    """Seconds for one question to all workers."""
    overlapped: bool
    """Whether reading goes on beside multiplying: False if every core multiplies already."""
    requests: int = 2
    """Questions to all workers that any product asks: what they hold and lend, and what they have
    counted; between GPUs, before that, whether all have closed what they read."""


@dataclass(frozen=True)
class ProductCost:
    """Predicted seconds of a product."""

    multiply: float
    """Of the slowest rank, as are the next two."""
    read: float
    sum: float
    overhead: float
    """Tasks and requests."""
    total: float
    busy: tuple[float, ...]
    """Of each rank, multiplying and summing."""


def cost(plan: ProductPlan, itemsize: int, sum_itemsize: int, rates: MachineRates) -> ProductCost:
    """The predicted seconds of ``plan``, for the slowest of its ranks.

    ``itemsize``: bytes of an element of A and B; ``sum_itemsize``: of C while it is summed.
    """
    ranks = list[tuple[float, float, float]]()
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
        ranks.append((multiply, read, add + 2 * added / rates.touch))
    multiply, read, add = max(ranks, key=lambda parts: _together(parts, rates))
    # where partial sums are added up they are lent too, and each has an anchor (a task) and a sum
    tasks, requests = (3, rates.requests + 1) if plan.sums else (1, rates.requests)
    overhead = tasks * plan.ranks * rates.task + requests * rates.request
    busy = tuple(multiplying + adding for multiplying, _, adding in ranks)
    total = _together((multiply, read, add), rates) + overhead
    return ProductCost(multiply, read, add, overhead, total, busy)


def _together(parts: tuple[float, float, float], rates: MachineRates) -> float:
    multiply, read, add = parts
    return (max(multiply, read) if rates.overlapped else multiply + read) + add


def _reading(
    pieces: Iterable[Piece], tiling: Tiling, rank: int, itemsize: int, rates: MachineRates
) -> float:
    """Seconds in which ``rank`` reads what others have of these, from row-major blocks: by bytes,
    and by stretches of memory."""
    seconds = 0.0
    for piece in pieces:
        if piece.source != rank:
            shape, block = extents_of(piece.region), extents_of(tiling.regions[piece.source])
            d = len(shape) - 1
            while d > 0 and shape[d] == block[d]:
                d -= 1
            runs = prod(shape[:d]) if d > 0 else 1
            seconds += rates.message + runs * rates.run + prod(shape) * itemsize / rates.read
    return seconds


def least_moved(
    m: int, n: int, k: int, ranks: int, memory: float, held: float, work: float | None = None
) -> float:
    """Elements that some rank must receive, whatever the algorithm; 0 or more.

    ``memory``: elements that a rank holds at a time, at most. ``held``: those of A and B that it
    has before and of C that it keeps, on average over ranks. ``work``: multiplications of the
    rank that does most; an even share, m n k / P, if None.

    A rank receives what it touches of A and B and does not have, and sends on what it touches of
    C and does not keep. What one sends another receives: on average, and so on some rank, at
    least (touched - held) is received. The larger of two bounds on what is touched:

    - with any memory, by an even share: Al Daas, Ballard, Grigori, Kumar and Rouse, "Tight
      memory-independent parallel matrix multiplication communication lower bounds", 2022,
      theorem 3. It grows more slowly than the share, so where some ranks do more (m, n or k
      that ranks do not divide) the average is at least the busiest one's in proportion;
    - with memory S: while 2 S elements come, or begin as zeros of C, no more than 3 S are at
      hand, enough for S^(3/2) multiplications, and after the last of them for (S / 3)^(3/2):
      2 m n k / (P sqrt(S)) less 2 S / sqrt(27). The argument of Smith, Lowery, Langou and van
      de Geijn, "A tight I/O lower bound for matrix multiplication", 2019.

    >>> n, p = 1200, 64
    >>> least = least_moved(n, n, n, p, memory=float("inf"), held=3 * n * n / p)
    >>> round(least) == round(3 * n * n / p ** (2 / 3) - 3 * n * n / p)
    True
    """
    memory = max(memory, 3)  # one element of A, B and C: with fewer nothing is multiplied
    share = m * n * k / ranks
    most = share if work is None else max(work, share)
    # so many multiplications touch fewest elements as a cube; if the smallest extent is too small
    # for one, as a square of full depth; if the middle one is, too, as a slice
    small, middle, _ = sorted((m, n, k))
    if most <= small**3:
        touched = float(3 * most ** (2 / 3))
    elif most <= small * middle**2:
        touched = 2 * sqrt(small * most) + most / small
    else:
        touched = most / small + most / middle + small * middle
    anyhow = share / most * touched
    streamed = 2 * share / sqrt(memory) - 2 * memory / sqrt(27)
    return max(0.0, max(anyhow, streamed) - held)


def break_even(ranks: int, itemsize: int, rates: MachineRates) -> int:
    """The n from which an n x n x n product over ``ranks`` beats one rank alone, operands in place.

    Each rank of a p x 1 grid reads what it lacks of B. 2**20 if none does below that. The time of
    a call is the same on one rank and on many and left out.
    """
    overhead = ranks * rates.task + rates.requests * rates.request
    low, high = 1, 2**20
    while low < high:
        n = (low + high) // 2
        flops, block = 2 * n**3 / rates.flops, n * n * itemsize
        alone = flops + 4 * block / rates.touch
        multiply = flops / ranks + (3 / ranks + 1) * block / rates.touch
        read = (1 - 1 / ranks) * block / rates.read
        pays = _together((multiply, read, 0.0), rates) + overhead < alone
        low, high = (low, n) if pays else (n + 1, high)
    return low
