"""A product of matrices in files: which tiles of C, by whom, through how much memory.

          B  [:, J]
          w  +-----+        a slot keeps one tile C[I, J] and adds to it, panel by panel,
          w  +-----+        A[I, w] @ B[w, J]; the next two panels are read from the files
          w  +-----+        while these two are multiplied, and nothing moves between slots
A [I, :]     +-----+
w | w | w    |C[I,J]|       p x q tiles read  s k (q m + p n)  bytes: the larger the fewer
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import pairwise, product
from typing import NamedTuple

from tiledask.errors import ConfigError, DoesNotFitError
from tiledask.plan import html
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.product_plan import AHEAD, RUNTIME
from tiledask.plan.products.regions import Region
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Cuts", "Problem", "StorageLayout", "StreamPlan", "Tile", "covered", "plan_cuts"]

CHUNK_COPIES = 3
"""Times a chunk is in memory while it is read or written: as stored, decoded, on its way."""

# What plans take a slot to do. Constants and not measurements: the same product is then cut alike
# on every machine, and gives the same bits.
BANDWIDTH = 1e9
"""Bytes per second from a file."""


def flops(itemsize: int) -> float:
    """FLOP per second of a slot."""
    return 5e10 if itemsize == 8 else 1e11


Interval = tuple[int, int]


@dataclass(frozen=True)
class StorageLayout:
    """How a matrix lies in its file: what a read of some region costs.

    >>> StorageLayout((100, 100), 4).read_bytes(((0, 10), (0, 10)))
    400
    >>> StorageLayout((100, 100), 4, chunks=(64, 64)).read_bytes(((0, 10), (60, 70)))  # two chunks
    32768
    """

    shape: tuple[int, int]
    itemsize: int
    order: str = "C"
    """"C": rows are contiguous. "F": columns are."""
    chunks: tuple[int, int] | None = None
    """Extents of what is read and written as a whole; None where any run of elements can be."""

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.itemsize

    @property
    def grid(self) -> tuple[int, int]:
        """Extents of the smallest region that is read on its own."""
        return self.chunks or (1, 1)

    @property
    def buffer(self) -> int:
        """Bytes that reading or writing takes beside the array it goes to."""
        return CHUNK_COPIES * self.grid[0] * self.grid[1] * self.itemsize if self.chunks else 0

    def read_bytes(self, region: Region) -> int:
        """Bytes of the elements that a read of ``region`` fetches, before any compression."""
        rows, columns = (covered(*span, c) for span, c in zip(region, self.grid, strict=True))
        return rows * columns * self.itemsize

    def calls(self, region: Region) -> int:
        """Separate reads (of chunks, or of contiguous runs) that ``region`` takes."""
        if self.chunks:
            return self.read_bytes(region) // (self.grid[0] * self.grid[1] * self.itemsize)
        slow, fast = (0, 1) if self.order == "C" else (1, 0)
        whole = region[fast] == (0, self.shape[fast])
        return 1 if whole else region[slow][1] - region[slow][0]


@dataclass(frozen=True)
class Cuts:
    """Where C and the summed dimension are cut. These alone decide the bits of the result."""

    rows: tuple[int, ...]
    """Edges of the tiles along m: 0, ..., m."""
    columns: tuple[int, ...]
    """Edges of the tiles along n."""
    panel: int
    """Extent of a panel along k."""

    def __post_init__(self) -> None:
        for edges in (self.rows, self.columns):
            whole = all(map(is_whole, edges))
            if not whole or edges[:1] != (0,) or [*edges] != sorted({*edges}) or len(edges) < 2:
                raise ConfigError(f"cuts are whole numbers that rise from 0, got {edges}")
        whole_number("panel", self.panel, 1)

    @property
    def tile(self) -> tuple[int, int]:
        """Extents of the largest tile."""
        rows, columns = (max(b - a for a, b in pairwise(e)) for e in (self.rows, self.columns))
        return rows, columns

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along m and along n."""
        return len(self.rows) - 1, len(self.columns) - 1

    @property
    def regions(self) -> Iterator[Region]:
        """The tiles of C, row by row."""
        return product(pairwise(self.rows), pairwise(self.columns))

    def panels(self, k: int, begin: int = 0) -> list[Interval]:
        """The panels of a sum over ``begin``..``k``.

        >>> Cuts((0, 1), (0, 1), 4).panels(10)
        [(0, 4), (4, 8), (8, 10)]
        """
        return [(start, min(start + self.panel, k)) for start in range(begin, k, self.panel)]


class Tile(NamedTuple):
    """One tile of C and who computes it."""

    slot: int
    region: Region
    """Rows and columns of C."""
    begin: int = 0
    """Up to which k it is summed already, from an earlier run."""


@dataclass(frozen=True, repr=False)
class StreamPlan:
    """What every slot reads, holds and writes, known before anything runs."""

    a: StorageLayout
    b: StorageLayout
    c: StorageLayout
    cuts: Cuts
    slots: int
    tiles: tuple[Tile, ...]
    """The tiles that are left to compute; each slot takes its own in this order."""
    ledger: Ledger
    """Bytes per slot and tensor class."""

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @property
    def panel(self) -> int:
        """Extent of a panel along k."""
        return self.cuts.panel

    @property
    def bytes_read(self) -> int:
        """Bytes that all slots read: panels, and tiles that an earlier run had begun.

        Of chunked files whole chunks are counted, as they are before compression.
        """
        total = 0
        for tile in self.tiles:
            rows, columns = tile.region
            for depth in self.cuts.panels(self.extents[2], tile.begin):
                total += self.a.read_bytes((rows, depth)) + self.b.read_bytes((depth, columns))
            if tile.begin:
                total += self.c.read_bytes(tile.region)
        return total

    @property
    def bytes_written(self) -> int:
        """Bytes of the tiles that are written; partial sums kept on the way come on top."""
        return sum(_area(tile.region) * self.c.itemsize for tile in self.tiles)

    @property
    def panels(self) -> int:
        """Pairs of panels that all slots multiply."""
        k = self.extents[2]
        return sum(-(-(k - tile.begin) // self.panel) for tile in self.tiles)

    @property
    def seconds(self) -> float:
        """Seconds at the rates that this module takes for granted; only for comparisons."""
        (tm, tn), k = self.cuts.tile, self.extents[2]
        per_slot = [0] * self.slots
        for tile in self.tiles:
            per_slot[tile.slot] += k - tile.begin
        flop = 2 * tm * tn * max(per_slot)
        return flop / flops(self.a.itemsize) + self.bytes_read / self.slots / BANDWIDTH

    def remaining(self, summed: Mapping[Region, int]) -> "StreamPlan":
        """The plan of what is left, where tile ``region`` is summed up to ``summed[region]``."""
        k = self.extents[2]
        left = [(region, summed.get(region, 0)) for region in self.cuts.regions]
        return replace(self, tiles=_deal(left, k, self.slots))

    def of(self, slot: int) -> "StreamPlan":
        """The part of the plan that ``slot`` does."""
        return replace(self, tiles=tuple(tile for tile in self.tiles if tile.slot == slot))

    def __repr__(self) -> str:
        (m, n, k), (tm, tn), (p, q) = self.extents, self.cuts.tile, self.cuts.grid
        left = "" if len(self.tiles) == p * q else f", {len(self.tiles)} of them left"
        return (
            f"StreamPlan({m}x{k} @ {k}x{n} in {p} x {q} tiles of up to {tm}x{tn}{left}, "
            f"panels of {self.panel}: reads {format_bytes(self.bytes_read)}, writes "
            f"{format_bytes(self.bytes_written)}, peak {format_bytes(self.ledger.peak)} a slot)"
        )

    def _repr_html_(self) -> str:
        p, q = self.cuts.grid
        slot_of = {tile.region: str(tile.slot) for tile in self.tiles}
        spans = list(pairwise(self.cuts.columns))
        drawn = p * q <= 400
        head = ("slot of tile", *(f"{left}..{right}" for left, right in spans))
        rows = [
            (f"{top}..{bottom}", *(slot_of.get(((top, bottom), span), "✓") for span in spans))
            for top, bottom in pairwise(self.cuts.rows)
        ]
        grid = html.table(head, rows, first="th") if drawn else ""
        return f"<p>{html.words(repr(self))}</p>{grid}{self.ledger._repr_html_()}"


@dataclass(frozen=True)
class Problem:
    """C = A @ B in files, and what it takes a slot to hold a part of it."""

    a: StorageLayout
    b: StorageLayout
    c: StorageLayout
    accumulator: int
    """Bytes per element of a tile in memory: C's, but 4 for halves, which are summed in float32."""
    workspace: Callable[[int, int, int], int] = lambda m, n, k: 0
    """(m, n, k) -> bytes that the kernel takes for such a product besides its operands."""

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @property
    def chunked(self) -> bool:
        return any(form.chunks for form in (self.a, self.b, self.c))

    def classes(self, m: int, n: int, w: int) -> dict[str, tuple[int, str]]:
        """Tensor class -> (bytes, formula) of a slot, for tiles of m x n and panels of w."""
        return {
            "accumulator": (m * n * self.accumulator, "rows x columns x itemsize"),
            "panels": (self._panels(m, n, w), f"{AHEAD} (rows + columns) x panel x itemsize"),
            "tile workspace": (self.workspace(m, n, w), "td.tile.workspace"),
            "chunk buffers": (self._chunks, f"{CHUNK_COPIES} chunks read, {CHUNK_COPIES} written"),
            "runtime": (self.memory(m, n, w) - self._arrays(m, n, w), "8 MiB + 2 %"),
        }

    def memory(self, m: int, n: int, w: int) -> int:
        """The sum of `classes`: bytes of a slot."""
        arrays = self._arrays(m, n, w)
        return arrays + RUNTIME + arrays // 50

    def _arrays(self, m: int, n: int, w: int) -> int:
        work = self.workspace(m, n, w) + self._chunks
        return m * n * self.accumulator + self._panels(m, n, w) + work

    def _panels(self, m: int, n: int, w: int) -> int:
        return AHEAD * (m + n) * w * self.a.itemsize

    @property
    def _chunks(self) -> int:
        return max(self.a.buffer, self.b.buffer) + self.c.buffer


def plan_cuts(problem: Problem, cuts: Cuts, slots: int, memory_limit: int) -> StreamPlan:
    """The plan with these ``cuts``; DoesNotFitError if it needs more than ``memory_limit``.

    >>> f = StorageLayout((8, 8), 4)
    >>> plan = plan_cuts(Problem(f, f, f, 4), Cuts((0, 4, 8), (0, 8), 4), 2, 10**9)
    >>> plan.tiles, plan.bytes_read
    ((Tile(slot=0, region=((0, 4), (0, 8)), begin=0), Tile(slot=1, region=((4, 8), (0, 8)), \
begin=0)), 768)
    """
    (tm, tn), k = cuts.tile, problem.extents[2]
    tiles = _deal([(region, 0) for region in cuts.regions], k, slots)
    rows = [
        Row(slot, name, ALWAYS if name in ("accumulator", "panels") else "product", size, formula)
        for slot in sorted({tile.slot for tile in tiles})
        for name, (size, formula) in problem.classes(tm, tn, min(cuts.panel, k)).items()
        if size
    ]
    ledger = Ledger.of(rows)
    if ledger.peak > memory_limit:
        raise DoesNotFitError(
            f"tiles of {tm}x{tn} with panels of {cuts.panel} take {format_bytes(ledger.peak)} a "
            f"slot, allowed are {format_bytes(memory_limit)}; raise memory_limit, or cut smaller"
        )
    return StreamPlan(problem.a, problem.b, problem.c, cuts, slots, tiles, ledger)


def _deal(left: Iterable[tuple[Region, int]], k: int, slots: int) -> tuple[Tile, ...]:
    """The tiles (region, summed up to) of each slot: the most work first, to the idlest."""
    work = [(_area(region) * (k - begin), region, begin) for region, begin in left]
    load = [(0, slot) for slot in range(slots)]
    heapify(load)
    tiles = []
    for cost, region, begin in sorted(work, key=lambda tile: -tile[0]):
        if cost:
            total, slot = load[0]
            heapreplace(load, (total + cost, slot))
            tiles.append(Tile(slot, region, begin))
    return tuple(tiles)


def covered(start: int, stop: int, chunk: int) -> int:
    """Elements from ``start`` to ``stop``, out to the edges of chunks."""
    return (-(-stop // chunk) - start // chunk) * chunk if stop > start else 0


def _area(region: Region) -> int:
    (top, bottom), (left, right) = region
    return (bottom - top) * (right - left)
