"""A product of matrices in files: which tiles of C, by whom, through how much memory.

          B  [:, J]
          w  +-----+        a slot keeps one tile C[I, J] and adds to it, panel by panel,
          w  +-----+        A[I, w] @ B[w, J]; the next two panels are read from the files
          w  +-----+        while these two are multiplied, and nothing moves between slots
A [I, :]     +-----+
w | w | w    |C[I,J]|       p x q tiles read  s k (q m + p n)  bytes: the larger the fewer
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from math import lcm, prod

from tiledask.errors import ConfigError, DoesNotFitError
from tiledask.plan.intervals import Interval, ends_of, even
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.product_plan import AHEAD, PANEL, RUNTIME
from tiledask.plan.products.regions import Region, region_size
from tiledask.plan.units import format_bytes, format_up
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Cuts", "Problem", "StreamPlan", "plan_cuts", "plan_stream", "read_bytes"]

CHUNK_COPIES = 3
"""Of a chunk that is read or written: as stored, decoded, on its way."""
Sides = tuple[int, int]
"""Extents of a tile, or of a chunk: the smallest region that is read and written on its own."""


def read_bytes(region: Region, chunks: Sides, itemsize: int) -> int:
    """Bytes of the elements that a read of ``region`` fetches, before any compression."""
    for (start, stop), chunk in zip(region, chunks, strict=True):
        itemsize *= (-(-stop // chunk) - start // chunk) * chunk if stop > start else 0
    return itemsize


@dataclass(frozen=True)
class Cuts:
    """Where C and the summed dimension are cut. These alone decide the bits of the result."""

    rows: tuple[int, ...]
    """Edges of the tiles along m: 0, ..., m; so for the columns."""
    columns: tuple[int, ...]
    panel: int
    """Extent of a panel along k."""

    def __post_init__(self) -> None:
        for edges in (self.rows, self.columns):
            rising = all(is_whole(edge, 0) for edge in edges) and [*edges] == sorted({0, *edges})
            if not rising or len(edges) < 2:
                raise ConfigError(f"cuts are whole numbers that rise from 0, got {edges}")
        whole_number("panel", self.panel, 1)

    @property
    def tile(self) -> Sides:
        rows, columns = (max(b - a for a, b in pairwise(e)) for e in (self.rows, self.columns))
        return rows, columns

    @property
    def regions(self) -> Iterator[Region]:
        """The tiles of C, row by row."""
        return product(pairwise(self.rows), pairwise(self.columns))

    def panels(self, k: int) -> list[Interval]:
        return [(start, min(start + self.panel, k)) for start in range(0, k, self.panel)]


@dataclass(frozen=True)
class Problem:
    """C = A @ B in files, and what it takes a slot to hold a part of it."""

    extents: tuple[int, int, int]
    """m, n and k."""
    itemsize: int
    chunks: tuple[Sides, Sides, Sides]
    """Of A, B and C; (1, 1): it has none."""
    accumulator: int
    """Bytes per element of a tile in memory: C's, but 4 for halves, which are summed in float32."""
    workspace: Callable[[int, int, int], int] = lambda m, n, k: 0
    """(m, n, k) -> bytes that the kernel takes besides its operands."""

    def classes(self, m: int, n: int, w: int) -> dict[str, int]:
        """Bytes of a slot by tensor class, for tiles of m x n and panels of w."""
        of_a, of_b, of_c = (n * (n > 1) for n in map(prod, self.chunks))
        found = {
            "accumulator": m * n * self.accumulator,
            "panels": AHEAD * (m + n) * w * self.itemsize,
            "tile workspace": self.workspace(m, n, w),
            "chunk buffers": CHUNK_COPIES * (max(of_a, of_b) + of_c) * self.itemsize,
        }
        return found | {"runtime": RUNTIME + sum(found.values()) // 50}


@dataclass(frozen=True, repr=False)
class StreamPlan:
    """What every slot reads, holds and writes, known before anything runs."""

    problem: Problem
    cuts: Cuts
    tiles: tuple[tuple[Region, ...], ...]
    """By slot, the tiles of C that are left to it, in this order."""
    ledger: Ledger

    @property
    def bytes_read(self) -> int:
        """Bytes that all slots read: of chunked files whole chunks, before compression."""
        itemsize, (of_a, of_b, _) = self.problem.itemsize, self.problem.chunks
        return sum(
            read_bytes((rows, depth), of_a, itemsize) + read_bytes((depth, columns), of_b, itemsize)
            for rows, columns in chain.from_iterable(self.tiles)
            for depth in self.cuts.panels(self.problem.extents[2])
        )

    def remaining(self, finished: Collection[Region]) -> "StreamPlan":
        left = (region for region in self.cuts.regions if region not in finished)
        return replace(self, tiles=_dealt(left, len(self.tiles)))

    def __repr__(self) -> str:
        tiles, (rows, columns) = sum(map(len, self.tiles)), self.cuts.tile
        return (
            f"StreamPlan({tiles} tiles of up to {rows}x{columns}, panels of {self.cuts.panel}: "
            f"reads {format_bytes(self.bytes_read)}, peak {format_bytes(self.ledger.peak)} a slot)"
        )


def plan_stream(problem: Problem, slots: int, memory_limit: int) -> StreamPlan:
    """The plan with the largest square tiles, of whole chunks of C, that ``memory_limit`` bytes a
    slot allow; panels take the rest. Raises DoesNotFitError if not even the smallest tiles fit.

    >>> problem = Problem((22528, 22528, 22528), 4, ((1, 1), (1, 1), (1, 1)), accumulator=4)
    >>> plan_stream(problem, slots=2, memory_limit=1_000_000_000)
    StreamPlan(4 tiles of up to 11264x11264, panels of 2048: reads 8.12 GB, peak 902.5 MB a slot)
    """
    (m, n, k), (of_a, of_b, of_c) = problem.extents, problem.chunks
    chunk = lcm(of_a[1], of_b[0])
    for along_k, widest in product((chunk if chunk <= k else 1, 1), (PANEL, 1)):
        if cuts := _largest_tiles(problem, along_k, widest, slots, memory_limit):
            return plan_cuts(problem, cuts, slots, memory_limit)
    smallest = sum(problem.classes(min(of_c[0], m), min(of_c[1], n), 1).values())
    raise DoesNotFitError(
        f"a tile of C and {AHEAD} pairs of panels take at least {format_up(smallest)} a slot, "
        f"allowed are {format_bytes(memory_limit)}; raise memory_limit, or store chunked matrices "
        f"in smaller chunks"
    )


def _largest_tiles(
    problem: Problem, along_k: int, widest: int, slots: int, limit: int
) -> Cuts | None:
    """Cuts that fit, if any: the longer side of a tile is cut until it fits and every slot has one;
    then columns, up to twice as many, until slots have equally many; then panels are widened."""
    (m, n, k), (*_, (along_m, along_n)) = problem.extents, problem.chunks
    most_p, most_q = -(-m // along_m), -(-n // along_n)

    def tried(p: int, q: int, wide: int = 0) -> tuple[Sides, int, bool]:
        """Of p x q parts a tile, the panel (``wide`` if it is given), and whether they fit."""
        rows, columns = min(m, -(-most_p // p) * along_m), min(n, -(-most_q // q) * along_n)
        narrow = min(widest, max(rows, columns) // 4)
        width = wide or min(k, max(1, -(-narrow // along_k)) * along_k)
        return (rows, columns), width, sum(problem.classes(rows, columns, width).values()) <= limit

    if not tried(most_p, most_q)[-1]:
        return None
    p = q = 1
    (rows, columns), width, fits = tried(p, q)
    while not fits or p * q < min(slots, most_p * most_q):
        if p < most_p and (rows >= columns or q == most_q):
            p += 1
        else:
            q += 1
        (rows, columns), width, fits = tried(p, q)
    q = next((more for more in range(q, min(most_q, 2 * q) + 1) if p * more % slots == 0), q)
    _, width, _ = tried(p, q)
    while width < k and tried(p, q, min(2 * width, k))[-1]:
        width = min(2 * width, k)
    rows_of, columns_of = ends_of(even(most_p, p)), ends_of(even(most_q, q))
    edges = tuple(min(m, edge * along_m) for edge in rows_of)
    return Cuts(edges, tuple(min(n, edge * along_n) for edge in columns_of), width)


def plan_cuts(problem: Problem, cuts: Cuts, slots: int, memory_limit: int) -> StreamPlan:
    """The plan with these ``cuts``. DoesNotFitError if it needs more than ``memory_limit``."""
    (tm, tn), tiles = cuts.tile, _dealt(cuts.regions, slots)
    classes = problem.classes(tm, tn, min(cuts.panel, problem.extents[2]))
    ledger = Ledger.of(
        Row(slot, name, ALWAYS if name in ("accumulator", "panels") else "product", size)
        for slot, mine in enumerate(tiles)
        for name, size in classes.items()
        if mine and size
    )
    if ledger.peak > memory_limit:
        raise DoesNotFitError(
            f"tiles of {tm}x{tn} with panels of {cuts.panel} take {format_bytes(ledger.peak)} a "
            f"slot, allowed are {format_bytes(memory_limit)}; raise memory_limit, or cut smaller "
            f"tiles, of a file with overwrite=True"
        )
    return StreamPlan(problem, cuts, tiles, ledger)


def _dealt(regions: Iterable[Region], slots: int) -> tuple[tuple[Region, ...], ...]:
    """The tiles of each slot: the largest first, to the idlest."""
    load, tiles = [0] * slots, [list[Region]() for _ in range(slots)]
    for region in sorted(regions, key=lambda region: -region_size(region)):
        slot = load.index(min(load))
        load[slot] += region_size(region)
        tiles[slot].append(region)
    return tuple(map(tuple, tiles))
