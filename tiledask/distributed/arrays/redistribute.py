"""Moving an array from one placement to another: named collectives, counted.

    rank 0  [piece 00] [piece 01]      send: cut a contiguous piece on its owner
                 |          \\
    rank 0  join(00, 10)    rank 1  join(01, 11)      join: place, or add in rank order
"""

from collections.abc import Iterable, Sequence
from typing import Any

from distributed import Future

from tiledask.distributed.arrays.array import Both, ShardedArray, operators, placements_of
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import counting
from tiledask.distributed.cluster.tasks import slot_of
from tiledask.distributed.deadlines import bounded
from tiledask.plan.products.comms import Piece, collective, redistribution, traffic_of
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.regions import Region, extents_of, within
from tiledask.tile.backend import array_namespace

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
    with counting(cluster, timeout) as counted:
        blocks: Sequence[Future[Any]] = array.blocks
        for old, new, pieces in plans:
            blocks = _exchange(cluster, blocks, old, new, pieces, name)
        cluster.wait(blocks, f"{name} of {array!r}", timeout, cancel=True)
    return ShardedArray(
        array.mesh,
        target,
        array.dtype,
        tuple(blocks),
        name,
        traffic=Both(sum(predicted[1:], predicted[0]), counted.traffic),
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


def _exchange(
    cluster: Cluster,
    blocks: Sequence[Future[Any]],
    old: Tiling,
    new: Tiling,
    pieces: list[Piece],
    name: str,
) -> list[Future[Any]]:
    """The new block of every rank: its pieces, cut once on their owners and joined where they go.

    Each destination gets a Future of its own, made on the owner: Dask would otherwise let it
    fetch the piece from whichever worker has a copy by then, or find a copy that an earlier
    operation left, and the bytes from rank to rank would be anybody's guess.
    """
    cut: dict[tuple[int, Region], Future[Any]] = {}
    given: dict[int, tuple[Any, ...]] = {}
    for rank, region in enumerate(new.regions):
        parts, where = list[Future[Any]](), list[tuple[slice, ...]]()
        for piece in pieces:
            if piece.destination != rank:
                continue
            block, key = blocks[piece.source], (piece.source, piece.region)
            owner, inside = slot_of(block), within(piece.region, old.regions[piece.source])
            if key not in cut:
                cut[key] = cluster.submit(owner, _cut, block, inside, name="cut", beside=True)
            parts.append(cluster.submit(owner, _same, cut[key], name=f"send_{name}", beside=True))
            where.append(within(piece.region, region))
        shape = extents_of(region)
        given[slot_of(blocks[rank])] = shape, where, blocks[rank], *parts
    return cluster.submit_all(_join, given, name=name)


def _cut(block: Any, where: tuple[slice, ...]) -> Any:
    """The piece itself: the block if that is all of it, else a contiguous copy."""
    piece = block[where]
    return block if piece.shape == block.shape else piece.copy()


def _same(piece: Any) -> Any:
    return piece


def _join(
    shape: tuple[int, ...],
    where: list[tuple[slice, ...]],
    like: Any,
    *parts: Any,
) -> Any:
    """A new block with every part at its place; parts for the same place are added in order."""
    block, begun = array_namespace(like).empty(shape, like.dtype), set()
    for index, part in zip(where, parts, strict=True):
        place = tuple((s.start, s.stop) for s in index)
        if place in begun:
            block[index] += part
        else:  # assigned, not added to zero: the sign of a zero stays
            block[index] = part
            begun.add(place)
    return block


operators["redistribute"] = redistribute
