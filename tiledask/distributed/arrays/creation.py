"""Makes arrays whose blocks live on workers: from an array here, by a function there, of chunks.

    distribute(a, mesh, (Shard(0), Shard(1)))
        a  --save once-->  spool file  --each slot reads its region-->  one block per rank
        a  --cut-->  a task's argument, where a worker does not see the spool  -->  the same
    from_dask(x, mesh, (Shard(0), Shard(1)))
        x  --cut where its chunks lie-->  parts  --put together in the slots-->  the same

Blocks are made by tasks (from the file or the argument, by a function, of parts), never scattered:
when a worker dies, Dask runs the task again and the block is back.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.core import flatten
from distributed import futures_of

# so that A @ B and A.redistribute have what computes them, as soon as there is an array
import tiledask.distributed.arrays.redistribute
import tiledask.distributed.products.matmul  # noqa: F401
from tiledask.distributed.arrays.array import ShardedArray, placements_of
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.deadlines import bounded
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Partial, Placement, Tiling
from tiledask.plan.products.regions import Region, extents_of, region_size, slices
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import array_namespace, as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["distribute", "from_dask", "from_function"]

SLAB = 2**25
"""Bytes of a block that are read from a file at a time."""


@bounded
def distribute(
    array: np.ndarray,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    timeout: float | None = None,
) -> ShardedArray:
    """``array`` as a ShardedArray: one placement per mesh axis, uneven extents allowed.

    The array is copied once, so changing it later changes nothing: to
    the cluster's spool folder, or into the tasks of workers that do not see that.
    Raises PlacementError for placements that the mesh or the shape does not allow.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise PlacementError(
            "a masked array has values that do not count, and blocks hold only values; "
            "fill it first: array.filled(0)"
        )
    array = np.asarray(off_device(array))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    tiling = _placed(array.shape, array.dtype, mesh, placements, timeout)
    part, ranks = mesh.cluster.keep(array), zip(mesh.at, tiling.regions, strict=True)
    given = [(part(slot, region), region) for slot, region in ranks]
    return _made("distribute", _read_block, given, mesh, tiling, array.dtype, timeout)


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
    found = as_dtype(dtype)
    tiling = _placed(tuple(shape), found, mesh, placements, timeout)
    given = [(function, region) for region in tiling.regions]
    return _made("from_function", _make_block, given, mesh, tiling, found, timeout)


@bounded
def from_dask(
    x: "da.Array",
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    timeout: float | None = None,
) -> ShardedArray:
    """``x`` as a ShardedArray: computed on the mesh's cluster, blocks put together where they lie.

    Chunks need not agree with blocks: each rank fetches the parts of chunks that it needs. A
    chunk is dropped when the blocks have what they need of it, and made again if a block is lost.
    Nothing passes through this process.

    Raises PlacementError for placements that the mesh or the shape does not allow and for unknown
    chunk sizes; DoesNotFitError if a worker cannot hold a block twice, in parts and put together.
    """
    import dask.array as da

    if not isinstance(x, da.Array):
        raise TypeError(
            f"from_dask takes a dask.array, got {type(x).__name__}; td.distribute takes NumPy's"
        )
    if any(np.isnan(x.shape)):
        raise PlacementError(
            f"x has chunks of unknown size, its shape is {x.shape}, and blocks need numbers; "
            f"x.compute_chunk_sizes() finds them out"
        )
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    tiling = _placed(x.shape, x.dtype, mesh, placements, timeout, x)
    # parts are cut where the chunks lie, so that only they travel, and put together in the slots
    client = mesh.cluster.client
    x = client.persist(x)
    parts = client.persist([x[slices(region)] for region in tiling.regions])
    futures = {future.key: future for future in futures_of(parts)}
    given = [
        (part.chunks, *(futures[key] for key in flatten(part.__dask_keys__()))) for part in parts
    ]
    return _made("from_dask", _assemble, given, mesh, tiling, x.dtype, timeout)


# -- what is refused, and what all have in common --------------------------------------------------


def _placed(
    shape: tuple[int, ...],
    dtype: np.dtype,
    mesh: Any,
    placements: Placement | Iterable[Placement],
    timeout: float | None,
    chunked: Any = None,
) -> Tiling:
    """How such an array lies, refused before anything runs: TypeError for what is no Mesh,
    PlacementError for what no blocks can be, DoesNotFitError where a worker could not hold its
    block, twice where it is put together of parts of a ``chunked`` one."""
    if not isinstance(mesh, Mesh):
        kind = Cluster if isinstance(mesh, Cluster) else type(mesh)
        raise TypeError(
            f"arrays lie on a mesh, got {kind.__name__}; td.Mesh(cluster, (2, 2)) makes one"
        )
    mesh.cluster.check_alive()
    placements = placements_of(placements)
    if Partial() in placements:
        raise PlacementError(
            f"an array cannot be distributed as {placements}: its partial sums are not unique. Use "
            f"Shard(dim) or Replicate()"
        )
    tiling = Tiling(shape, mesh.shape, placements)
    if dtype.kind not in "fiu" and dtype.name != "bfloat16":
        way = "convert first, for example with astype('float32')"
        if dtype.kind == "c":
            way = "distribute its .real and its .imag, an array each"
        raise PlacementError(
            f"blocks hold real numbers (float16/32/64, bfloat16 or integers), got dtype {dtype}; "
            f"{way}"
        )
    room = room_of(mesh.cluster, alone=True, timeout=timeout, slots=mesh.at)
    largest = max(map(region_size, tiling.regions)) * dtype.itemsize
    in_parts = chunked is not None and any(
        chunked[slices(region)].npartitions > 1 for region in tiling.regions
    )
    if (needs := largest * (1 + in_parts)) > room.bytes:
        raise DoesNotFitError(
            f"the largest block of {shape} {dtype} under {placements} has"
            f"{' in parts and put together' * in_parts} {format_bytes(needs)}, a worker may hold "
            f"{room}; shard it over at least {-(-needs // max(1, room.bytes))} times as many ranks"
        )
    return tiling


def _made(
    made_by: str,
    function: Callable[..., Any],
    given: Iterable[Sequence[Any]],
    mesh: Mesh,
    tiling: Tiling,
    dtype: np.dtype,
    timeout: float | None,
) -> ShardedArray:
    """The array, once ``function`` has made each rank's block of what that is ``given``."""
    ranks, how = zip(mesh.at, given, strict=True), (dtype.name, mesh.cluster.backend)
    blocks = mesh.cluster.submit_all(
        function, {slot: (*how, *mine) for slot, mine in ranks}, name=made_by
    )
    what = f"{made_by} of {tiling.shape} on {mesh.shape}"
    mesh.cluster.wait(blocks, what, timeout, cancel=True)
    return ShardedArray(mesh, tiling, dtype, tuple(blocks), made_by)


# -- on a worker -----------------------------------------------------------------------------------


def _read_block(dtype: str, backend: str, source: str | np.ndarray, region: Region) -> Any:
    """A block of a file in the spool, or of what `Cluster.keep` gave the task."""
    found, xp = as_dtype(dtype), namespace(backend)
    if not isinstance(source, str):
        return xp.asarray(source.view(found))
    block = xp.empty(extents_of(region), found)
    # the pages of a mapped file are this process's until it is unmapped: a slab of rows at a time
    (first, last), *others = region or [(0, 1)]
    step = max(1, SLAB // max(1, block.nbytes // max(1, last - first)))
    for start, stop in pairwise([*range(first, last, step), last]):
        whole = np.load(source, mmap_mode="r", allow_pickle=False)
        whole = whole.view(found)  # bfloat16 is saved as bytes without a name
        part = whole[slices(((start, stop), *others)) if region else ...]
        block[slice(start - first, stop - first) if region else ...] = xp.asarray(part)
    return block


def _make_block(dtype: str, backend: str, function: Callable[..., Any], region: Region) -> Any:
    """A block that ``function`` makes of its region."""
    found = as_dtype(dtype)
    block = namespace(backend).asarray(function(slices(region)), order="C")
    if not np.can_cast(block.dtype, found, "same_kind"):
        way = "return its .real" if block.dtype.kind == "c" else "cast it in the function"
        raise PlacementError(
            f"the function gave {block.dtype} for an array of {dtype}, which would lose "
            f"what is not {found.kind!r}; {way} if you mean it"
        )
    if block.shape != (expected := extents_of(region)):
        raise PlacementError(
            f"the function gave a block of shape {block.shape} for the region {region}, which "
            f"has shape {expected}; return exactly the slices it is called with"
        )
    return block.astype(found, copy=False)


def _assemble(dtype: str, backend: str, chunks: tuple[tuple[int, ...], ...], *parts: Any) -> Any:
    """A block of the parts of chunks that it consists of."""
    from dask.array.core import slices_from_chunks

    xp, found = namespace(backend), as_dtype(dtype)
    here = [part if array_namespace(part) is xp else xp.asarray(off_device(part)) for part in parts]
    shape = tuple(map(sum, chunks))
    if len(here) == 1:
        return xp.ascontiguousarray(here[0]).reshape(shape).astype(found, copy=False)
    block = xp.empty(shape, found)
    for region, part in zip(slices_from_chunks(chunks), here, strict=True):
        block[region] = part
    return block
