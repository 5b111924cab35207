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
    options: tuple[str, ...] = ()

    def __call__(self, a: Tiling, b: Tiling, **options: Any) -> ProductPlan:
        """The plan; options that are None are left out. Raises PlacementError."""
        given = {key: value for key, value in options.items() if value is not None}
        if unknown := sorted(given.keys() - {*self.options}):
            raise PlacementError(
                f"{self.name} has no option {', '.join(unknown)}; it takes "
                f"{', '.join(self.options) or 'none at all'}"
            )
        right = all(t.shape and 0 not in t.shape for t in (a, b)) and len(b.shape) <= 2
        if not right or a.shape[-1] != b.shape[0]:
            raise PlacementError(
                f"A {a.shape} and B {b.shape} do not multiply: A is [..., k] and B a matrix [k, n] "
                f"or a vector [k], with every extent 1 or more; transpose one of them with .T?"
            )
        if a.ranks != b.ranks:
            raise PlacementError(
                f"A lies on {a.ranks} ranks and B on {b.ranks}; distribute both on one mesh"
            )
        for name, operand in (("A", a), ("B", b)):
            if Partial() in operand.placements:
                axis = operand.placements.index(Partial())
                raise PlacementError(
                    f"{name} is Partial() along mesh axis {axis}, and its partial sums are added "
                    f"first: td.redistribute it to Replicate() or a Shard"
                )
        panel = whole_number(
            "panel", given.get("panel", PANEL), 1, of="columns of A", error=PlacementError
        )
        mesh = self._grid(a, b, given.get("grid")) if "grid" in self.options else a.mesh
        placed = self._placed(a, b)
        work = Tiling((*a.shape[:-1], *b.shape[1:]), mesh, tuple(placed))
        result, sums, ranks = work, False, range(work.ranks)
        if self.cuts:  # after the reduce-scatter cut along the first dimension, if that is enough
            scattered: Placement = Replicate()
            if shape := work.shape:
                longest = max(range(len(shape)), key=shape.__getitem__)
                scattered = Shard(0 if shape[0] >= work.ranks else longest)
            result = work.replaced(*(scattered if p == Partial() else p for p in placed))
            sums = any(n > 1 for n, p in zip(mesh, placed, strict=True) if p == Partial())
        panels = self._panels(a, b, work, panel if "panel" in self.options else None)
        partials = (fetch(work, rank, result.regions[rank]) if sums else () for rank in ranks)
        words = self.words.format(panel=panel, replication=mesh[-1])
        return ProductPlan(
            self.name, words, a, b, work, result, sums, tuple(panels), tuple(map(tuple, partials))
        )

    def _panels(
        self, a: Tiling, b: Tiling, work: Tiling, width: int | None
    ) -> Iterator[tuple[ProductPanel, ...]]:
        """By rank what it multiplies, panel by panel: blocks, cut where the owner of a piece that
        it takes changes; whole where nothing of them is fetched. If all have one, each begins with
        a block of which it has all, and fetches the next meanwhile. On three axes a rank has a part
        of each block of k, and those that get one more take turns."""
        lead, blocks, own = len(a.shape) - 1, list[list[ProductPanel]](), list[int | None]()
        axes = tuple(Shard(0) if p == Partial() else Replicate() for p in work.placements)
        depths = Tiling(a.shape[-1:], work.mesh, axes).regions
        for rank, region in enumerate(work.regions):
            (depth,), layer, layers = depths[rank], 0, 1
            if len(self.cuts) == 3:
                depth, layer, layers = (0, a.shape[-1]), work.coordinates[rank][-1], work.mesh[-1]
            of_a = tuple(fetch(a, rank, (*region[:lead], depth)))
            of_b = tuple(fetch(b, rank, (depth, *region[lead:])))
            ends = {*depth, *chain(*(p.region[-1] for p in of_a), *(p.region[0] for p in of_b))}
            whole, found = ProductPanel(depth, of_a, of_b), list[ProductPanel]()
            for start, stop in pairwise(sorted(ends)) if of_a and of_b else ():
                found.append(whole.part(*part_of(start, stop, layers, layer)))
                layer = (layer - (stop - start)) % layers
            blocks.append(found)
            mine = (n for n, each in enumerate(found) if each.size and not each.fetched(rank))
            own.append(next(mine, None))
        for rank, found in enumerate(blocks):
            first, panels = 0 if None in own else own[rank] or 0, list[ProductPanel]()
            if "grid" in self.options and width is None and found:
                first = sum(work.coordinates[rank]) * len(found) // max(work.mesh) % len(found)
            for block in (each for each in (*found[first:], *found[:first]) if each.size):
                parts = -(-block.size // width) if width and block.fetched(rank) else 1
                panels += (block.part(*depth) for depth in split(*block.depth, parts))
            yield tuple(panels)

    def _placed(self, a: Tiling, b: Tiling) -> list[Placement]:
        """By axis, what C is while ranks multiply: as A and B lie, or as it is cut. Its rows are
        the leading dimension that A is cut along already, or its longest."""
        if not self.cuts:
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
        rows, columns, on_grid = len(a.shape) - 1, len(b.shape) - 1, "grid" in self.options
        if (self.cuts == "n" and not columns) or (on_grid and not rows + columns):
            raise PlacementError(
                f"{self.name} cuts {'rows and ' * on_grid}columns of C, and the product of "
                f"A {a.shape} and B {b.shape} has none; use row_parallel or gather"
            )
        taken = [p.dim for p in a.placements if isinstance(p, Shard) and p.dim < rows]
        longest = max(range(rows), key=lambda d: (d in taken, a.shape[d]), default=rows)
        along: dict[str, Placement] = {"m": Shard(longest), "k": Partial()}
        along["n"] = Shard(rows if columns else longest)
        return [along[letter] for letter in (self.cuts if on_grid else self.cuts * len(a.mesh))]

    def _grid(self, a: Tiling, b: Tiling, wanted: Any) -> tuple[int, ...]:
        """The grid: the one asked for, the mesh if it fits, or the one that moves least."""
        m, n, k = prod(a.shape[:-1]), prod(b.shape[1:]), a.shape[-1]
        moved = list[tuple[float, bool, tuple[int, ...]]]()
        for grid in grids(a.ranks, len(self.cuts)):
            p, q, r = (*grid, 1)[:3]
            received = m * k / (p * r) + k * n / (q * r) + (m * n / (p * q) if r > 1 else 0)
            # of alike ones 2.5d keeps the mesh's rows: more of A is where it is multiplied
            moved.append((received, self.name == "2.5d" and p != a.mesh[0], grid))
        usable = [grid for *_, grid in sorted(moved)]
        if wanted is not None:
            grid = tuple(wanted) if isinstance(wanted, Iterable) else (wanted,)
            if grid not in usable or not all(map(is_whole, grid)):
                raise PlacementError(
                    f"{self.name} on {a.ranks} ranks needs a grid of {len(self.cuts)} extents "
                    f"whose product is {a.ranks}, got {wanted!r}; for example {usable[0]}"
                )
            return grid
        if a.mesh == b.mesh and a.mesh in usable:
            return a.mesh
        if self.name == "2.5d":
            # two layers where there can be: one is SUMMA, and every further one is another copy
            usable = [g for g in usable if g[2] == 2] or usable
        return usable[0]


_TABLE = (
    Algorithm("local"),
    Algorithm("column_parallel", "n", "panel {panel}", ("panel",)),
    Algorithm("row_parallel", "k", "panel {panel}", ("panel",)),
    Algorithm("summa", "mn", "panel {panel}", ("panel", "grid")),
    Algorithm("cannon", "mn", "blocks", ("grid",)),
    Algorithm("2.5d", "mnk", "replication {replication}, panel {panel}", ("panel", "grid")),
    Algorithm("3d", "mnk", "", ("grid",)),
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
