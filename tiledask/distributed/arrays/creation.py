"""Makes arrays whose blocks live on workers: from an array here, or by a function there.

    distribute(a, mesh, (Shard(0), Shard(1)))
        a  --save once-->  spool file  --each slot reads its region-->  one block per rank
        a  --cut-->  a task's argument, where a worker does not see the spool  -->  the same

Blocks are made by tasks (from the file or the argument, or by a function), never scattered: when a
worker dies, Dask runs the task again and the block is back.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# so that A @ B and A.redistribute have what computes them, as soon as there is an array
import tiledask.distributed.arrays.redistribute
import tiledask.distributed.products.matmul  # noqa: F401
from tiledask.distributed.arrays.array import ShardedArray, make_block, placements_of, read_block
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.room import Room, room_of
from tiledask.distributed.deadlines import bounded
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Partial, Placement, Tiling
from tiledask.plan.products.regions import region_size
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import as_dtype
from tiledask.tile.backend import to_numpy as off_device

__all__ = [
    "check_dtype",
    "check_mesh",
    "checked",
    "distribute",
    "from_function",
    "refuse_large_blocks",
]


@bounded
def distribute(
    array: np.ndarray,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    name: str = "distribute",
    timeout: float | None = None,
) -> ShardedArray:
    """``array`` as a ShardedArray: one placement per mesh axis, uneven extents allowed.

    The array is copied once, so changing it later changes nothing: to
    the cluster's spool folder, or into the tasks of workers that do not see that.
    Raises PlacementError for placements that the mesh or the shape does not allow.
    """
    check_mesh(mesh)
    if isinstance(array, np.ma.MaskedArray):
        raise PlacementError(
            "a masked array has values that do not count, and blocks hold only values; "
            "fill it first: array.filled(0)"
        )
    array = np.asarray(off_device(array))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    tiling = Tiling(array.shape, mesh.shape, checked(placements))
    check_dtype(array.dtype)
    room = room_of(mesh.cluster, alone=True, timeout=timeout, slots=mesh.at)
    refuse_large_blocks(tiling, array.dtype, room)
    kept, how = mesh.cluster.keep(array), (array.dtype.name, mesh.cluster.backend)
    given = {
        slot: (kept.part(slot, region), region, *how)
        for slot, region in zip(mesh.at, tiling.regions, strict=True)
    }
    blocks = mesh.cluster.submit_all(read_block, given, name=name)
    what = f"distributing {array.shape} over {mesh.shape}"
    mesh.cluster.wait(blocks, what, timeout, cancel=True)
    return ShardedArray(mesh, tiling, array.dtype, tuple(blocks), "distribute")


@bounded
def from_function(
    function: Callable[..., Any],
    shape: Iterable[int],
    dtype: Any,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    name: str = "distribute",
    timeout: float | None = None,
) -> ShardedArray:
    """A ShardedArray whose blocks are made where they live: ``function(slices)`` of each region.

    ``function`` must give the same block whenever it is called with the same slices (a lost
    block is made again), in the shape of the slices; the result is cast to ``dtype``. If any
    placement is Partial(), ranks with the same slices make parts of their own:
    ``function(slices, at)``, with the coordinates of the rank on the mesh.
    """
    check_mesh(mesh)
    dtype = as_dtype(dtype)
    placements = placements_of(placements)
    tiling = Tiling(tuple(shape), mesh.shape, placements)
    own = any(isinstance(p, Partial) for p in placements)
    check_dtype(dtype)
    room = room_of(mesh.cluster, alone=True, timeout=timeout, slots=mesh.at)
    refuse_large_blocks(tiling, dtype, room)
    backend = mesh.cluster.backend
    given = {
        slot: (function, tiling.region(at), dtype.name, backend, *((at,) if own else ()))
        for slot, at in zip(mesh.at, tiling.coordinates(), strict=True)
    }
    blocks = mesh.cluster.submit_all(make_block, given, name=name)
    mesh.cluster.wait(blocks, f"making {tiling.shape} on {mesh.shape}", timeout, cancel=True)
    return ShardedArray(mesh, tiling, dtype, tuple(blocks), "from_function")


def check_mesh(mesh: Any) -> None:
    """None if ``mesh`` is a Mesh of a cluster that runs; else TypeError or ClusterLostError."""
    if not isinstance(mesh, Mesh):
        kind = Cluster if isinstance(mesh, Cluster) else type(mesh)
        raise TypeError(
            f"arrays lie on a mesh, got {kind.__name__}; td.Mesh(cluster, (2, 2)) makes one"
        )
    mesh.cluster.check_alive()


def checked(placements: Placement | Iterable[Placement]) -> tuple[Placement, ...]:
    """One for each axis; PlacementError if one is Partial(), or as `placements_of` has it."""
    placements = placements_of(placements)
    if Partial() in placements:
        raise PlacementError(
            f"an array cannot be distributed as {placements}: its partial sums are not unique. Use "
            f"Shard(dim) or Replicate(), or let td.from_function make each rank's part"
        )
    return placements


def check_dtype(dtype: np.dtype) -> None:
    """None if blocks can have elements of ``dtype``; else PlacementError."""
    if dtype.kind not in "fiu" and dtype.name != "bfloat16":
        raise PlacementError(
            f"blocks hold real numbers (float16/32/64, bfloat16 or integers), got dtype {dtype}; "
            f"convert first, for example with astype('float32')"
        )


def refuse_large_blocks(tiling: Tiling, dtype: np.dtype, room: Room, copies: int = 1) -> None:
    """Raise DoesNotFitError, before anything runs, if a worker could not hold so many ``copies`` of
    its block."""
    largest = max(map(region_size, tiling.regions)) * dtype.itemsize * copies
    if largest > room.bytes:
        twice = " in parts and put together" * (copies > 1)
        raise DoesNotFitError(
            f"the largest block of {tiling.shape} {dtype} under {tiling.placements} has{twice} "
            f"{format_bytes(largest)}, a worker may hold {room}; shard it over "
            f"at least {-(-largest // max(1, room.bytes))} times as many ranks"
        )
