"""How a product C = A @ B is shared out over ranks: one function per algorithm, and their table.

A product is a box of m x n x k multiplications. Every algorithm gives each rank one part of it,
fetches what that part needs of A and B from wherever it lies, and adds up what belongs together:

           n                  column_parallel   n is cut             A comes to every rank
        +------+              row_parallel      k is cut             C is summed (reduce-scatter)
     m /  B   /| k            summa, cannon     m and n are cut      panels of A and B come
      +------+ |              2.5d              m, n, and k          the same in layers, C is summed
      |  C   | +              3d                m, n and k           one local product, C is summed
      +------+/

A is [..., k]: any number of leading dimensions (tokens, batches), none for a vector. B is [k, n],
or a vector [k]. The plan alone says what moves; the same plan is executed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from math import prod
from types import MappingProxyType

from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.product_plan import DepthOrder, ProductPlan, plan_of
from tiledask.plan.units import divisors
from tiledask.plan.whole import is_whole, whole_number

__all__ = [
    "GRID_AXES",
    "PANEL",
    "algorithms",
    "grids",
    "moves_nothing",
    "options_of",
    "plan_product",
]

PANEL = 512
"""Extent along k of the panels that are fetched, unless told otherwise: wide enough for BLAS and
for long runs of memory, narrow enough that two of them are small beside C."""
GRID_AXES = {"summa": 2, "cannon": 2, "2.5d": 3, "3d": 3}
"""Name -> the axes of the grid that it takes, of each that takes one."""

# -- the algorithms ------------------------------------------------------------------------------

# What A and B may be along one mesh axis so that each rank multiplies what it holds, and what the
# product then is along that axis; d stands for a leading dimension of A.
_LOCAL = {
    ("R", "R"): "R",
    ("Sd", "R"): "Sd",  # rows of A:             data-parallel
    ("R", "Sn"): "Sn",  # columns of B:          column-parallel
    ("Sk", "Sk"): "P",  # the summed dimension:  row-parallel
    ("P", "R"): "P",
    ("R", "P"): "P",
}


def local(a: Tiling, b: Tiling) -> ProductPlan:
    """Every rank multiplies the blocks it holds: nothing moves. The result may be Partial()."""
    return _in_place("local", a, b, elsewhere=False)


def gather(a: Tiling, b: Tiling) -> ProductPlan:
    """Nothing is cut anew: C keeps a split that A or B has, and blocks come to where they lack."""
    return _in_place("gather", a, b, elsewhere=True)


def column_parallel(a: Tiling, b: Tiling, *, panel: int = PANEL) -> ProductPlan:
    """Every rank computes columns of C from all of A and its columns of B.

    A[I, K] @ B[K, J_XY] -> C[I, J_XY]. Costs nothing if A is replicated and B cut by columns.
    """
    if len(b.shape) < 2:
        raise PlacementError(
            f"column_parallel cuts the columns of B, and B {b.shape} is a vector; use "
            f"row_parallel or gather"
        )
    work = [Shard(len(a.shape) - 1)] * len(a.mesh)
    return _plan("column_parallel", f"panel {panel}", a, b, a.mesh, work, DepthOrder(panel=panel))


def row_parallel(a: Tiling, b: Tiling, *, panel: int = PANEL) -> ProductPlan:
    """Every rank computes a partial sum of all of C from its part of k; then these are summed.

    A[I, K_XY] @ B[K_XY, J] -> C[I, J]{XY} -> C[I_XY, J]: cut along its first dimension, or along
    its longest if the first has fewer rows than there are ranks.
    """
    order = DepthOrder(tuple(range(len(a.mesh))), panel)
    work = [Partial()] * len(a.mesh)
    return _plan("row_parallel", f"panel {panel}", a, b, a.mesh, work, order)


def summa(
    a: Tiling, b: Tiling, *, panel: int = PANEL, grid: tuple[int, int] | None = None
) -> ProductPlan:
    """C stays; panels of A and B pass by, the same one at every rank at a time.

          B  [0j]          a p x q grid with A, B and C all (Shard(0), Shard(1)):
             [1j]          each rank receives (q-1)/q of a row of A
    A [i0][i1]  C [ij]     and (p-1)/p of a column of B

    van de Geijn and Watts, "SUMMA", 1997. ``grid``: (p, q), default the mesh if it has two axes.
    """
    mesh, work = _grid("summa", a, b, grid), _grid_work("summa", a, b)
    return _plan("summa", f"panel {panel}", a, b, mesh, work, DepthOrder(panel=panel))


def cannon(a: Tiling, b: Tiling, *, grid: tuple[int, int] | None = None) -> ProductPlan:
    """C stays; on a square grid no block of A or of B has two readers at a time.

    step 0   A[i, i+j]   B[i+j, j]       blocks are read from their owners, not passed on, so
    step 1   A[i, i+j+1] ...             there is no first skew to move

    On a p x q grid k is cut where A's and B's blocks end, rank (i, j) starts at the segment that
    is i + j of the way round, and some blocks have two readers.

    Cannon, "A cellular computer to implement the Kalman filter algorithm", 1969.
    """
    mesh, work = _grid("cannon", a, b, grid), _grid_work("cannon", a, b)
    return _plan("cannon", "blocks", a, b, mesh, work, DepthOrder(skewed=True))


def two_and_a_half_d(
    a: Tiling,
    b: Tiling,
    *,
    panel: int = PANEL,
    replication: int | None = None,
    grid: tuple[int, int, int] | None = None,
) -> ProductPlan:
    """``replication`` layers of a p x q grid, each with its part of k; then C is summed.

    A grid (p, q, c): each layer works like SUMMA on its share of k, and the c partial sums of each
    block of C are summed by a reduce-scatter along the last axis, into (Shard(0), Shard(1),
    Shard(0)). Costs least if A and B are (Shard(0), Shard(1), Replicate()). A layer's share is
    a c-th of every block along k, so that all ranks fetch alike.

    Solomonik and Demmel, "Communication-optimal parallel 2.5D matrix multiplication and LU
    factorization algorithms", 2011.
    """
    if replication is not None and (not is_whole(replication, 1) or a.ranks % replication):
        raise PlacementError(
            f"2.5d with replication {replication!r} needs a number of ranks that it divides, there "
            f"are {a.ranks}; take one of {', '.join(map(str, divisors(a.ranks)))}"
        )
    mesh = _grid("2.5d", a, b, grid, last=replication)
    work, order = [*_grid_work("2.5d", a, b), Partial()], DepthOrder((2,), panel, sharded=True)
    return _plan("2.5d", f"replication {mesh[2]}, panel {panel}", a, b, mesh, work, order)


def three_d(a: Tiling, b: Tiling, *, grid: tuple[int, int, int] | None = None) -> ProductPlan:
    """The box of m x n x k multiplications in p x q x r parts: one local product per rank.

    Rank (i, j, l) takes an r-th of every block of A[I_i, K] and of B[K, J_j], and r partial sums of
    each block of C are summed by a reduce-scatter. The fewest bytes where memory allows.

    Agarwal, Balle, Gustavson, Joshi and Palkar, "A three-dimensional approach to parallel matrix
    multiplication", 1995.
    """
    mesh, work = _grid("3d", a, b, grid), [*_grid_work("3d", a, b), Partial()]
    return _plan("3d", "", a, b, mesh, work, DepthOrder((2,), skewed=True, sharded=True))


algorithms: Mapping[str, Callable[..., ProductPlan]] = MappingProxyType(
    {
        "local": local,
        "column_parallel": column_parallel,
        "row_parallel": row_parallel,
        "summa": summa,
        "cannon": cannon,
        "2.5d": two_and_a_half_d,
        "3d": three_d,
        "gather": gather,
    }
)
"""Name -> the function that plans a product of two tilings that multiply (`plan_product` checks
that), or raises PlacementError."""


def plan_product(name: str, a: Tiling, b: Tiling, **options: object) -> ProductPlan:
    """The plan of algorithm ``name`` for tilings that multiply; options that are None are left out.

    >>> grid = (Shard(0), Shard(1))
    >>> t = Tiling((8, 8), (2, 2), grid)
    >>> plan_product("summa", t, t, panel=2)
    ProductPlan(summa, panel 2: 128 elements in 16 messages among 4 ranks)
    """
    if name not in algorithms:
        raise PlacementError(f"no algorithm {name!r}; td.algorithms has {', '.join(algorithms)}")
    given = {key: value for key, value in options.items() if value is not None}
    takes = options_of(name)
    if unknown := sorted(set(given) - set(takes)):
        raise PlacementError(
            f"{name} has no option {', '.join(unknown)}; it takes "
            f"{', '.join(takes) or 'none at all'}"
        )
    _check_shapes(a, b)
    whole_number("panel", given.get("panel", 1), 1, of="columns of A", error=PlacementError)
    return algorithms[name](a, b, **given)


def options_of(name: str) -> tuple[str, ...]:
    """The options that algorithm ``name`` takes.

    >>> options_of("2.5d")
    ('panel', 'replication', 'grid')
    """
    return tuple(signature(algorithms[name]).parameters)[2:]


def moves_nothing(a: Tiling, b: Tiling) -> bool:
    """Whether every rank can multiply what it holds (algorithm "local").

    >>> t = Tiling((8, 8), (2,), (Replicate(),))
    >>> moves_nothing(t, t.replaced(Shard(1))), moves_nothing(t, t.replaced(Shard(0)))
    (True, False)
    """
    return a.mesh == b.mesh and all(pair in _LOCAL for pair in _pairs(a, b))


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


# -- what they share -----------------------------------------------------------------------------


def _pairs(a: Tiling, b: Tiling) -> list[tuple[str, str]]:
    """By mesh axis, what A's and B's placements are to a product, in the letters of `_LOCAL`."""

    def letter(placement: Placement, k: int, other: str) -> str:
        if isinstance(placement, Shard):
            return "Sk" if placement.dim == k else other
        return "P" if isinstance(placement, Partial) else "R"

    return [
        (letter(of_a, len(a.shape) - 1, "Sd"), letter(of_b, 0, "Sn"))
        for of_a, of_b in zip(a.placements, b.placements, strict=True)
    ]


def _in_place(name: str, a: Tiling, b: Tiling, elsewhere: bool) -> ProductPlan:
    """C as A and B lie, axis by axis; ``elsewhere``: what a rank lacks may come from others."""
    if a.mesh != b.mesh:
        raise PlacementError(
            f"{name} multiplies along one mesh, A lies on {a.mesh} and B on {b.mesh}; "
            f"distribute both on one mesh, or name another algorithm"
        )
    columns, work, cut = Shard(len(a.shape) - 1), list[Placement](), []
    for axis, pair in enumerate(_pairs(a, b)):
        of_a, of_b = a.placements[axis], b.placements[axis]
        if pair not in _LOCAL and "P" in pair:
            raise _unsummed(name, a, b, axis)
        if pair not in _LOCAL and not elsewhere:
            raise PlacementError(
                f"mesh axis {axis}: {of_a} @ {of_b} cannot be multiplied where it lies; allowed "
                f"are Replicate() or rows of A with B replicated, columns of B with A replicated, "
                f"and columns of A with rows of B. Use td.redistribute, or algorithm='gather'"
            )
        if pair == ("Sk", "Sk"):
            cut.append(axis)
        # where not all can stay, rows of A win over columns of B
        kept = "Sd" if pair[0] == "Sd" else "Sn" if pair[1] == "Sn" else "R"
        results: dict[str, Placement] = {
            "R": Replicate(),
            "P": Partial(),
            "Sd": of_a,
            "Sn": columns,
        }
        work.append(results[_LOCAL.get(pair, kept)])
    return _plan(name, "", a, b, a.mesh, work, DepthOrder(tuple(cut), leave=True))


def _grid_work(name: str, a: Tiling, b: Tiling) -> list[Placement]:
    """C on a grid of two axes: rows over the first, columns over the second.

    If C has only one of the two, both axes cut that. Rows are the leading dimension that A is cut
    along already, or its longest.
    """
    rows, columns = len(a.shape) - 1, len(b.shape) - 1
    if not rows + columns:
        raise PlacementError(
            f"{name} cuts rows and columns of C, and the product of two vectors has neither; "
            f"use row_parallel"
        )
    taken = [p.dim for p in a.placements if isinstance(p, Shard) and p.dim < rows]
    longest = max(range(rows), key=lambda d: (d in taken, a.shape[d]), default=rows)
    return [Shard(longest), Shard(rows if columns else longest)]


def _check_shapes(a: Tiling, b: Tiling) -> None:
    for name, tiling in (("A", a), ("B", b)):
        if not tiling.shape or 0 in tiling.shape:
            raise PlacementError(
                f"{name} has shape {tiling.shape}; a product needs at least one dimension, and "
                f"every extent 1 or more"
            )
    if len(b.shape) > 2:
        raise PlacementError(
            f"B has {len(b.shape)} dimensions, it is a matrix [k, n] or a vector [k]; only A may "
            f"have leading dimensions (tokens, batches). Multiply the matrices of B one by one"
        )
    if a.shape[-1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} has {a.shape[-1]} columns and B {b.shape} has {b.shape[0]} rows, they "
            f"must be equal; transpose one of them with .T?"
        )
    if a.ranks != b.ranks:
        raise PlacementError(
            f"A lies on {a.ranks} ranks and B on {b.ranks}; distribute both on one mesh"
        )


def _unsummed(name: str, a: Tiling, b: Tiling, axis: int) -> PlacementError:
    first = axis < len(a.mesh) and isinstance(a.placements[axis], Partial)
    operand, tiling = ("A", a) if first else ("B", b)
    return PlacementError(
        f"{operand} is {tiling.placements[axis]!r} along mesh axis {axis}, and {name} would "
        f"multiply before the partial sums are added; td.redistribute {operand} to Replicate() or "
        f"a Shard, or the other operand to Replicate() along that axis and use 'local', which "
        f"leaves C as it is"
    )


def _grid(
    name: str, a: Tiling, b: Tiling, asked: Sequence[int] | None, last: int | None = None
) -> tuple[int, ...]:
    """The grid of ranks: the one asked for, the mesh if it fits, or the one that moves least."""
    axes = GRID_AXES[name]
    m, n, k = prod(a.shape[:-1]), prod(b.shape[1:]), a.shape[-1]

    def moved(grid: tuple[int, ...]) -> tuple[float, bool, tuple[int, ...]]:
        p, q, r = (*grid, 1)[:3]
        received = m * k / (p * r) + k * n / (q * r) + (m * n / (p * q) if r > 1 else 0)
        # of alike ones 2.5d keeps the mesh's rows: more of A is where it is multiplied
        return received, name == "2.5d" and p != a.mesh[0], grid

    usable = [g for g in grids(a.ranks, axes) if last in (None, g[-1])]
    if asked is not None:
        wanted = tuple(asked) if isinstance(asked, Iterable) else (asked,)
        extents = [n for n in wanted if is_whole(n, 1)]
        if len(extents) != axes or len(wanted) != axes or prod(wanted) != a.ranks:
            raise PlacementError(
                f"{name} on {a.ranks} ranks needs a grid of {axes} extents whose product is "
                f"{a.ranks}, got {asked!r}; for example {min(usable, key=moved)}"
            )
        if last not in (None, wanted[-1]):
            raise PlacementError(
                f"grid {wanted} has {wanted[-1]} layers and replication={last} asks for {last}; "
                f"leave one of them out"
            )
        return wanted
    if a.mesh == b.mesh and a.mesh in usable:
        return a.mesh
    if name == "2.5d" and last is None:
        # two layers where there can be: one is SUMMA, and every further one is another copy
        usable = [g for g in usable if g[2] == 2] or usable
    return min(usable, key=moved)


def _plan(
    name: str,
    options: str,
    a: Tiling,
    b: Tiling,
    mesh: tuple[int, ...],
    work: Sequence[Placement],
    order: DepthOrder,
) -> ProductPlan:
    """The plan that leaves C as ``work``, and then sums it along the axes that share out k."""
    keep = [
        axis
        for tiling in (a, b)
        for axis, placement in enumerate(tiling.placements)
        if isinstance(placement, Partial)
    ]
    for axis in keep:
        if not a.mesh == b.mesh == mesh or work[axis] != Partial() or axis in order.cut:
            raise _unsummed(name, a, b, axis)
    made = Tiling((*a.shape[:-1], *b.shape[1:]), mesh, tuple(work))
    order = replace(order, keep=tuple(keep))
    return plan_of(name, options, a, b, made, made if order.leave else _summed(made, order), order)


def _summed(work: Tiling, order: DepthOrder) -> Tiling:
    """Where C lies after the reduce-scatter: cut along its first dimension, if that is enough."""
    if not work.shape:
        return work.replaced(*(Replicate() for _ in work.mesh))
    enough = work.shape[0] >= work.ranks
    dim = 0 if enough else max(range(len(work.shape)), key=lambda d: work.shape[d])
    placements = [Shard(dim) if axis in order.cut else p for axis, p in enumerate(work.placements)]
    return work.replaced(*placements)
