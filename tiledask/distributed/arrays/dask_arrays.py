"""A dask.array's chunks become a mesh's blocks; `ShardedArray.to_dask` is the way back."""

import operator
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, Future, futures_of

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.arrays.creation import (
    check_dtype,
    check_mesh,
    checked,
    refuse_large_blocks,
)
from tiledask.distributed.arrays.mesh import Mesh, Submesh, on_whole_mesh
from tiledask.distributed.cluster.room import Room, room_of
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.products.lazy_graph import check_chunks, edges_of, touching_chunks
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Placement, Tiling
from tiledask.plan.products.regions import Region, region_size, within
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import array_namespace, as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["from_dask"]


@bounded
def from_dask(
    x: da.Array,
    mesh: Mesh | Submesh,
    placements: Iterable[Placement],
    *,
    name: str = "from_dask",
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
    mesh, placements = on_whole_mesh(mesh, placements)
    check_mesh(mesh)
    check_chunks("x", x)
    check_dtype(x.dtype)
    cluster, tiling = mesh.cluster, Tiling(x.shape, mesh.shape, checked(placements, x.dtype))
    room = room_of(cluster, alone=True, timeout=timeout, slots=mesh.at)
    refuse_large_blocks(tiling, x.dtype, room)
    others = [future.client for future in futures_of(x) if future.client is not cluster.client]
    if others:
        raise PlacementError(
            f"x has parts that {others[0]!r} persisted, the mesh is {cluster.client!r}'s; persist "
            f"it there, with mesh.cluster.client.persist(x), or give from_dask the lazy x"
        )
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    regions = tiling.regions
    touching = {region: list(touching_chunks(edges_of(x), region)) for region in regions}
    _refuse_two_copies(touching, x.dtype, room)
    chunks = _Chunks(x, cluster.client)
    given = {}
    for slot, region in zip(mesh.at, regions, strict=True):
        shape = tuple(b - a for a, b in region)
        where = [within(common, region) for _, common, _ in touching[region]]
        parts = [chunks.part(*found) for found in touching[region]]
        made = shape, x.dtype.name, cluster.backend, where
        given[slot] = *made, *parts
    blocks = cluster.submit_all(_assemble, given, name=name)
    what = f"taking over {x.npartitions} chunks of {x.shape}"
    try:
        cluster.wait(blocks, what, timeout, cancel=True)
    except BaseException:
        chunks.cancel()
        raise
    return ShardedArray(mesh, tiling, x.dtype, tuple(blocks), "from_dask")


class _Chunks:
    """The chunks of x, and parts of them, as futures."""

    def __init__(self, x: da.Array, client: Client) -> None:
        kept = {future.key for future in futures_of(x)}
        self.client, self.x = client, client.persist(x)
        self.futures = {future.key: future for future in futures_of(self.x)}
        self.made = [future for key, future in self.futures.items() if key not in kept]
        self.parts: dict[Any, Future[Any]] = {}

    def part(self, index: tuple[int, ...], common: Region, chunk: Region) -> Future[Any]:
        """What lies in ``common``: a task of its own, so that only that travels."""
        future: Future[Any] = self.futures[(self.x.name, *index)]
        if common == chunk:
            return future
        if (index, common) not in self.parts:
            self.parts[index, common] = self.client.submit(
                operator.getitem,
                future,
                within(common, chunk),
                key=f"part-{uuid.uuid4().hex}",
                pure=False,
            )
        return self.parts[index, common]

    def cancel(self) -> None:
        """None; what was begun here is cancelled, and what others had persisted stays."""
        with suppress(Exception):  # of a client that is closed: nothing is left there
            self.client.cancel([*self.made, *self.parts.values()], force=True)


def _assemble(
    shape: tuple[int, ...], dtype: str, backend: str, where: list[tuple[slice, ...]], *parts: Any
) -> Any:
    """A block of the parts of chunks that it consists of (on its worker)."""
    xp, found = namespace(backend), as_dtype(dtype)
    here = [part if array_namespace(part) is xp else xp.asarray(off_device(part)) for part in parts]
    if len(here) == 1:
        return xp.ascontiguousarray(here[0]).reshape(shape).astype(found, copy=False)
    block = xp.empty(shape, found)
    for index, part in zip(where, here, strict=True):
        block[index] = part
    return block


def _refuse_two_copies(touching: dict[Region, list[Any]], dtype: np.dtype, room: Room) -> None:
    sizes = (region_size(region) for region, found in touching.items() if found[1:])
    twice = 2 * max(sizes, default=0) * dtype.itemsize
    if twice > room.bytes:
        raise DoesNotFitError(
            f"a worker would hold a block in parts and put together, {format_bytes(twice)}, and "
            f"may hold {room}; shard x over more ranks, or rechunk it so that "
            f"each block is one chunk"
        )
