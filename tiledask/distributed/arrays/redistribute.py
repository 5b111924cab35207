"""Moving an array from one placement to another: named collectives, counted.

    rank 0  [piece 00] [piece 01]      pieces are read where they lie (products/worker.py),
                 |          \\
    rank 0  join(00, 10)    rank 1  join(01, 11)      and placed, or added in rank order
"""

from collections.abc import Iterable
from itertools import pairwise
from time import perf_counter

from tiledask.distributed.arrays.array import Both, ShardedArray, placements_of
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.products.worker import moves, run_stages
from tiledask.distributed.retry import call_again
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic, collective, redistribution, traffic_of

__all__ = ["redistribute"]


@bounded
def redistribute(
    array: ShardedArray, placements: Iterable[Placement], *, timeout: float | None = None
) -> ShardedArray:
    """``array`` under other placements; ``.made_by`` names the collective, ``.traffic`` counts it.

    Shard -> Replicate is an all_gather, Partial -> Shard a reduce_scatter, Partial -> Replicate an
    all_reduce (done as a reduce_scatter and an all_gather), Shard -> Shard an all_to_all;
    Replicate -> Shard moves nothing. Sums are taken in rank order: the same bits every time. To
    Partial() nothing goes.
    """
    if not isinstance(array, ShardedArray):
        raise TypeError(
            f"redistribute moves a sharded array, got {type(array).__name__}; "
            f"td.distribute(x, mesh, placements) makes one"
        )
    target = Tiling(array.shape, array.mesh.shape, placements_of(placements))
    name = collective(array.tiling, target)
    stops = filter(None, (array.tiling, _reduced(array.tiling, target), target))
    plans = [(old, new, redistribution(old, new)) for old, new in pairwise(stops)]
    cluster, at, ranks = array.mesh.cluster, array.mesh.at, array.mesh.ranks
    moved = (traffic_of(ranks, pieces, array.dtype.itemsize) for *_, pieces in plans)
    predicted = sum(moved, Traffic.of(ranks)).on(cluster.hosts, at)
    name_of_tasks, type_of = name.replace("none", "no_move"), (array.dtype.name, cluster.backend)
    stages = [(name_of_tasks, moves(*plan, *type_of)) for plan in plans]

    what, arrays = f"{name} of {array!r}", {"partial": array.blocks}

    def move() -> ShardedArray:
        begun = perf_counter()
        done = run_stages(cluster, at, stages, arrays, what, timeout)
        made = array.mesh, target, array.dtype, done.blocks, name, Both(predicted, done.traffic)
        return ShardedArray(*made, seconds=perf_counter() - begun)

    return call_again(cluster, array.blocks, f"the blocks of {array!r}", timeout, move)


def _reduced(source: Tiling, target: Tiling) -> Tiling | None:
    """Where an all_reduce stands after its reduce_scatter; None if there is no all_reduce.

    Each rank adds up one part of the array and then the parts are gathered: 2(n-1)/n of the
    array per rank instead of n-1 times the array. Needs a dimension that no axis splits yet.
    """
    taken = {p.dim for p in (*source.placements, *target.placements) if isinstance(p, Shard)}
    free = [d for d in range(len(source.shape)) if d not in taken]
    pairs = [*zip(source.placements, target.placements, strict=True)]
    if not free or (Partial(), Replicate()) not in pairs:
        return None
    part = Shard(max(free, key=lambda d: source.shape[d]))
    return source.replaced(*(part if p == (Partial(), Replicate()) else p[1] for p in pairs))
