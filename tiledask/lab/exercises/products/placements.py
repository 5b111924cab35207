"""Place two matrices so that their product moves the fewest bytes; run and counted."""

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.distributed.arrays.array import ShardedArray, to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.redistribute import redistribute
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.plan.products.comms import redistribution, traffic_of
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.product import ProductPlan, gather

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "blocks_of",
    "bytes_planned",
    "fewest_bytes",
    "fewest_planned",
    "finished",
    "moved",
]

MB = 1_000_000

Pair = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Placements of X and of A, one per mesh axis."""


def fewest_bytes(
    cluster: Cluster, x: np.ndarray, a: np.ndarray, *, mesh: tuple[int, ...], limit: int
) -> Exercise:
    """Choose placements of X and A so that Y = X A moves the fewest bytes between workers.

    ``limit``: bytes of X and A that a worker may hold when the product begins. Partial sums that
    the product leaves are added up with Partial() -> Shard(0), and those bytes count too. The
    answer is (placements of X, placements of A); it is run, and the bytes are those that workers
    received.
    """
    over, expected = Mesh(cluster, mesh), x @ a
    least = fewest_planned(x.shape, a.shape, mesh, x.dtype.itemsize, limit) / MB

    def measure(answer: Any) -> list[Target]:
        X, A = (distribute(m, over, p) for m, p in zip((x, a), _pair(answer), strict=True))
        held = max(map(sum, zip(X.block_bytes, A.block_bytes, strict=True))) / MB
        Y, moved = finished(matmul(X, A, algorithm="gather"))
        wrong = int(np.count_nonzero(to_numpy(Y) != expected))
        return [
            Target("MB of X and A on the fullest worker", limit / MB, held, None),
            Target("MB between workers", least, moved / MB, least),
            Target("wrong numbers in Y", 0, wrong, 0),
        ]

    def figure(answer: Any) -> "Figure":
        none = ((Replicate(),) * len(mesh),) * 2
        title = "Who owns which block" + (" (not attempted: everything everywhere)" * (not answer))
        tilings = [
            Tiling(m.shape, mesh, p)
            for m, p in zip((x, a), none if answer is None else _pair(answer), strict=True)
        ]
        named = dict(zip(("X", "A"), map(blocks_of, tilings), strict=True))
        return plots.owners(named, title=title)

    return Exercise(name="the fewest bytes", measured=measure, drawn=figure)


def _pair(answer: Any) -> Pair:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(p, tuple | list) for p in pair):
        raise PlacementError(
            f"an answer is two tuples, the placements of X and those of A, for instance "
            f"((Shard(0), Replicate()), (Replicate(), Shard(1))); got {answer!r}"
        )
    return tuple(tuple(p) for p in pair)


def finished(product: ShardedArray) -> tuple[ShardedArray, int]:
    """``product`` with its partial sums added up, and the bytes that both moved, as counted."""
    moved = product.traffic.measured.total
    if Partial() in product.placements:
        product = redistribute(product, _summed(product.placements))
        moved += product.traffic.measured.total
    return product, moved


def moved(plan: ProductPlan, itemsize: int) -> int:
    """The bytes that ``plan`` moves, with the sum of what it leaves partial."""
    total = plan.traffic(itemsize).total
    if Partial() in plan.result.placements:
        target = plan.result.replaced(*_summed(plan.result.placements))
        total += traffic_of(plan.ranks, redistribution(plan.result, target), itemsize).total
    return total


def _summed(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple(Shard(0) if p == Partial() else p for p in placements)


def fewest_planned(
    x: tuple[int, int], a: tuple[int, int], mesh: tuple[int, ...], itemsize: int, limit: int
) -> int:
    """The fewest bytes that any placements within ``limit`` move, found by planning them all."""
    each = list(product((Replicate(), Shard(0), Shard(1)), repeat=len(mesh)))
    moved = [
        bytes_planned(tx, ta, itemsize)
        for tx, ta in product(
            (Tiling(x, mesh, p) for p in each), (Tiling(a, mesh, p) for p in each)
        )
        if _held(tx, ta, itemsize) <= limit
    ]
    if not moved:
        raise ConfigError(
            f"no placements on a mesh of {mesh} hold X {x} and A {a} in {limit:,} bytes a worker; "
            f"raise the limit"
        )
    return min(moved)


def _held(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes of both blocks on the fullest rank."""
    return itemsize * max(
        sum(int(np.prod(tiling.block_shape(at))) for tiling in (x, a)) for at in x.coordinates()
    )


def bytes_planned(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes between ranks for Y = X A, with the sum of what it leaves partial."""
    return moved(gather(x, a), itemsize)


def blocks_of(array: ShardedArray | Tiling) -> plots.Blocks:
    """The blocks of a matrix for ``plots.owners``: edges, and the ranks that hold each block.

    >>> blocks_of(Tiling((4, 6), (2,), (Shard(1),)))
    Blocks(ranks=[[(0,), (1,)]], rows=[0, 4], columns=[0, 3, 6])
    """
    tiling = array.tiling if isinstance(array, ShardedArray) else array
    regions = tiling.regions
    rows, columns = (sorted({edge for region in regions for edge in region[dim]}) for dim in (0, 1))
    ranks = [
        [
            tuple(r for r, region in enumerate(regions) if (region[0][0], region[1][0]) == (i, j))
            for j in columns[:-1]
        ]
        for i in rows[:-1]
    ]
    return plots.Blocks(ranks, rows, columns)
