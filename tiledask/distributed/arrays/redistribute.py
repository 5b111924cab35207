"""Moving an array from one placement to another: named collectives, counted.

    rank 0  [piece 00] [piece 01]      pieces are read where they lie (products/worker.py),
                 |          \\
    rank 0  join(00, 10)    rank 1  join(01, 11)      and placed, or added in rank order
"""

from collections.abc import Iterable

from tiledask.distributed.arrays.array import Both, ShardedArray, operators, placements_of
from tiledask.distributed.arrays.recompute import Anchors
from tiledask.distributed.cluster.counters import counting
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.products.rank_tasks import Lent, RankTasks, submit_ranks
from tiledask.distributed.products.worker import RankJob
from tiledask.distributed.transport.blocks import lending
from tiledask.plan.products.comms import collective, redistribution, traffic_of
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling

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
    halfway = _reduced(array.tiling, target)
    stops = [target] if halfway is None else [halfway, target]

    cluster, source = array.mesh.cluster, array.tiling
    plans = []
    for stop in stops:
        plans.append((source, stop, redistribution(source, stop)))
        source = stop
    ranks, itemsize, at = array.mesh.ranks, array.dtype.itemsize, array.mesh.at
    predicted = [traffic_of(ranks, pieces, itemsize).on(cluster.hosts, at) for *_, pieces in plans]
    blocks, anchors = list(array.blocks), array.anchors
    cluster.again(blocks)
    cluster.wait(blocks, f"the blocks of {array!r}", timeout)
    with lending(cluster) as lender, counting(cluster, timeout, last=[lender.ends]) as counted:
        for old, new, pieces in plans:
            tickets = lender.lend([blocks], timeout)
            lent = {"partial": Lent(anchors, [tickets[slot][0] for slot in at])}
            how = array.dtype.name, cluster.backend
            stage = RankTasks.of(
                [RankJob.moves(rank, old, new, pieces, *how) for rank in range(ranks)]
            )
            own = [(None, None, block) for block in blocks]
            blocks = submit_ranks(lender, at, stage, lent, own, name)
            cluster.wait(blocks, f"{name} of {array!r}", timeout, cancel=True)
            anchors = Anchors(cluster, blocks)
        lender.close()
    facts = [found for (found,) in counted.last]
    reads = [(src, dst, n) for dst, found in enumerate(facts) for src, n in found.reads]
    return ShardedArray(
        array.mesh,
        target,
        array.dtype,
        tuple(blocks),
        name,
        traffic=Both(sum(predicted[1:], predicted[0]), counted.moved(cluster.slots, reads)),
        seconds=counted.seconds,
    )


def _reduced(source: Tiling, target: Tiling) -> Tiling | None:
    """Where an all_reduce stands after its reduce_scatter; None if there is no all_reduce.

    Each rank adds up one part of the array and then the parts are gathered: 2(n-1)/n of the
    array per rank instead of n-1 times the array. Needs a dimension that no axis splits yet.
    """
    taken = {p.dim for p in (*source.placements, *target.placements) if isinstance(p, Shard)}
    free = [d for d in range(len(source.shape)) if d not in taken]
    halfway = list(target.placements)
    for axis, (old, new) in enumerate(zip(source.placements, target.placements, strict=True)):
        if isinstance(old, Partial) and isinstance(new, Replicate):
            if not free:
                return None
            halfway[axis] = Shard(max(free, key=lambda d: source.shape[d]))
    return None if halfway == list(target.placements) else source.replaced(*halfway)


operators["redistribute"] = redistribute
