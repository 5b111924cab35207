"""What every rank of a product multiplies, reads and sums, known before anything runs.

    rank 3    A[rows, 0:512] from 2, B[0:512, columns] from 1;  C += their product       panel 0
              A[rows, 512:...                                                             panel 1
              C's partial sums of its part from 3, 7                                      sum

The same panels predict the traffic and are executed.
"""

from dataclasses import dataclass, field
from itertools import chain
from math import prod

from tiledask.plan.intervals import Interval
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.traffic import Piece, Traffic, traffic_of

__all__ = ["AHEAD", "PANEL", "RUNTIME", "Pieces", "ProductPanel", "ProductPlan"]

PANEL = 512
"""Extent along k of a panel by default: wide enough for BLAS, and two are small beside C."""
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
        return self.depth[1] - self.depth[0]

    def fetched(self, rank: int) -> list[Piece]:
        """The pieces that ``rank`` reads from other ranks."""
        return [piece for piece in (*self.a, *self.b) if piece.source != rank]

    def part(self, start: int, stop: int) -> "ProductPanel":
        """The step of indices start..stop of k, in which no piece begins or ends."""
        a, b = (
            tuple(
                Piece(p.source, p.destination, (*p.region[:k], (start, stop), *p.region[k + 1 :]))
                for p in pieces
                if p.region[k][0] <= start < p.region[k][1]
            )
            for pieces, k in ((self.a, len(self.a[0].region) - 1), (self.b, 0))
        )
        return ProductPanel((start, stop), a, b)


@dataclass(frozen=True, eq=False, repr=False)
class ProductPlan:
    """Made by an algorithm."""

    algorithm: str
    options: str
    """In words, such as "panel 512"."""
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
    ranks: int = field(init=False)
    fetched: tuple[Pieces, ...] = field(init=False)
    """By rank, the pieces of A and B that it reads from other ranks."""
    summed: tuple[Pieces, ...] = field(init=False)
    """By rank, the partial sums that it reads from other ranks."""
    sums_in_place: bool = field(init=False)
    """Whether each rank adds its own product last, on top of the others' partial sums."""

    def __post_init__(self) -> None:
        panels = enumerate(self.panels)
        fetched = tuple(tuple(chain(*(panel.fetched(r) for panel in mine))) for r, mine in panels)
        summed = tuple(tuple(p for p in of if p.source != r) for r, of in enumerate(self.partials))
        in_place = self.sums and bool(self.result.shape) and not any(fetched)
        vars(self).update(ranks=self.result.ranks, fetched=fetched, summed=summed)
        vars(self).update(sums_in_place=in_place)

    def traffic(self, itemsize: int, sum_itemsize: int | None = None) -> Traffic:
        """Bytes and messages from rank to rank, of operands and of partial sums."""
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
        words, t = ", ".join(filter(None, (self.algorithm, self.options))), self.traffic(1)
        moved = f"{t.total:,} elements in {t.count} messages among {self.ranks} ranks"
        return f"ProductPlan({words}: {moved})"
