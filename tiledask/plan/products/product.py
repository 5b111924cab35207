"""How a product C = A @ B is shared out over ranks: a table of algorithms, a row for each.

A product is a box of m x n x k multiplications. Every algorithm gives each rank one part of it,
fetches what that part needs of A and B from wherever it lies, and adds up what belongs together:

           n                  column_parallel   n is cut             A comes to every rank
        +------+              row_parallel      k is cut             C is summed (reduce-scatter)
     m /  B   /| k            summa, cannon     m and n are cut      panels of A and B come
      +------+ |              2.5d              m, n, and k          the same in layers, C is summed
      |  C   | +              3d                m, n and k           one local product, C is summed
      +------+/               local, gather      as A and B lie      nothing; what is lacking

A is [..., k]: any number of leading dimensions (tokens, batches), none for a vector. B is [k, n],
or a vector [k]. The plan alone says what moves; the same plan is executed.

summa    C stays; panels of A and B pass by, the same one at every rank at a time. On a p x q grid,
         with A, B and C all (Shard(0), Shard(1)), each rank receives (q-1)/q of a row of A and
         (p-1)/p of a column of B (van de Geijn and Watts, "SUMMA", 1997)
cannon   C stays; on a square grid no block has two readers at a time: rank (i, j) begins i + j
         blocks further. Blocks are read from their owners, not passed on, so there is no first
         skew to move. On a p x q grid k is cut where A's and B's blocks end, and some blocks have
         two readers (Cannon, "A cellular computer to implement the Kalman filter algorithm", 1969)
2.5d     a grid (p, q, c): each of c layers works like SUMMA on its share of k, a c-th of every
         block, and the partial sums are summed by a reduce-scatter along the last axis. Costs least
         if A and B are (Shard(0), Shard(1), Replicate()) (Solomonik and Demmel,
         "Communication-optimal parallel 2.5D matrix multiplication and LU factorization
         algorithms", 2011)
3d       a grid (p, q, r): rank (i, j, l) takes an r-th of every block of A[I_i, K] and B[K, J_j],
         and r partial sums of each block of C are summed. The fewest bytes where memory allows
         (Agarwal et al., "A three-dimensional approach to parallel matrix multiplication", 1995)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from types import MappingProxyType
from typing import Any

from tiledask.errors import PlacementError
from tiledask.plan.intervals import part_of, split
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.product_plan import PANEL, ProductPanel, ProductPlan
from tiledask.plan.products.traffic import fetch
from tiledask.plan.units import divisors
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Algorithm", "algorithms", "grids", "moves_nothing"]


@dataclass(frozen=True)
class Algorithm:
    """Called with two tilings that multiply, the plan of their product.

    Options: ``panel``, the extent of panels along k; ``grid``, the ranks as (p, q) or (p, q, c), by
    default the mesh if it has as many axes.

    >>> t = Tiling((8, 8), (2, 2), (Shard(0), Shard(1)))
    >>> algorithms["summa"](t, t, panel=2)
    ProductPlan(summa, panel 2: 128 elements in 16 messages among 4 ranks)
    """

    name: str
    cuts: str = ""
    """What the axes of its grid cut, or one letter for all axes of A's mesh; "": what the operands'
    placements cut, and C may stay partial sums."""
    words: str = ""
    """The choices within it."""

    @property
    def axes(self) -> int:
        """Of the grid that it takes; 0: it takes none."""
        return len(self.cuts) if len(self.cuts) > 1 else 0

    @property
    def options(self) -> tuple[str, ...]:
        return (*["panel"] * ("{panel}" in self.words), *["grid"] * (self.axes > 0))

    def __call__(self, a: Tiling, b: Tiling, **options: Any) -> ProductPlan:
        """The plan; options that are None are left out. Raises PlacementError."""
        given = {key: value for key, value in options.items() if value is not None}
        if unknown := sorted(given.keys() - {*self.options}):
            raise PlacementError(
                f"{self.name} has no option {', '.join(unknown)}; it takes "
                f"{', '.join(self.options) or 'none at all'}"
            )
        _check_operands(a, b)
        panel = whole_number(
            "panel", given.get("panel", PANEL), 1, of="columns of A", error=PlacementError
        )
        mesh = self._grid(a, b, given.get("grid")) if self.axes else a.mesh
        placed = self._cut(a, b) if self.cuts else self._in_place(a, b)
        work = Tiling((*a.shape[:-1], *b.shape[1:]), mesh, tuple(placed))
        result = _summed(work) if self.cuts else work
        summed = (n > 1 for n, p in zip(mesh, placed, strict=True) if p == Partial())
        sums, ranks = bool(self.cuts) and any(summed), range(work.ranks)
        blocks = [self._blocks(a, b, work, rank) for rank in ranks]
        panels = self._panels(blocks, work, panel if "panel" in self.options else None)
        partials = (fetch(work, rank, result.regions[rank]) if sums else () for rank in ranks)
        words = self.words.format(panel=panel, replication=mesh[-1])
        return ProductPlan(
            self.name, words, a, b, work, result, sums, tuple(panels), tuple(map(tuple, partials))
        )

    def _blocks(self, a: Tiling, b: Tiling, work: Tiling, rank: int) -> list[ProductPanel]:
        """What a rank multiplies, cut where the owner of a piece that it takes changes; on three
        axes it has a part of each block of k, and those that get one more take turns."""
        lead, region, layer, layers = len(a.shape) - 1, work.regions[rank], 0, 1
        axes = (Shard(0) if p == Partial() else Replicate() for p in work.placements)
        (depth,) = Tiling(a.shape[-1:], work.mesh, tuple(axes)).region(work.coordinates[rank])
        if self.axes == 3:
            depth, layer, layers = (0, a.shape[-1]), work.coordinates[rank][-1], work.mesh[-1]
        of_a = tuple(fetch(a, rank, (*region[:lead], depth)))
        of_b = tuple(fetch(b, rank, (depth, *region[lead:])))
        if not of_a or not of_b:
            return []
        ends = {*depth, *chain(*(p.region[-1] for p in of_a), *(p.region[0] for p in of_b))}
        whole, found = ProductPanel(depth, of_a, of_b), []
        for start, stop in pairwise(sorted(ends)):
            found.append(whole.part(*part_of(start, stop, layers, layer)))
            layer = (layer - (stop - start)) % layers
        return found

    def _panels(
        self, blocks: list[list[ProductPanel]], work: Tiling, width: int | None
    ) -> Iterator[tuple[ProductPanel, ...]]:
        """By rank its blocks, panel by panel; whole where nothing of them is fetched. If all have
        one, each begins with a block of which it has all, and fetches the next meanwhile."""
        own = [
            next((n for n, each in enumerate(mine) if each.size and not each.fetched(rank)), None)
            for rank, mine in enumerate(blocks)
        ]
        for rank, mine in enumerate(blocks):
            first, panels = 0 if None in own else own[rank] or 0, list[ProductPanel]()
            if self.axes and width is None and mine:
                first = sum(work.coordinates[rank]) * len(mine) // max(work.mesh) % len(mine)
            for block in (each for each in (*mine[first:], *mine[:first]) if each.size):
                parts = -(-block.size // width) if width and block.fetched(rank) else 1
                panels += (block.part(*depth) for depth in split(*block.depth, parts))
            yield tuple(panels)

    def _cut(self, a: Tiling, b: Tiling) -> list[Placement]:
        """By axis, what C is while ranks multiply: rows are the leading dimension that A is cut
        along already, or its longest."""
        rows, columns = len(a.shape) - 1, len(b.shape) - 1
        if (self.cuts == "n" and not columns) or (self.axes and not rows + columns):
            raise PlacementError(
                f"{self.name} cuts {'rows and ' * (self.axes > 0)}columns of C, and the product of "
                f"A {a.shape} and B {b.shape} has none; use row_parallel or gather"
            )
        taken = [p.dim for p in a.placements if isinstance(p, Shard) and p.dim < rows]
        longest = max(range(rows), key=lambda d: (d in taken, a.shape[d]), default=rows)
        along: dict[str, Placement] = {"m": Shard(longest), "k": Partial()}
        along["n"] = Shard(rows if columns else longest)
        return [along[letter] for letter in (self.cuts if self.axes else self.cuts * len(a.mesh))]

    def _in_place(self, a: Tiling, b: Tiling) -> list[Placement]:
        """By axis, what C is as A and B lie."""
        if a.mesh != b.mesh:
            raise PlacementError(
                f"{self.name} multiplies along one mesh, A lies on {a.mesh} and B on {b.mesh}; "
                f"distribute both on one mesh, or name another algorithm"
            )
        found = _as_they_lie(a, b)
        axis = next((axis for axis, (_, stays) in enumerate(found) if not stays), None)
        if axis is not None and self.name == "local":
            raise PlacementError(
                f"mesh axis {axis}: {a.placements[axis]} @ {b.placements[axis]} cannot be "
                f"multiplied where it lies; use td.redistribute, or algorithm='gather'"
            )
        return [placement for placement, _ in found]

    def _grid(self, a: Tiling, b: Tiling, wanted: Any) -> tuple[int, ...]:
        """The grid: the one asked for, the mesh if it fits, or the one that moves least."""
        m, n, k = prod(a.shape[:-1]), prod(b.shape[1:]), a.shape[-1]

        def moved(grid: tuple[int, ...]) -> tuple[float, bool, tuple[int, ...]]:
            p, q, r = (*grid, 1)[:3]
            received = m * k / (p * r) + k * n / (q * r) + (m * n / (p * q) if r > 1 else 0)
            # of alike ones 2.5d keeps the mesh's rows: more of A is where it is multiplied
            return received, self.name == "2.5d" and p != a.mesh[0], grid

        usable = list(grids(a.ranks, self.axes))
        if wanted is not None:
            grid = tuple(wanted) if isinstance(wanted, Iterable) else (wanted,)
            if grid not in usable or not all(map(is_whole, grid)):
                raise PlacementError(
                    f"{self.name} on {a.ranks} ranks needs a grid of {self.axes} extents whose "
                    f"product is {a.ranks}, got {wanted!r}; for example {min(usable, key=moved)}"
                )
            return grid
        if a.mesh == b.mesh and a.mesh in usable:
            return a.mesh
        if self.name == "2.5d":
            # two layers where there can be: one is SUMMA, and every further one is another copy
            usable = [g for g in usable if g[2] == 2] or usable
        return min(usable, key=moved)


_TABLE = (
    Algorithm("local"),
    Algorithm("column_parallel", "n", "panel {panel}"),
    Algorithm("row_parallel", "k", "panel {panel}"),
    Algorithm("summa", "mn", "panel {panel}"),
    Algorithm("cannon", "mn", "blocks"),
    Algorithm("2.5d", "mnk", "replication {replication}, panel {panel}"),
    Algorithm("3d", "mnk"),
    Algorithm("gather"),
)
algorithms: Mapping[str, Algorithm] = MappingProxyType({each.name: each for each in _TABLE})
"""By name."""


def moves_nothing(a: Tiling, b: Tiling) -> bool:
    """Whether every rank can multiply what it holds (algorithm "local")."""
    return a.mesh == b.mesh and all(stays for _, stays in _as_they_lie(a, b))


def grids(ranks: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``ranks`` as a product of ``axes`` factors, in order.

    >>> list(grids(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if axes == 1:
        yield (ranks,)
        return
    for first in divisors(ranks):
        yield from ((first, *rest) for rest in grids(ranks // first, axes - 1))


def _as_they_lie(a: Tiling, b: Tiling) -> list[tuple[Placement, bool]]:
    """By mesh axis (what the product is, whether each rank multiplies what it holds)."""
    k, found = len(a.shape) - 1, list[tuple[Placement, bool]]()
    for of_a, of_b in zip(a.placements, b.placements, strict=True):
        if isinstance(of_a, Shard) and of_a.dim < k:  # rows of A: data-parallel
            found.append((of_a, of_b == Replicate()))
        elif isinstance(of_b, Shard) and of_b.dim > 0:  # columns of B: column-parallel
            found.append((Shard(k), of_a == Replicate()))
        elif isinstance(of_a, Shard) and isinstance(of_b, Shard):  # the summed one: row-parallel
            found.append((Partial(), True))
        else:
            found.append((Replicate(), of_a == of_b))
    return found


def _check_operands(a: Tiling, b: Tiling) -> None:
    right = all(t.shape and 0 not in t.shape for t in (a, b)) and len(b.shape) <= 2
    if not right or a.shape[-1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} and B {b.shape} do not multiply: A is [..., k] and B a matrix [k, n] or "
            f"a vector [k], with every extent 1 or more; transpose one of them with .T?"
        )
    if a.ranks != b.ranks:
        raise PlacementError(
            f"A lies on {a.ranks} ranks and B on {b.ranks}; distribute both on one mesh"
        )
    for name, operand in (("A", a), ("B", b)):
        if Partial() in operand.placements:
            raise PlacementError(
                f"{name} is Partial() along mesh axis {operand.placements.index(Partial())}, and "
                f"its partial sums are added first: td.redistribute it to Replicate() or a Shard"
            )


def _summed(work: Tiling) -> Tiling:
    """Where C lies after the reduce-scatter: cut along its first dimension, if that is enough."""
    if not work.shape:
        return work.replaced(*(Replicate() for _ in work.mesh))
    enough = work.shape[0] >= work.ranks
    dim = 0 if enough else max(range(len(work.shape)), key=lambda d: work.shape[d])
    return work.replaced(*(Shard(dim) if p == Partial() else p for p in work.placements))
