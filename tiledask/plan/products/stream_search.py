"""The fastest way to stream a product through the memory that is allowed: a search over its cuts.

Larger tiles read less, wider panels read longer runs, and both must fit; and the tiles must be
divided evenly. Few numbers of tiles are worth a look, so that all of them are looked at.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from math import gcd, lcm

from tiledask.errors import DoesNotFitError
from tiledask.plan.intervals import ends_of, even
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.streaming import (
    BANDWIDTH,
    Cuts,
    Problem,
    StreamPlan,
    covered,
    flops,
    plan_cuts,
)
from tiledask.plan.units import format_bytes, format_up

__all__ = ["least_memory", "plan_stream"]

CALL = 5e-6
"""Seconds for a read that is not contiguous with the last."""
CHUNK_CALL = 5e-4
"""Seconds for a chunk."""
PANEL_SETUP = 8
"""What a panel costs BLAS beside its multiplications, in columns of A."""
_MORE = 8  # numbers of columns of tiles that are tried beyond the fewest that fit


def plan_stream(problem: Problem, slots: int, memory_limit: int) -> StreamPlan:
    """The plan that takes the least time, with at most ``memory_limit`` bytes a slot.

    Tiles of a chunked C are whole chunks. Raises DoesNotFitError if not even the smallest fit.

    >>> from tiledask.plan.products.streaming import StorageLayout
    >>> f = StorageLayout((22528, 22528), 4)
    >>> plan_stream(Problem(f, f, f, accumulator=4), slots=2, memory_limit=1_000_000_000)
    StreamPlan(22528x22528 @ 22528x22528 in 2 x 2 tiles of up to 11264x11264, panels of 2048: \
reads 8.12 GB, writes 2.03 GB, peak 902.5 MB a slot)
    """
    candidates = _units(problem)
    found = [best for units in candidates if (best := _best(problem, units, slots, memory_limit))]
    if not found:
        least = least_memory(problem)
        smaller = ", or store the matrices in smaller chunks" if problem.chunked else ""
        raise DoesNotFitError(
            f"a tile of C and {AHEAD} pairs of panels take at least {format_up(least)} a slot, "
            f"allowed are {format_bytes(memory_limit)}; raise memory_limit{smaller}"
        )
    return plan_cuts(problem, min(found, key=lambda best: best[0])[1], slots, memory_limit)


def least_memory(problem: Problem, extent: int = 1) -> int:
    """The least ``memory_limit`` with which `plan_stream` finds a plan, in bytes.

    ``extent``: of tiles and panels that have at least so many rows and columns, if there are.
    """
    return min(
        problem.memory(
            *(min(-(-extent // u) * u, x) for u, x in zip(units, problem.extents, strict=True))
        )
        for units in _units(problem)
    )


def _units(problem: Problem) -> list[tuple[int, int, int]]:
    """What tiles and panels may be multiples of, along m, n and k: of chunks read or written."""
    (m, n, k), (cm, cn) = problem.extents, problem.c.grid
    (am, ak), (bk, bn) = problem.a.grid, problem.b.grid

    def smaller(unit: int, extent: int, otherwise: int) -> int:
        return unit if unit <= extent else otherwise

    along_m = {cm, smaller(lcm(cm, am), m, cm)}
    along_n = {cn, smaller(lcm(cn, bn), n, cn)}
    along_k = {1, *(smaller(unit, k, 1) for unit in (ak, bk, lcm(ak, bk)))}
    return list(product(sorted(along_m), sorted(along_n), sorted(along_k)))


def _best(
    problem: Problem, units: tuple[int, int, int], slots: int, limit: int
) -> tuple[float, Cuts] | None:
    """(seconds, cuts) of the fastest cuts in multiples of ``units`` that fit; None if none do."""
    (m, n, k), (along_m, along_n, along_k) = problem.extents, units
    most_p, most_q = -(-m // along_m), -(-n // along_n)
    best: tuple[float, int, int, int] | None = None
    for w in _widths(k, along_k):
        for p in _counts(most_p):
            tm = _largest(m, along_m, p)

            def fits(q: int, tm: int = tm, w: int = w) -> bool:
                return problem.memory(tm, _largest(n, along_n, q), w) <= limit

            fewest = _fewest(most_q, fits)
            if not fewest:
                continue
            # those, a few more, and the number that gives every slot equally many tiles
            step = slots // gcd(p, slots)
            even = min(most_q, -(-fewest // step) * step)
            for q in (*range(fewest, min(even, fewest + _MORE)), max(fewest, even)):
                seconds = _seconds(problem, units, p, q, w, slots)
                if best is None or seconds < best[0]:
                    best = seconds, p, q, w
    if best is None:
        return None
    seconds, p, q, w = best
    return seconds, Cuts(_edges(m, along_m, p), _edges(n, along_n, q), w)


def _seconds(
    problem: Problem, units: tuple[int, int, int], p: int, q: int, w: int, slots: int
) -> float:
    """Seconds of the busiest slot, if all tiles were as large as the largest."""
    (m, n, k), a, b = problem.extents, problem.a, problem.b
    tm, tn = _largest(m, units[0], p), _largest(n, units[1], q)
    turns, panels = -(-p * q // slots), -(-k // w)
    multiply = 2 * tm * tn * k * (1 + PANEL_SETUP / w) / flops(a.itemsize)
    read_a = q * _cover(m, units[0], p, a.grid[0]) * _cover(k, w, panels, a.grid[1])
    read_b = p * _cover(k, w, panels, b.grid[0]) * _cover(n, units[1], q, b.grid[1])
    first = ((0, tm), (0, w)), ((0, w), (0, tn))
    calls = sum(
        form.calls(region) * (CHUNK_CALL if form.chunks else CALL)
        for form, region in zip((a, b), first, strict=True)
    )
    reading = (read_a + read_b) * a.itemsize / (p * q) / BANDWIDTH + calls * panels
    unhidden = (tm + tn) * w * a.itemsize / BANDWIDTH  # nothing is multiplied during the first read
    return turns * (multiply + reading) + unhidden


def _widths(k: int, unit: int) -> list[int]:
    """Extents of panels to try: multiples of ``unit`` by 1, 2, 3, 4, 6, 8, 12, ... and all of k."""
    widths, factor = {min(unit, k)}, 1
    while factor * unit < k:
        widths |= {factor * unit, min(k, factor * 3 * unit)}
        factor *= 2
    return sorted(widths | {k})


def _counts(most: int) -> Iterator[int]:
    """Numbers of tiles to try along one dimension: all the small ones, then 8 % apart."""
    count = 1
    while count < most:
        yield count
        count = max(count + 1, count * 27 // 25)
    yield most


def _fewest(most: int, fits: Callable[[int], bool]) -> int:
    """The smallest number of tiles up to ``most`` for which ``fits``; 0 if none does."""
    if not fits(most):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _edges(extent: int, unit: int, parts: int) -> tuple[int, ...]:
    """0, ..., extent in ``parts`` parts of whole units, as even as can be; the last may be cut."""
    edges = ends_of(even(-(-extent // unit), parts))
    return tuple(min(extent, edge * unit) for edge in edges)


def _largest(extent: int, unit: int, parts: int) -> int:
    """The longest part of `_edges`."""
    whole = -(-extent // unit)
    return min(extent, -(-whole // parts) * unit)


@cache
def _cover(extent: int, unit: int, parts: int, chunk: int) -> int:
    """Elements along one dimension that reads of all parts fetch, in whole chunks."""
    if unit % chunk == 0:
        return -(-extent // chunk) * chunk
    return sum(covered(*span, chunk) for span in pairwise(_edges(extent, unit, parts)))
