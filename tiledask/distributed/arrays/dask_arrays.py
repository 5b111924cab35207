"""A dask.array's chunks become a mesh's blocks; `ShardedArray.to_dask` is the way back."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.core import flatten
from distributed import Future, futures_of

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.arrays.creation import (
    check_dtype,
    check_mesh,
    checked,
    refuse_large_blocks,
)
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.deadlines import bounded
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Placement, Tiling
from tiledask.plan.products.regions import slices
from tiledask.tile.backend import array_namespace, as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["from_dask"]


@bounded
def from_dask(
    x: da.Array,
    mesh: Mesh,
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
    check_mesh(mesh)
    if any(np.isnan(x.shape)):
        raise PlacementError(
            f"x has chunks of unknown size, its shape is {x.shape}, and blocks need numbers; "
            f"x.compute_chunk_sizes() finds them out"
        )
    check_dtype(x.dtype)
    cluster, tiling = mesh.cluster, Tiling(x.shape, mesh.shape, checked(placements))
    room = room_of(cluster, alone=True, timeout=timeout, slots=mesh.at)
    kept = futures_of(x)
    if others := [future.client for future in kept if future.client is not cluster.client]:
        raise PlacementError(
            f"x has parts that {others[0]!r} persisted, the mesh is {cluster.client!r}'s; persist "
            f"it there, with mesh.cluster.client.persist(x), or give from_dask the lazy x"
        )
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    # parts are cut where the chunks lie, so that only they travel, and put together in the slots
    copies = 2 if any(x[slices(region)].npartitions > 1 for region in tiling.regions) else 1
    refuse_large_blocks(tiling, x.dtype, room, copies)
    x = cluster.client.persist(x)
    parts = [x[slices(region)] for region in tiling.regions]
    parts = cluster.client.persist(parts)
    given = {
        slot: (part.chunks, x.dtype.name, cluster.backend, *_futures(part))
        for slot, part in zip(mesh.at, parts, strict=True)
    }
    blocks = cluster.submit_all(_assemble, given, name=name)
    what = f"taking over {x.npartitions} chunks of {x.shape}"
    try:
        cluster.wait(blocks, what, timeout, cancel=True)
    except BaseException:
        there = {future.key for future in kept}
        made = [future for future in futures_of([x, *parts]) if future.key not in there]
        with suppress(Exception):  # of a client that is closed: nothing is left there
            cluster.client.cancel(made, force=True)
        raise
    return ShardedArray(mesh, tiling, x.dtype, tuple(blocks), "from_dask")


def _futures(x: da.Array) -> list[Future[Any]]:
    """The chunks of a persisted ``x``, in order."""
    found = {future.key: future for future in futures_of(x)}
    return [found[key] for key in flatten(x.__dask_keys__())]


def _assemble(chunks: tuple[tuple[int, ...], ...], dtype: str, backend: str, *parts: Any) -> Any:
    """A block of the parts of chunks that it consists of (on its worker)."""
    xp, found = namespace(backend), as_dtype(dtype)
    here = [part if array_namespace(part) is xp else xp.asarray(off_device(part)) for part in parts]
    shape = tuple(map(sum, chunks))
    if len(here) == 1:
        return xp.ascontiguousarray(here[0]).reshape(shape).astype(found, copy=False)
    block = xp.empty(shape, found)
    for region, part in zip(slices_from_chunks(chunks), here, strict=True):
        block[region] = part
    return block
