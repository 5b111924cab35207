"""Arrays whose blocks live on workers: make them, look at them, bring them back.

    distribute(a, mesh, (Shard(0), Shard(1)))
        a  --save once-->  spool file  --each slot reads its region-->  one block per rank

Blocks are made by tasks (from the file, or from a function), never scattered: when a worker
dies, Dask runs the task again and the block is back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from distributed import Future

from tiledask.dist.mesh import Mesh
from tiledask.dist.recovery import anchor
from tiledask.dist.room import Room, room_of
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan import html
from tiledask.plan.products.placement import Partial, Placement, Region, Replicate, Shard, Tiling
from tiledask.plan.units import format_bytes
from tiledask.tile import TileCount
from tiledask.tile.backend import as_dtype, namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["Both", "ShardedArray", "distribute", "from_function", "read_block", "to_numpy"]


SLAB = 2**25
"""Bytes of a block that are read from a file at a time."""


class Both(NamedTuple):
    """A prediction and the measurement of the same thing; None if it could not be measured."""

    predicted: Any
    measured: Any


@dataclass(frozen=True, eq=False, repr=False)
class ShardedArray:
    """One array, a block of it on every rank of a mesh."""

    __array_ufunc__ = None  # numpy_array @ sharded is nobody's guess: both must be sharded

    mesh: Mesh
    tiling: Tiling
    dtype: np.dtype
    blocks: tuple[Future, ...] = field(repr=False)
    """The block of rank 0, 1, ..."""
    made_by: str = ""
    """The operation that made it, such as "summa" or "all_gather"."""
    traffic: Both | None = None
    """Traffic of that operation, predicted and measured."""
    memory: Both | None = None
    """Ledger of that operation, a place per rank, predicted and measured."""
    seconds: float = 0.0
    """How long that operation took, measured by the client."""
    spent: tuple = ()
    """Where each rank's time went in it, for a product: multiply, read, wait, sum, rest."""
    tiles: TileCount | None = None
    """What the tile kernels of a product loaded on all workers, counted as they ran; None where
    they cannot be looked into, as BLAS."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tiling.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self.tiling.placements

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, counted once."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of each rank's block."""
        shapes = (self.tiling.block_shape(at) for at in self.tiling.coordinates())
        return tuple(prod(shape) * self.dtype.itemsize for shape in shapes)

    @cached_property
    def anchors(self) -> tuple[Future, ...]:
        """Per rank an empty task after its block: what reads the block past Dask depends on it."""
        submit = self.mesh.cluster.submit
        return tuple(submit(b.slot, anchor, b, name="anchor", beside=True) for b in self.blocks)

    @property
    def T(self) -> "ShardedArray":
        """The transposed matrix: every block seen the other way round, where it lies."""
        if self.ndim != 2:
            raise PlacementError(
                f"only a matrix is transposed, this array has {self.ndim} dimensions {self.shape}"
            )
        turned = (Shard(1 - p.dim) if isinstance(p, Shard) else p for p in self.tiling.placements)
        cluster = self.mesh.cluster
        blocks = [cluster.submit(b.slot, _transposed, b, name="transpose") for b in self.blocks]
        tiling = Tiling(self.shape[::-1], self.mesh.shape, tuple(turned))
        return ShardedArray(self.mesh, tiling, self.dtype, tuple(blocks), "transpose")

    def to_dask(self) -> Any:
        """A dask.array of the same blocks, which stay where they are; no addends."""
        from tiledask.dist.dask_arrays import to_dask

        return to_dask(self)

    def __matmul__(self, other: "ShardedArray") -> "ShardedArray":
        from tiledask.dist.matmul import matmul

        return matmul(self, other)

    def __repr__(self) -> str:
        return (
            f"ShardedArray({'x'.join(map(str, self.shape))} {self.dtype}, mesh {self.mesh.shape}, "
            f"{', '.join(map(repr, self.placements))})"
        )

    def _repr_html_(self) -> str:
        blocks = zip(self.tiling.coordinates(), self.block_bytes, strict=True)
        rows = [
            (rank, at, " x ".join(f"{start}:{stop}" for start, stop in self.tiling.region(at)),
             format_bytes(nbytes))
            for rank, (at, nbytes) in enumerate(blocks)
        ]  # fmt: skip
        return html.table(("rank", "mesh", "holds", "bytes"), rows, repr(self))


def distribute(
    array: np.ndarray,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    name: str = "block",
    timeout: float | None = None,
) -> ShardedArray:
    """``array`` as a ShardedArray: one placement per mesh axis, uneven extents allowed.

    The array is copied once to the cluster's spool folder, so changing it later changes nothing.
    Raises PlacementError for placements that the mesh or the shape does not allow.
    """
    _check_mesh(mesh)
    if isinstance(array, np.ma.MaskedArray):
        raise PlacementError(
            "a masked array has values that do not count, and blocks hold only values; "
            "fill it first: array.filled(0)"
        )
    array = np.asarray(off_device(array))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    tiling = Tiling(array.shape, mesh.shape, _checked(placements))
    _check_dtype(array.dtype)
    _refuse_large_blocks(tiling, array.dtype, room_of(mesh.cluster, alone=True, timeout=timeout))
    path = mesh.cluster.keep(array)
    blocks = [
        mesh.cluster.submit(
            rank,
            read_block,
            path,
            tiling.region(at),
            array.dtype.name,
            mesh.cluster.backend,
            name=name,
        )
        for rank, at in enumerate(tiling.coordinates())
    ]
    what = f"distributing {array.shape} over {mesh.shape}"
    mesh.cluster.wait(blocks, what, timeout, cancel=True)
    return ShardedArray(mesh, tiling, array.dtype, tuple(blocks), "distribute")


def from_function(
    function: Callable[[tuple[slice, ...]], Any],
    shape: Iterable[int],
    dtype: Any,
    mesh: Mesh,
    placements: Iterable[Placement],
    *,
    name: str = "block",
    timeout: float | None = None,
) -> ShardedArray:
    """A ShardedArray whose blocks are made where they live: ``function(slices)`` of each region.

    ``function`` must give the same block whenever it is called with the same slices (a lost
    block is made again), in the shape of the slices; the result is cast to ``dtype``.
    """
    _check_mesh(mesh)
    tiling = Tiling(tuple(shape), mesh.shape, _checked(placements))
    dtype = as_dtype(dtype)
    _check_dtype(dtype)
    _refuse_large_blocks(tiling, dtype, room_of(mesh.cluster, alone=True, timeout=timeout))
    backend = mesh.cluster.backend
    blocks = [
        mesh.cluster.submit(
            rank, _make, function, tiling.region(at), dtype.name, backend, name=name
        )
        for rank, at in enumerate(tiling.coordinates())
    ]
    mesh.cluster.wait(blocks, f"making {tiling.shape} on {mesh.shape}", timeout, cancel=True)
    return ShardedArray(mesh, tiling, dtype, tuple(blocks), "from_function")


def to_numpy(array: ShardedArray, timeout: float | None = None) -> np.ndarray:
    """The whole array on this machine; addends are summed in rank order.

    Raises DeadlineError after ``timeout`` seconds (default 300), ClusterLostError if a slot has
    lost its worker; the array stays what it is, and can be asked for again.
    """
    if not isinstance(array, ShardedArray):
        return off_device(array)
    partial = [isinstance(p, Partial) for p in array.placements]
    wanted = [
        (rank, at)
        for rank, at in enumerate(array.tiling.coordinates())
        if all(
            i == 0 or not isinstance(p, Replicate)
            for i, p in zip(at, array.placements, strict=True)
        )
    ]
    cluster, found = array.mesh.cluster, [array.blocks[rank] for rank, _ in wanted]
    cluster.again(found)
    blocks = cluster.gather(found, f"collecting {array!r}", timeout)
    whole = (
        np.zeros(array.shape, array.dtype) if any(partial) else np.empty(array.shape, array.dtype)
    )
    for (_, at), block in zip(wanted, blocks, strict=True):
        where = slices(array.tiling.region(at))
        if any(partial):
            whole[where] += off_device(block)
        else:
            whole[where] = off_device(block)
    return whole


def slices(region: Region) -> tuple[slice, ...]:
    """``region`` as an index."""
    return tuple(slice(start, stop) for start, stop in region)


def _transposed(block: Any) -> Any:
    return block.T


def _check_mesh(mesh: Any) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"arrays lie on a mesh, got {type(mesh).__name__}; td.Mesh(cluster, (2, 2)) makes one"
        )
    mesh.cluster.check_alive()


def _checked(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    placements = (placements,) if isinstance(placements, Placement) else tuple(placements)
    if any(isinstance(p, Partial) for p in placements):
        raise PlacementError(
            f"an array cannot be distributed as {placements}: its addends are not unique; "
            f"Partial() is only what a product leaves behind. Use Shard(dim) or Replicate()"
        )
    return placements


def _check_dtype(dtype: np.dtype) -> None:
    if dtype.kind not in "fiu" and dtype.name != "bfloat16":
        raise PlacementError(
            f"blocks hold real numbers (float16/32/64, bfloat16 or integers), got dtype {dtype}; "
            f"convert first, for example with astype('float32')"
        )


def _refuse_large_blocks(tiling: Tiling, dtype: np.dtype, room: Room) -> None:
    """Raise DoesNotFitError, before anything runs, if a worker could not even hold its block."""
    largest = max(prod(tiling.block_shape(at)) for at in tiling.coordinates()) * dtype.itemsize
    if largest > room.bytes:
        raise DoesNotFitError(
            f"the largest block of {tiling.shape} {dtype} under {tiling.placements} has "
            f"{format_bytes(largest)}, a worker may hold {room}; shard it over "
            f"at least {-(-largest // max(1, room.bytes))} times as many ranks"
        )


def read_block(path: str, region: Region, dtype: str, backend: str) -> Any:
    """One block, read from the spool (on the worker)."""
    dtype, xp = as_dtype(dtype), namespace(backend)
    block = xp.empty([stop - start for start, stop in region], dtype)
    # the pages of a mapped file are this process's until it is unmapped: a slab of rows at a time
    (first, last), *others = region or [(0, 1)]
    across = max(1, block.nbytes // max(1, last - first))
    for start, stop in pairwise([*range(first, last, max(1, SLAB // across)), last]):
        whole = np.load(path, mmap_mode="r", allow_pickle=False)
        whole = whole.view(dtype)  # bfloat16 is saved as bytes without a name
        place = (slice(start - first, stop - first),) if region else ...
        block[place] = xp.asarray(whole[slices(((start, stop), *others)) if region else ...])
    return block


def _make(function: Callable, region: Region, dtype: str, backend: str) -> Any:
    """One block, made by ``function`` (on the worker)."""
    block = namespace(backend).asarray(function(slices(region)), order="C")
    if not np.can_cast(block.dtype, as_dtype(dtype), "same_kind"):
        raise PlacementError(
            f"the function gave {block.dtype} for an array of {dtype}, which would lose "
            f"what is not {as_dtype(dtype).kind!r}; cast it in the function if you mean it"
        )
    block = block.astype(as_dtype(dtype), copy=False)
    expected = tuple(stop - start for start, stop in region)
    if block.shape != expected:
        raise PlacementError(
            f"the function gave a block of shape {block.shape} for the region {region}, which "
            f"has shape {expected}; return exactly the slices it is called with"
        )
    return block
