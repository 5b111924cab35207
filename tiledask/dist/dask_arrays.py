"""Blocks that change hands: a dask.array's chunks become a mesh's blocks, and back."""

import operator
import uuid
from collections.abc import Iterable
from itertools import pairwise
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from distributed import Client, Future, futures_of

from tiledask.dist.array import (
    ShardedArray,
    _check_dtype,
    _check_mesh,
    _checked,
    _refuse_large_blocks,
)
from tiledask.dist.collectives import within
from tiledask.dist.lazy_graph import check_chunks, edges_of, touching_chunks
from tiledask.dist.lazy_plan import Edges
from tiledask.dist.mesh import Mesh
from tiledask.dist.room import Room, room_of
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Partial, Placement, Region, Tiling
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import array_namespace, as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["from_dask", "to_dask"]


def from_dask(
    x: da.Array,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    name: str = "block",
    timeout: float | None = None,
) -> ShardedArray:
    """``x`` as a ShardedArray: computed on the mesh's cluster, blocks put together where they lie.

    Chunks need not agree with blocks: each rank fetches the parts of chunks that it needs. A
    chunk is dropped when the blocks have what they need of it, and made again if a block is lost.
    Nothing passes through this process.

    Raises PlacementError for placements that the mesh or the shape does not allow, for unknown
    chunk sizes, and if parts of ``x`` were persisted by another client; DoesNotFitError if a
    worker cannot hold a block twice, in parts and put together.
    """
    if not isinstance(x, da.Array):
        raise TypeError(
            f"from_dask takes a dask.array, got {type(x).__name__}; td.distribute takes NumPy's"
        )
    _check_mesh(mesh)
    check_chunks("x", x)
    _check_dtype(x.dtype)
    cluster, tiling = mesh.cluster, Tiling(x.shape, mesh.shape, _checked(placements))
    room = room_of(cluster, alone=True, timeout=timeout)
    _refuse_large_blocks(tiling, x.dtype, room)
    _refuse_other_clients(x, cluster.client)
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    regions = tiling.regions
    touching = {region: list(touching_chunks(edges_of(x), region)) for region in regions}
    _refuse_two_copies(touching, x.dtype, room)
    chunks = _Chunks(x, cluster.client)
    blocks = []
    for rank, region in enumerate(regions):
        shape = tuple(b - a for a, b in region)
        where = [within(common, region) for _, common, _ in touching[region]]
        parts = [chunks.part(*found) for found in touching[region]]
        made = shape, x.dtype.name, cluster.backend, where
        blocks.append(cluster.submit(rank, _assemble, *made, *parts, name=name))
    what = f"taking over {x.npartitions} chunks of {x.shape}"
    cluster.wait(blocks, what, timeout, cancel=True)
    return ShardedArray(mesh, tiling, x.dtype, tuple(blocks), "from_dask")


class _Chunks:
    """The chunks of x, and parts of them, as futures."""

    def __init__(self, x: da.Array, client: Client) -> None:
        self.client, self.x = client, client.persist(x)
        self.futures = {future.key: future for future in futures_of(self.x)}
        self.parts: dict[Any, Future] = {}

    def part(self, index: tuple[int, ...], common: Region, chunk: Region) -> Future:
        """What lies in ``common``: a task of its own, so that only that travels."""
        future = self.futures[(self.x.name, *index)]
        if common == chunk:
            return future
        if (index, common) not in self.parts:
            self.parts[index, common] = self.client.submit(
                operator.getitem, future, within(common, chunk),
                key=f"part-{uuid.uuid4().hex}", pure=False,
            )  # fmt: skip
        return self.parts[index, common]


def _assemble(
    shape: tuple[int, ...], dtype: str, backend: str, where: list[tuple[slice, ...]], *parts: Any
) -> Any:
    """A block of the parts of chunks that it consists of (on its worker)."""
    xp, dtype = namespace(backend), as_dtype(dtype)
    parts = [
        part if array_namespace(part) is xp else xp.asarray(off_device(part)) for part in parts
    ]
    if len(parts) == 1:
        return xp.ascontiguousarray(parts[0]).reshape(shape).astype(dtype, copy=False)
    block = xp.empty(shape, dtype)
    for index, part in zip(where, parts, strict=True):
        block[index] = part
    return block


def _refuse_other_clients(x: da.Array, client: Client) -> None:
    others = [future.client for future in futures_of(x) if future.client is not client]
    if others:
        raise PlacementError(
            f"x has parts that {others[0]!r} persisted, the mesh is {client!r}'s; persist it "
            f"there, with mesh.cluster.client.persist(x), or give from_dask the lazy x"
        )


def _refuse_two_copies(touching: dict[Region, list], dtype: np.dtype, room: Room) -> None:
    sizes = (prod(b - a for a, b in region) for region, found in touching.items() if found[1:])
    twice = 2 * max(sizes, default=0) * dtype.itemsize
    if twice > room.bytes:
        raise DoesNotFitError(
            f"a worker would hold a block in parts and put together, {format_bytes(twice)}, and "
            f"may hold {room}; shard x over more ranks, or rechunk it so that "
            f"each block is one chunk"
        )


def to_dask(array: ShardedArray) -> da.Array:
    """A dask.array of the blocks where they are: a chunk per block, one of each set of replicas.

    Nothing moves, and the blocks live as long as the dask.array does. Compute it with the mesh's
    client. Raises PlacementError for Partial(): addends are no blocks.
    """
    if Partial() in array.placements:
        raise PlacementError(
            f"an array placed as {array.placements} has addends on its ranks, not blocks; "
            f"td.redistribute it to Replicate() or a Shard first"
        )
    array.mesh.cluster.again(array.blocks)
    blocks: dict[Region, Future] = {}
    for at, block in zip(array.tiling.coordinates(), array.blocks, strict=True):
        blocks.setdefault(array.tiling.region(at), block)
    edges = [_borders(ends) for ends in zip(*blocks, strict=True)]
    name = f"tiledask_blocks-{tokenize([str(block.key) for block in array.blocks])}"
    graph = {
        (name, *(e.index(a) for e, (a, _) in zip(edges, region, strict=True))): block
        for region, block in blocks.items()
        if array.nbytes == 0 or all(a < b for a, b in region)
    }
    chunks = tuple(tuple(b - a for a, b in pairwise(e)) for e in edges)
    xp = namespace(array.mesh.cluster.backend)
    return da.Array(graph, name, chunks, meta=xp.empty((0,) * array.ndim, array.dtype))


def _borders(ends: Iterable[tuple[int, int]]) -> Edges:
    """Where the intervals that are not empty begin and end; (0, 0) if all are empty."""
    return tuple(sorted({at for a, b in ends if a < b for at in (a, b)})) or (0, 0)
