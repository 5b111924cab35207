"""What every rank of a product multiplies, fetches and sums, known before anything runs.

    rank 3    A[rows, 0:512] from 2, B[0:512, columns] from 1;  C += their product       panel 0
              A[rows, 512:...                                                             panel 1
              C's partial sums of its part from 3, 7                                      sum

A plan is its tilings and how k is gone through. Whom a rank asks follows from what it needs, and
ranks that need the same ask the same: so bytes are counted without a look at any panel, which are
made where they are run.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

from tiledask.plan.intervals import ends_of, split
from tiledask.plan.products.comms import Holders, Piece, holders
from tiledask.plan.products.placement import Replicate, Shard, Tiling, fixed_axes
from tiledask.plan.products.regions import region_size
from tiledask.plan.products.traffic import Traffic

__all__ = ["AHEAD", "RUNTIME", "DepthWalk", "ProductPanel", "ProductPlan"]

AHEAD = 2
"""Panels in memory at a time, or pairs of them: the one in use and the one that is fetched."""
RUNTIME = 8 * 2**20
"""Bytes that BLAS, the interpreter and the allocator take beside the arrays."""

Interval = tuple[int, int]


@dataclass(frozen=True)
class ProductPanel:
    """One turn of a rank: C += A[..., depth] @ B[depth, :], over its rows and columns."""

    depth: Interval
    a: tuple[Piece, ...]
    """The pieces of A that it takes, which together are A[rows, depth]."""
    b: tuple[Piece, ...]


@dataclass(frozen=True)
class DepthWalk:
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
    """Whether C stays partial sums: the caller says what becomes of them."""

    def panels(self, length: int) -> int:
        """Into how many panels so much of k is cut."""
        return -(-length // self.panel) if self.panel else min(length, 1)


@dataclass(frozen=True, eq=False)
class ProductPlan:
    """What every rank multiplies, fetches and sums, known before anything runs."""

    algorithm: str
    options: str
    """The choices made within the algorithm, in words, such as "panel 512"."""
    a: Tiling
    b: Tiling
    work: Tiling
    """C while the ranks multiply: Partial() along axes that share out the summed dimension."""
    result: Tiling
    walk: DepthWalk

    @property
    def ranks(self) -> int:
        return self.result.ranks

    @property
    def sums(self) -> bool:
        """Whether partial sums are summed after the ranks have multiplied."""
        return not self.walk.leave and any(self.work.mesh[axis] > 1 for axis in self.walk.cut)

    @cached_property
    def panels(self) -> tuple[tuple[ProductPanel, ...], ...]:
        """For each rank, its panels in the order it takes them."""
        return tuple(map(self._panels, range(self.ranks)))

    @cached_property
    def partials(self) -> tuple[tuple[Piece, ...], ...]:
        """For each rank, the pieces of ``work`` that it sums up; empty where nothing is summed."""
        return tuple(_pieces(asked, rank) for rank, asked in enumerate(self._addends))

    @cached_property
    def fetched(self) -> tuple[tuple[Piece, ...], ...]:
        """For each rank, the pieces of A and B that it reads from other ranks."""
        return tuple(
            tuple(p for panel in mine for p in (*panel.a, *panel.b) if p.source != rank)
            for rank, mine in enumerate(self.panels)
        )

    @cached_property
    def summed(self) -> tuple[tuple[Piece, ...], ...]:
        """For each rank, the partial sums that it reads from other ranks."""
        return tuple(
            tuple(p for p in mine if p.source != rank) for rank, mine in enumerate(self.partials)
        )

    @property
    def sums_in_place(self) -> bool:
        """Whether a rank can add its own product to the others' partial sums of its part of C.

        Where nothing of A and B is fetched, each rank first multiplies what the others sum up,
        and its own part last, on top of what they have sent.
        """
        return self.sums and bool(self.result.shape) and not self._read.count

    def traffic(self, itemsize: int, sum_itemsize: int | None = None) -> Traffic:
        """Bytes and messages from rank to rank, for operands of ``itemsize`` bytes an element.

        Partial sums of half types have 4 (``sum_itemsize``).
        """
        moved = self._read
        nbytes, messages = moved.bytes * itemsize, moved.messages
        if self.sums:
            nbytes += self._summed.bytes * (sum_itemsize or itemsize)
            messages = messages + self._summed.messages
        return Traffic(nbytes, messages)

    def extents(self, rank: int) -> tuple[int, int, int]:
        """(m, n, k) of what ``rank`` multiplies, all leading dimensions of A taken as one m."""
        region = self.work.regions[rank]
        shape = [stop - start for start, stop in region]
        lead = len(self.a.shape) - 1
        depth = sum(stop - start for start, stop in (p.depth for p in self.panels[rank]))
        return prod(shape[:lead]), prod(shape[lead:]), depth

    def held(self, rank: int) -> int:
        """Elements of the largest panel that ``rank`` fetches."""
        of_panels = (
            sum(p.size for p in (*panel.a, *panel.b) if p.source != rank)
            for panel in self.panels[rank]
        )
        return max(of_panels, default=0)

    def __repr__(self) -> str:
        t = self.traffic(1)
        return (
            f"ProductPlan({self.algorithm}{', ' + self.options if self.options else ''}: "
            f"{t.total:,} elements in {t.count} messages among {self.ranks} ranks)"
        )

    # -- whom the ranks ask -----------------------------------------------------------------------

    @cached_property
    def _depths(self) -> tuple[Interval, ...]:
        """By rank, the part of k in which all that it multiplies lies."""
        k, walk, mesh = self.a.shape[-1], self.walk, self.work.mesh
        if walk.sharded:
            return ((0, k),) * self.ranks
        axes = (Shard(0) if axis in walk.cut else Replicate() for axis in range(len(mesh)))
        return tuple(depth for (depth,) in Tiling((k,), mesh, tuple(axes)).regions)

    @cached_property
    def _asked(self) -> tuple[tuple[Holders, Holders], ...]:
        """By rank, who holds what it needs of A and of B; the same values, where they need the
        same."""
        columns = len(self.a.shape) - 1
        of_a, of_b = _Asked(self.a, self.walk.keep), _Asked(self.b, self.walk.keep)
        found = zip(self.work.regions, self._depths, strict=True)
        return tuple(
            (of_a(rank, (*region[:columns], depth)), of_b(rank, (depth, *region[columns:])))
            for rank, (region, depth) in enumerate(found)
        )

    @cached_property
    def _addends(self) -> tuple[Holders, ...]:
        """By rank, who holds the partial sums of its part of C."""
        if not self.sums:
            return ((),) * self.ranks
        asked = _Asked(self.work, self.walk.keep)
        return tuple(map(asked, range(self.ranks), self.result.regions))

    @cached_property
    def _edges(self) -> tuple[tuple[int, ...], ...]:
        """By rank, where along k the owner of a piece that it takes changes."""
        ends: dict[int, frozenset[int]] = {}
        known: dict[Any, tuple[int, ...]] = {}

        def of(asked: Holders, dim: int) -> frozenset[int]:
            if id(asked) not in ends:
                ends[id(asked)] = frozenset(end for _, region in asked for end in region[dim])
            return ends[id(asked)]

        found = []
        for (a, b), depth in zip(self._asked, self._depths, strict=True):
            key = of(a, -1), of(b, 0), depth
            if key not in known:
                known[key] = tuple(sorted({*key[0], *key[1], *depth}))
            found.append(known[key])
        return tuple(found)

    def _blocks(self, rank: int) -> list[Interval]:
        """What a rank multiplies of k between each two of its edges."""
        blocks, work = list(pairwise(self._edges[rank])), self.work
        return _shares(blocks, work.at(rank)[-1], work.mesh[-1]) if self.walk.sharded else blocks

    @cached_property
    def _own(self) -> tuple[int, ...]:
        """By rank, which of its blocks of k is the first of which nothing is fetched.

        Each rank begins with it, and fetches the next meanwhile. Empty where a rank has none: if
        only those of a grid's diagonal began elsewhere, nobody would be done sooner.
        """
        found = list[int]()
        for rank, (a, b) in enumerate(self._asked):
            ends = [(source, r[-1]) for source, r in a] + [(source, r[0]) for source, r in b]
            held = a and b and any(source == rank for source, _ in ends)
            own = (
                at
                for at, (start, stop) in enumerate(self._blocks(rank) if held else ())
                if start < stop and all(source == rank for source, (i, j) in ends if i <= start < j)
            )
            if (first := next(own, None)) is None:
                return ()
            found.append(first)
        return tuple(found)

    def _panels(self, rank: int) -> tuple[ProductPanel, ...]:
        of_a, of_b = (_pieces(asked, rank) for asked in self._asked[rank])
        if not of_a or not of_b:
            return ()
        blocks = self._blocks(rank)
        if self.walk.skewed:
            mesh = self.work.mesh
            turn = sum(self.work.at(rank)) * len(blocks) // max(mesh) % len(blocks)
        else:
            turn = self._own[rank] if self._own else 0
        blocks = blocks[turn:] + blocks[:turn]
        return tuple(p for block in blocks for p in _panels(block, of_a, of_b, self.walk))

    # -- bytes ------------------------------------------------------------------------------------

    @cached_property
    def _read(self) -> Traffic:
        """Elements of A and B from rank to rank: of all ranks that take the same at once."""
        readers: dict[Any, list[int]] = {}
        for rank, ((a, b), edges) in enumerate(zip(self._asked, self._edges, strict=True)):
            layer = self.work.at(rank)[-1] if self.walk.sharded else 0
            if a and b:
                for which, asked in enumerate((a, b)):
                    key = which, id(asked), id(edges), layer
                    readers.setdefault(key, []).append(rank)
        groups = ((mine, *self._moved(mine[0], key[0])) for key, mine in readers.items())
        return Traffic.of_groups(self.ranks, groups)

    def _moved(self, reader: int, which: int) -> tuple[list[int], list[int], list[int]]:
        """(ranks, elements, messages) of what one takes from each of A, 0, or B, 1."""
        edges, dim = self._edges[reader], 0 if which else -1
        lengths = [stop - start for start, stop in self._blocks(reader)]
        depth, turns = ends_of(lengths), ends_of(map(self.walk.panels, lengths))
        sources, sizes, counts = [], [], []
        for source, region in self._asked[reader][which]:
            first, last = (bisect_left(edges, end) for end in region[dim])
            wide = region_size(region) // (region[dim][1] - region[dim][0])
            sources.append(source)
            sizes.append(wide * (depth[last] - depth[first]))
            counts.append(turns[last] - turns[first])
        return sources, sizes, counts

    @cached_property
    def _summed(self) -> Traffic:
        """Elements of partial sums from rank to rank."""
        groups = (
            ([rank], [source for source, _ in asked], [region_size(region) for _, region in asked],
             [1] * len(asked))
            for rank, asked in enumerate(self._addends)
        )  # fmt: skip
        return Traffic.of_groups(self.ranks, groups)


class _Asked:
    """Who holds a region of an array, by whom it is asked for; each answer found once."""

    def __init__(self, tiling: Tiling, keep: tuple[int, ...]) -> None:
        self.tiling, self.keep = tiling, keep
        self.fixed = fixed_axes(tiling, keep)
        self._known: dict[Any, Holders] = {}

    def __call__(self, rank: int, region: tuple[Interval, ...]) -> Holders:
        at = self.tiling.at(rank)
        key = region, tuple([at[axis] for axis in self.fixed])
        if key not in self._known:
            self._known[key] = holders(self.tiling, at, region, self.keep)
        return self._known[key]


def _pieces(asked: Holders, rank: int) -> tuple[Piece, ...]:
    return tuple(Piece(source, rank, region) for source, region in asked)


def _shares(blocks: list[Interval], layer: int, layers: int) -> list[Interval]:
    """The part of every block that falls to ``layer``; those that get one more take turns.

    >>> [_shares([(0, 3), (3, 6)], layer, 2) for layer in range(2)]
    [[(0, 2), (5, 6)], [(2, 3), (3, 5)]]
    """
    shares = []
    for start, stop in blocks:
        shares.append(split(start, stop, layers)[layer])
        layer = (layer - (stop - start)) % layers
    return shares


def _panels(
    block: Interval, of_a: tuple[Piece, ...], of_b: tuple[Piece, ...], walk: DepthWalk
) -> Iterator[ProductPanel]:
    """``block`` panel by panel; whole if nothing of it is fetched.

    No piece ends inside of it: a piece has all of it along k, or none.
    """
    if block[0] == block[1]:
        return
    over_a = [p for p in of_a if p.region[-1][0] <= block[0] < p.region[-1][1]]
    over_b = [p for p in of_b if p.region[0][0] <= block[0] < p.region[0][1]]
    at_hand = all(p.source == p.destination for p in (*over_a, *over_b))
    parts = 1 if at_hand else walk.panels(block[1] - block[0])
    for depth in split(*block, parts):
        yield ProductPanel(
            depth,
            tuple(Piece(p.source, p.destination, (*p.region[:-1], depth)) for p in over_a),
            tuple(Piece(p.source, p.destination, (depth, *p.region[1:])) for p in over_b),
        )
