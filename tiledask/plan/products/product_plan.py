"""What every rank of a product multiplies, reads and sums, known before anything runs.

    rank 3    A[rows, 0:512] from 2, B[0:512, columns] from 1;  C += their product       panel 0
              A[rows, 512:...                                                             panel 1
              C's partial sums of its part from 3, 7                                      sum

The same panels predict the traffic and are executed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import prod

from tiledask.plan.intervals import Interval, part_of, split
from tiledask.plan.products.comms import Piece, fetch, traffic_of
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic

__all__ = ["AHEAD", "RUNTIME", "DepthOrder", "ProductPanel", "ProductPlan", "plan_of"]

AHEAD = 2
"""Panels in memory at a time, or pairs of them: the one in use and the one that is fetched."""
RUNTIME = 8 * 2**20
"""Bytes that BLAS, the interpreter and the allocator take beside the arrays."""

Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class ProductPanel:
    """One step of a rank: C += A[..., depth] @ B[depth, :], over its rows and columns."""

    depth: Interval
    a: Pieces
    """The pieces of A that it takes, which together are A[rows, depth]."""
    b: Pieces

    @property
    def size(self) -> int:
        """Its extent along k."""
        return self.depth[1] - self.depth[0]

    def fetched(self, rank: int) -> list[Piece]:
        """The pieces that ``rank`` reads from other ranks."""
        return [piece for piece in (*self.a, *self.b) if piece.source != rank]

    def part(self, start: int, stop: int) -> "ProductPanel":
        """The step of indices start..stop of k, in which no piece begins or ends."""
        depth = start, stop
        return ProductPanel(
            depth,
            tuple(
                Piece(p.source, p.destination, (*p.region[:-1], depth))
                for p in self.a
                if p.region[-1][0] <= start < p.region[-1][1]
            ),
            tuple(
                Piece(p.source, p.destination, (depth, *p.region[1:]))
                for p in self.b
                if p.region[0][0] <= start < p.region[0][1]
            ),
        )


@dataclass(frozen=True)
class DepthOrder:
    """How k is shared out among the ranks, and gone through by one of them."""

    cut: tuple[int, ...] = ()
    """The mesh's axes that share it out: along them C is summed."""
    panel: int | None = None
    """The extent of a panel; None: as wide as the blocks of A and B are."""
    skewed: bool = False
    """Whether rank (i, j) begins i + j blocks further."""
    sharded: bool = False
    """Whether every block of k is shared out along the last axis, instead of k as a whole."""
    keep: tuple[int, ...] = ()
    """Axes along which an operand's own partial sums are multiplied and stay partial sums."""
    leave: bool = False
    """Whether C stays partial sums."""


@dataclass(frozen=True, eq=False, repr=False)
class ProductPlan:
    """Made by `plan_of`."""

    algorithm: str
    options: str
    """The choices made within the algorithm, in words, such as "panel 512"."""
    a: Tiling
    b: Tiling
    work: Tiling
    """C while the ranks multiply: Partial() along axes that share out the summed dimension."""
    result: Tiling
    sums: bool
    """Whether partial sums are summed after the ranks have multiplied."""
    panels: tuple[tuple[ProductPanel, ...], ...]
    """By rank, its panels in the order it takes them."""
    partials: tuple[Pieces, ...]
    """By rank, the pieces of ``work`` that it sums up; empty where nothing is summed."""

    @property
    def ranks(self) -> int:
        return self.result.ranks

    @property
    def sums_in_place(self) -> bool:
        """Whether a rank can add its own product to the others' partial sums of its part of C.

        Where nothing of A and B is fetched, each rank first multiplies what the others sum up,
        and its own part last, on top of what they have sent.
        """
        return self.sums and bool(self.result.shape) and not any(self.fetched)

    @cached_property
    def fetched(self) -> tuple[Pieces, ...]:
        """By rank, the pieces of A and B that it reads from other ranks."""
        return tuple(
            tuple(piece for panel in mine for piece in panel.fetched(rank))
            for rank, mine in enumerate(self.panels)
        )

    @cached_property
    def summed(self) -> tuple[Pieces, ...]:
        """By rank, the partial sums that it reads from other ranks."""
        return tuple(
            tuple(p for p in mine if p.source != rank) for rank, mine in enumerate(self.partials)
        )

    def traffic(self, itemsize: int, sum_itemsize: int | None = None) -> Traffic:
        """Bytes and messages from rank to rank, for operands of ``itemsize`` bytes an element.

        Partial sums of half types have 4 (``sum_itemsize``).
        """
        fetched, summed = map(chain.from_iterable, (self.fetched, self.summed))
        read = traffic_of(self.ranks, fetched, itemsize)
        return read + traffic_of(self.ranks, summed, sum_itemsize or itemsize)

    def extents(self, rank: int) -> tuple[int, int, int]:
        """(m, n, k) of what ``rank`` multiplies, all leading dimensions of A taken as one m."""
        shape = [stop - start for start, stop in self.work.regions[rank]]
        lead = len(self.a.shape) - 1
        depth = sum(panel.size for panel in self.panels[rank])
        return prod(shape[:lead]), prod(shape[lead:]), depth

    def held(self, rank: int) -> int:
        """Elements of the largest panel that ``rank`` fetches."""
        sizes = (sum(p.size for p in panel.fetched(rank)) for panel in self.panels[rank])
        return max(sizes, default=0)

    def __repr__(self) -> str:
        t = self.traffic(1)
        return (
            f"ProductPlan({self.algorithm}{', ' + self.options if self.options else ''}: "
            f"{t.total:,} elements in {t.count} messages among {self.ranks} ranks)"
        )


def plan_of(
    algorithm: str, options: str, a: Tiling, b: Tiling, work: Tiling, order: DepthOrder
) -> ProductPlan:
    """The plan of ranks that make what ``work`` says of C, and ask whoever is nearest for it.

    Each begins with a block of k of which it has all, and fetches the next meanwhile; not where a
    rank has none: if only those of a grid's diagonal began elsewhere, nobody would be done sooner.
    """
    ranks = range(work.ranks)
    blocks = [_blocks(a, b, work, order, rank) for rank in ranks]
    own = [
        next((n for n, block in enumerate(mine) if block.size and not block.fetched(rank)), None)
        for rank, mine in enumerate(blocks)
    ]
    panels = []
    for rank, mine in enumerate(blocks):
        first = 0 if None in own else own[rank] or 0
        if order.skewed and mine:
            first = sum(work.at(rank)) * len(mine) // max(work.mesh) % len(mine)
        turned = (*mine[first:], *mine[:first])
        panels.append(tuple(p for block in turned for p in _panels(block, rank, order.panel)))
    result = work if order.leave else _summed(work, order.cut)
    sums = not order.leave and any(work.mesh[axis] > 1 for axis in order.cut)
    partials = tuple(
        tuple(fetch(work, work.at(rank), result.regions[rank], order.keep)) if sums else ()
        for rank in ranks
    )
    return ProductPlan(algorithm, options, a, b, work, result, sums, tuple(panels), partials)


def _summed(work: Tiling, cut: tuple[int, ...]) -> Tiling:
    """Where C lies after the reduce-scatter: cut along its first dimension, if that is enough."""
    if not work.shape:
        return work.replaced(*(Replicate() for _ in work.mesh))
    enough = work.shape[0] >= work.ranks
    dim = 0 if enough else max(range(len(work.shape)), key=lambda d: work.shape[d])
    placed = (Shard(dim) if axis in cut else p for axis, p in enumerate(work.placements))
    return work.replaced(*placed)


def _blocks(a: Tiling, b: Tiling, work: Tiling, order: DepthOrder, rank: int) -> list[ProductPanel]:
    """What a rank multiplies, cut where the owner of a piece that it takes changes; where blocks
    are sharded, of each its part, where those that get one more take turns."""
    lead, region, depth, (layer, layers) = len(a.shape) - 1, work.regions[rank], None, (0, 1)
    if order.sharded:
        depth, layer, layers = (0, a.shape[-1]), work.at(rank)[-1], work.mesh[-1]
    else:
        axes = (Shard(0) if axis in order.cut else Replicate() for axis in range(len(work.mesh)))
        (depth,) = Tiling(a.shape[-1:], work.mesh, tuple(axes)).region(work.at(rank))
    of_a = tuple(fetch(a, a.at(rank), (*region[:lead], depth), order.keep))
    of_b = tuple(fetch(b, b.at(rank), (depth, *region[lead:]), order.keep))
    if not of_a or not of_b:
        return []
    whole, found = ProductPanel(depth, of_a, of_b), []
    ends = {end for p in of_a for end in p.region[-1]} | {end for p in of_b for end in p.region[0]}
    for start, stop in pairwise(sorted(ends | {*depth})):
        found.append(whole.part(*part_of(start, stop, layers, layer)))
        layer = (layer - (stop - start)) % layers
    return found


def _panels(block: ProductPanel, rank: int, width: int | None) -> Iterator[ProductPanel]:
    """``block`` panel by panel; whole if nothing of it is fetched."""
    if block.size:
        parts = -(-block.size // width) if width and block.fetched(rank) else 1
        yield from (block.part(*depth) for depth in split(*block.depth, parts))
