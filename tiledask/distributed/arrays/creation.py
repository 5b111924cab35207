"""Makes arrays whose blocks live on workers: from an array here, by a function there, of chunks.

    distribute    a  --cut, saved-->  a file or an argument of each slot's task  -->  a block
    from_dask     x  --cut where its chunks lie-->  parts  --put together in the slots-->  a block

Blocks are made by tasks, never scattered: when a worker dies, Dask runs the task again and the
block is back.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import futures_of

# so that A @ B has what computes it, as soon as there is an array
import tiledask.distributed.products.matmul  # noqa: F401
from tiledask.distributed.arrays.array import ShardedArray, placements_of
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.transport.blocks import lent, submit_blocks
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Partial, Placement, Tiling
from tiledask.plan.products.regions import Region, extents_of, region_size, slices
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import array_namespace, as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["distribute", "from_dask", "from_function"]


@bounded
def distribute(
    array: np.ndarray,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    timeout: float | None = None,
) -> ShardedArray:
    """``array`` as a ShardedArray: one placement per mesh axis, uneven extents allowed.

    The array is copied once, so changing it later changes nothing: to the cluster's spool folder,
    or into the tasks of workers that do not see that. Raises PlacementError for placements that
    the mesh or the shape does not allow.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise PlacementError("blocks hold no mask of a masked array; fill it: array.filled(0)")
    array = np.asarray(off_device(array))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    tiling = _placed(array.shape, array.dtype, mesh, placements)
    part, ranks = mesh.cluster.keep(array), zip(mesh.at, tiling.regions, strict=True)
    given = [(part(slot, region),) for slot, region in ranks]
    return _made(_read_block, given, mesh, tiling, array.dtype, "distribute", timeout)


@bounded
def from_function(
    function: Callable[..., Any],
    shape: Iterable[int],
    dtype: Any,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    timeout: float | None = None,
) -> ShardedArray:
    """A ShardedArray whose blocks are made where they live: ``function(slices)`` of each region.

    ``function`` must give the same block whenever it is called with the same slices (a lost
    block is made again), in the shape of the slices; the result is cast to ``dtype``.
    """
    tiling = _placed(tuple(shape), found := as_dtype(dtype), mesh, placements)
    given = [(function, region) for region in tiling.regions]
    return _made(_make_block, given, mesh, tiling, found, "from_function", timeout)


@bounded
def from_dask(
    x: "da.Array",
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    timeout: float | None = None,
) -> ShardedArray:
    """``x`` as a ShardedArray: computed on the mesh's cluster, blocks put together where they lie.

    Chunks need not agree with blocks: each rank fetches the parts of chunks that it needs, and
    nothing passes through this process. Raises PlacementError for placements that the mesh or the
    shape does not allow and for unknown chunk sizes, DoesNotFitError if a worker cannot hold a
    block twice, in parts and put together.
    """
    import dask.array as da

    if not isinstance(x, da.Array):
        raise TypeError(
            f"from_dask takes a dask.array, got {type(x).__name__}; td.distribute takes NumPy's"
        )
    if any(np.isnan(x.shape)):
        words = "x has chunks of unknown size; x.compute_chunk_sizes() finds them out"
        raise PlacementError(f"{words}, its shape is {x.shape}")
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    tiling = _placed(x.shape, x.dtype, mesh, placements, copies=2)
    # parts are cut where the chunks lie, so that only they travel, and put together in the slots
    x = mesh.cluster.client.persist(x)
    parts = mesh.cluster.client.persist([x[slices(region)] for region in tiling.regions])
    futures = {future.key: future for future in futures_of(parts)}
    given = [(_looked_up(part.__dask_keys__(), futures),) for part in parts]
    return _made(_assemble, given, mesh, tiling, x.dtype, "from_dask", timeout)


def _looked_up(keys: Any, futures: dict[Any, Any]) -> Any:
    """Futures in the place of ``keys``, in lists as these are nested."""
    return [_looked_up(k, futures) for k in keys] if isinstance(keys, list) else futures[keys]


# -- what all have in common -----------------------------------------------------------------------


def _placed(
    shape: tuple[int, ...],
    dtype: np.dtype,
    mesh: Any,
    placements: Iterable[Placement],
    copies: int = 1,
) -> Tiling:
    """How such an array lies, refused before anything runs. A worker holds ``copies`` of its block
    while it is made."""
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"arrays lie on a mesh, got {type(mesh).__name__}; td.Mesh(cluster, (2, 2)) makes one"
        )
    mesh.cluster.check_alive()
    tiling = Tiling(shape, mesh.shape, placements_of(placements))
    if Partial() in tiling.placements:
        raise PlacementError(
            f"an array cannot be distributed as {tiling.placements}: its partial sums are not "
            f"unique; use Shard(dim) or Replicate()"
        )
    if dtype.kind not in "fiu" and dtype.name != "bfloat16":
        raise PlacementError(
            f"blocks hold real numbers (float16/32/64, bfloat16 or integers), got dtype {dtype}; "
            f"convert first, or of complex ones distribute .real and .imag, an array each"
        )
    room = room_of(mesh.cluster, slots=mesh.at)
    needs = copies * max(map(region_size, tiling.regions)) * dtype.itemsize
    if needs > room.bytes:
        raise DoesNotFitError(
            f"to make the largest block of {shape} {dtype} under {tiling.placements} takes "
            f"{format_bytes(needs)}, a worker may hold {room}; shard it over at least "
            f"{-(-needs // max(1, room.bytes))} times as many ranks"
        )
    return tiling


def _made(
    function: Callable[..., Any],
    given: Iterable[tuple[Any, ...]],
    mesh: Mesh,
    tiling: Tiling,
    dtype: np.dtype,
    made_by: str,
    timeout: float | None,
) -> ShardedArray:
    """The array, once ``function`` has made each rank's block of what that is ``given``."""
    cluster, ranks = mesh.cluster, zip(mesh.at, given, strict=True)
    args = {slot: (dtype.name, cluster.backend, *mine) for slot, mine in ranks}
    blocks = submit_blocks(cluster, function, args, made_by)
    what = f"{made_by} of {tiling.shape} on {mesh.shape}"
    cluster.wait(blocks, what, timeout, cancel=True)
    return ShardedArray(mesh, tiling, dtype, tuple(blocks), made_by)


# -- on a worker -----------------------------------------------------------------------------------


def _read_block(dtype: str, backend: str, source: str | np.ndarray) -> Any:
    """A block from a file in the spool, or from what `Cluster.keep` gave the task."""
    block = np.load(source, allow_pickle=False) if isinstance(source, str) else source
    # bfloat16 is saved as bytes
    return lent(namespace(backend).asarray(block.view(as_dtype(dtype))))


def _make_block(dtype: str, backend: str, function: Callable[..., Any], region: Region) -> Any:
    """A block that ``function`` makes of its region."""
    found = as_dtype(dtype)
    block = namespace(backend).asarray(function(slices(region)), order="C")
    expected = extents_of(region)
    if block.shape != expected or not np.can_cast(block.dtype, found, "same_kind"):
        raise PlacementError(
            f"the function gave a block of shape {block.shape} of {block.dtype} for the slices "
            f"{region}, must have shape {expected} and a type that {dtype} holds"
        )
    return lent(block.astype(found, copy=False))


def _assemble(dtype: str, backend: str, parts: Any) -> Any:
    """A block of the parts of chunks that it consists of, in lists as dask.array nests them."""
    from dask.array.core import concatenate3

    block, xp = concatenate3(parts) if isinstance(parts, list) else parts, namespace(backend)
    if array_namespace(block) is not xp:
        block = off_device(block)
    return lent(xp.asarray(block, as_dtype(dtype), order="C"))
