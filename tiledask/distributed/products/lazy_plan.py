"""How a lazy product is cut into tasks: few large ones that fit, and move few bytes.

              y    [ | : | ]      blocks as they come; x and y need not be cut alike along k
                   [ | : | ]
    x  [__|__|__]  [ C | C ]      the task of a tile gets its rows of x and its columns of y,
       [__|__|__]  [ C | C ]      and adds x[:, k] @ y[k, :] in place, k ascending

There are about as many tiles as threads, each as large as memory allows. Where a tile's task would
not fit, k is cut into panels, too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product, takewhile
from itertools import count as counting
from math import ceil, prod
from typing import Any

from tiledask.errors import DoesNotFitError
from tiledask.plan.units import divisors, format_bytes
from tiledask.tile import workspace

__all__ = ["FAN_IN", "SLAB", "Edges", "LazyPlan", "Machine", "Side", "bands_of", "plan_product"]

SLAB = 512
"""Elements along k that are packed together where blocks are too small, or lie across element
boundaries, for BLAS to take them as they are."""
FAN_IN = 8
"""Partial products that one task adds up."""

# Orders of magnitude: only their ratios enter, when plans are compared.
_FLOPS = {2: 5e10, 4: 1.5e11, 8: 7e10}  # per second and thread, by the bytes of an element
_BANDWIDTH = 7e8  # bytes per second and worker: between workers, or from a disk
_COPY = 5e9  # bytes per second and thread
_UNEVEN = 0.25  # of a task that some worker does beyond its share, as tasks are placed one by one
_MISPLACED = 0.1  # of what tasks receive: so much of it does not lie where a plan expects it
_HOLDING = 1e-11  # seconds a byte: of plans that take equally long, the one that holds less
_LONG = 4  # times as many bytes on one side as on the other

Edges = tuple[int, ...]
"""0, ..., extent: where the parts of one dimension begin and end."""
Tiles = tuple[Edges, ...]
"""Edges of the tiles of C along each dimension: those that it has from x, then its columns."""


@dataclass(frozen=True)
class Machine:
    """What would run a graph now."""

    workers: int
    """Processes; blocks travel from one to another."""
    threads: int
    """Tasks that run at a time, on all workers together."""
    task_bytes: int
    """What one of these tasks may hold."""
    task_seconds: float
    """What a task costs besides its work."""
    most_bytes: int | None = None
    """What one of these tasks could hold before Dask steps in; None where nobody does."""


@dataclass(frozen=True)
class Side:
    """Where the blocks of x or of y begin and end: along what C has from it, then along k."""

    edges: tuple[Edges, ...]
    itemsize: int
    made: bool = False
    """Blocks are made within each task that uses them and dropped again; else it receives them."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(edges[-1] for edges in self.edges)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        return prod(map(_widest, self.edges)) * self.itemsize


@dataclass(frozen=True)
class LazyPlan:
    """How a product is cut into tasks, known before anything runs."""

    tiles: Tiles
    panels: Edges
    """Along k: a task for every tile and panel."""
    parallel: bool
    """True: the panels of a tile are multiplied apart and added up. False: each task goes on with
    a copy of what the one before it has."""
    peak: int
    """Bytes that a task holds at most, those that it receives included."""
    moved: int
    """Bytes between workers if blocks lie scattered, and of blocks made; an estimate."""
    seconds: float
    """An estimate from orders of magnitude, to compare plans."""

    @property
    def task_flops(self) -> int:
        """FLOP of the largest task."""
        return 2 * prod(map(_widest, (*self.tiles, self.panels)))


def plan_product(
    left: Side,
    right: Side,
    machine: Machine,
    limit: int,
    *,
    kernel: str = "blas",
    tile: Any = None,
) -> LazyPlan:
    """The Plan of least estimated time whose tasks hold at most ``limit`` bytes each.

    Raises DoesNotFitError if a block, or the smallest task that there is, holds more than that.

    >>> side = Side(((0, 500, 1000), (0, 1000)), itemsize=4)
    >>> plan_product(side, side, Machine(1, 4, 10**8, 1e-4), 10**8).tiles
    ((0, 500, 1000), (0, 500, 1000))
    """
    search = _Search(left, right, machine, kernel, tile)
    larger = ", or give memory_limit= a larger number"
    if machine.most_bytes is not None and limit >= machine.most_bytes:
        limit, larger = machine.most_bytes, ", or start workers of more memory"
    for name, side in (("x", left), ("y", right)):
        if side.largest > limit:
            raise DoesNotFitError(
                f"the largest block of {name} has {format_bytes(side.largest)}, a task may hold "
                f"{format_bytes(limit)}; rechunk {name} to smaller blocks (dask's automatic ones "
                f"have 128 MiB){larger}"
            )
    plans, least = [plan for plan in search.by_chunks() if plan.peak <= limit], 0
    for tiles in search.grids():
        if plans and _count(tiles) > 2 * machine.threads:
            break  # finer tiles only move more
        panels, least = search.panels(tiles, limit)
        if panels:
            plans.append(search.plan(tiles, panels, parallel=False))
    if not plans:
        raise DoesNotFitError(
            f"the smallest task of this product would hold {format_bytes(least)}, a task may hold "
            f"{format_bytes(limit)}; rechunk x and y to smaller blocks{larger}"
        )
    return min(plans, key=lambda plan: plan.seconds)


@dataclass(frozen=True)
class _Search:
    """Cuts to try, and what they cost."""

    left: Side
    right: Side
    machine: Machine
    kernel: str
    tile: Any

    def grids(self) -> Iterator[Tiles]:
        """1, 2, ... tiles, then 1, 2, 4, ... times the threads; the least bytes read first."""
        (*rows, _), (n, _), threads = self.left.shape, self.right.shape, self.machine.threads
        few = (count for count in (1, 2, 4, 8, 16) if count < threads)
        more = takewhile(lambda t: t < 4 * prod(rows) * n, (threads * 2**f for f in counting()))
        for count in chain(few, more):
            shapes = {(min(r, prod(rows)), min(count // r, n)) for r in divisors(count)}
            read = {(r, c): c * self.left.nbytes + r * self.right.nbytes for r, c in shapes}
            for r, c in sorted(shapes, key=lambda shape: (read[shape], shape))[:4]:
                yield (*_row_edges(self.left, r), _cut(self.right, 0, c))

    def panels(self, tiles: Tiles, limit: int) -> tuple[Edges | None, int]:
        """(as few panels for these tiles as fit, one after the other; the least that they hold).

        No panels if none fit. Where both sides are made, a task has few blocks of any k at a time.
        """
        k, near = self.left.shape[-1], sorted({*self.left.edges[-1], *self.right.edges[-1]})
        whole = self.peak(tiles, k, carried=False)
        if whole <= limit or (self.left.made and self.right.made):
            return ((0, k) if whole <= limit else None), whole
        least = self.peak(tiles, 1, carried=True)
        if least > limit:
            return None, least
        depths = range(1, k + 1)
        deepest = bisect_right(depths, limit, key=lambda k: self.peak(tiles, k, carried=True))
        parts = ceil(k / deepest)
        for more in range(3):  # panels that end where blocks do, if there need not be many more
            panels = _even(k, min(k, parts + more), near)
            if _widest(panels) <= deepest:
                return panels, least
        return _even(k, parts), least

    def by_chunks(self) -> Iterator[LazyPlan]:
        """Plans of which every task is cut as chunks are, for sides much longer than the other.

        The blocks of the long side stay where they are, and what is short travels: the other
        side, or with a long k the products that are added up.
        """
        left, right = self.left, self.right
        a, b, k, n = left.nbytes, right.nbytes, left.shape[-1], right.shape[0]
        c = prod(left.shape[:-1]) * n * left.itemsize
        longer = (left if a >= b else right).edges[-1]
        one_row = _row_edges(left, 1)
        for panels, rows, columns in product(
            {(0, k), _even(k, min(k, self.machine.threads), longer), longer},
            {one_row, left.edges[:-1] if a >= _LONG * b else one_row},
            {(0, n), right.edges[0] if b >= _LONG * a else (0, n)},
        ):
            tiles, count = (*rows, columns), len(panels) - 1
            if count == 1 or _LONG * count * c <= a + b:
                yield self.plan(tiles, panels, parallel=count > 1)

    def plan(self, tiles: Tiles, panels: Edges, parallel: bool) -> LazyPlan:
        """The plan of these cuts, with its bytes and its seconds."""
        machine, itemsize = self.machine, self.left.itemsize
        count, steps, k = _count(tiles), len(panels) - 1, _widest(panels)
        elements = prod(map(_widest, tiles))
        peak = self.peak(tiles, k, carried=steps > 1 and not parallel)
        if parallel:
            added = (min(FAN_IN, steps) + 1) * elements * _wide(itemsize) + elements * itemsize
            peak = max(peak, added)
        moved = self.moved(tiles, panels if parallel else (0, panels[-1]))
        received = (len(tiles[-1]) - 1) * self.left.nbytes + _count(tiles[:-1]) * self.right.nbytes
        received *= machine.workers > 1
        turns = count * (steps if parallel else 1) / machine.threads
        turns = max(ceil(turns), turns + _UNEVEN * (machine.workers > 1))
        depth = k if parallel else panels[-1]
        seconds = (
            turns * 2 * elements * depth / _FLOPS[itemsize]
            + (moved + _MISPLACED * received) / _BANDWIDTH / machine.workers
            + 2 * (steps - 1) * count * elements * _wide(itemsize) / _COPY / machine.threads
            + machine.task_seconds * count * steps
            + _HOLDING * peak * machine.threads
        )
        return LazyPlan(tiles, panels, parallel, peak, moved, seconds)

    def peak(self, tiles: Tiles, k: int, carried: bool) -> int:
        """Bytes that a task of ``k`` holds at most.

        What it receives, or makes, of x and y; C, twice if it goes on with what another has
        (``carried``), and once more where halves are rounded at the end; what is packed together
        of small blocks; and what the kernel takes.
        """
        itemsize, wide = self.left.itemsize, _wide(self.left.itemsize)
        m, n = prod(map(_widest, tiles[:-1])), _widest(tiles[-1])
        blocks, packed = 0, (m + n) * min(k, SLAB) * itemsize
        for side, cuts, extent in ((self.left, tiles[:-1], m), (self.right, tiles[-1:], n)):
            blocks += self._made(side, cuts) if side.made else extent * k * itemsize
        making = max((side.largest for side in (self.left, self.right) if side.made), default=0)
        c = m * n * (wide * (1 + carried) + (itemsize if wide > itemsize else 0))
        work = workspace(
            m, n, k, itemsize, self.kernel, self.tile, accumulate=True, out_itemsize=wide
        )
        return blocks + packed + making + c + work

    def _made(self, side: Side, cuts: tuple[Edges, ...]) -> int:
        """Bytes of the blocks that a task has made at one time: all that a band touches."""
        bands = bands_of(self.left.edges[-1], self.right.edges[-1])
        along = max(_covered(side.edges[-1], *band) for band in bands)
        across = prod(
            max(_covered(edges, *ends) for ends in pairwise(cut))
            for edges, cut in zip(side.edges[:-1], cuts, strict=True)
        )
        return across * along * side.itemsize

    def moved(self, tiles: Tiles, panels: Edges) -> int:
        """Bytes between workers as they may be expected, and of blocks that are made again.

        As if blocks lay scattered, and each worker ran as many tasks as the others, next to each
        other, of which it has a part of the larger side: all of it if that is one block.
        """
        left, right, workers = self.left, self.right, self.machine.workers
        r, c, s = _count(tiles[:-1]), len(tiles[-1]) - 1, len(panels) - 1
        again = c * _read(left, tiles[:-1]) if left.made else 0
        again += r * _read(right, tiles[-1:]) if right.made else 0
        each = ceil(r * c * s / workers)
        a, b = left.nbytes / (r * s) * (not left.made), right.nbytes / (c * s) * (not right.made)
        larger, parts = (left, r * s) if a >= b else (right, c * s)
        blocks = _count(larger.edges)
        lacking = 1 - max(1 / workers, min(1, parts / blocks) * min(1, blocks / workers))
        of_a, of_b = (lacking, 1 - 1 / workers)[:: 1 if a >= b else -1]
        rows, columns = (each, each) if s > 1 else (ceil(each / c), min(each, c))
        fetched = min(workers, r * c * s) * (rows * a * of_a + columns * b * of_b)
        tile = prod(edges[-1] for edges in tiles) * _wide(left.itemsize)
        return again + int(fetched + (s - 1) * tile * (1 - 1 / workers))


def _read(side: Side, cuts: tuple[Edges, ...]) -> int:
    """Bytes of the blocks that tiles touch, counted for each of them."""
    across = (
        sum(_covered(edges, *ends) for ends in pairwise(cut))
        for edges, cut in zip(side.edges[:-1], cuts, strict=True)
    )
    return prod(across) * side.shape[-1] * side.itemsize


def bands_of(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """The intervals of k that are multiplied at once: between boundaries of either side, thin
    ones together up to SLAB.

    >>> bands_of((0, 1000, 2000), (0, 900, 1000, 1100, 2000))
    [(0, 900), (900, 1100), (1100, 2000)]
    """
    bands: list[tuple[int, int]] = []
    for start, stop in pairwise(sorted({*left, *right})):
        if bands and stop - bands[-1][0] <= SLAB:
            start, _ = bands.pop()
        bands.append((start, stop))
    return bands


def _even(extent: int, parts: int, near: Sequence[int] = (), close: float = 0.125) -> Edges:
    """0, ..., extent in ``parts`` even parts, edges moved to those in ``near`` if they are close.

    Close means by this fraction of a part.

    >>> _even(10, 3), _even(10, 3, (0, 4, 8, 10)), _even(100, 2, (0, 49, 100))
    ((0, 3, 6, 10), (0, 3, 6, 10), (0, 49, 100))
    """
    even = [i * extent // parts for i in range(parts + 1)]
    for i, edge in enumerate(even if len(near) else ()):
        at = bisect_left(near, edge)
        nearest = min(near[max(0, at - 1) : at + 1], key=lambda n: abs(n - edge))
        even[i] = nearest if abs(nearest - edge) <= close * extent / parts else edge
    return tuple(sorted({0, extent, *even}))


def _cut(side: Side, dimension: int, parts: int) -> Edges:
    """About ``parts`` even parts of a dimension; of blocks that are made, whole ones or fractions.

    >>> _cut(Side(((0, 40, 80, 100), (0, 1)), 4, made=True), 0, 2)
    (0, 40, 100)
    """
    edges = side.edges[dimension]
    if not side.made:
        return _even(edges[-1], parts, edges)
    if parts < len(edges):
        return _even(edges[-1], parts, edges, close=1.0)
    each = ceil(parts / (len(edges) - 1))
    return tuple(sorted({a + e for a, b in pairwise(edges) for e in _even(b - a, each)}))


def _row_edges(left: Side, parts: int) -> tuple[Edges, ...]:
    """About ``parts`` tiles along the dimensions that C has from x, the first ones cut first."""
    found = []
    for dimension, extent in enumerate(left.shape[:-1]):
        here = min(extent, parts)
        found.append(_cut(left, dimension, here))
        parts = ceil(parts / here)
    return tuple(found)


def _covered(edges: Edges, start: int, stop: int) -> int:
    """Elements of the blocks that start..stop touches."""
    return edges[bisect_left(edges, stop)] - edges[bisect_right(edges, start) - 1]


def _count(tiles: Sequence[Edges]) -> int:
    return prod(len(edges) - 1 for edges in tiles)


def _widest(edges: Edges) -> int:
    return max(b - a for a, b in pairwise(edges))


def _wide(itemsize: int) -> int:
    """Bytes of an element of C while it is summed: float32 for halves."""
    return max(4, itemsize)
