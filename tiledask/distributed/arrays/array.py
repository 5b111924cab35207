"""Arrays whose blocks live on workers: look at them, and bring them back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from dask.base import tokenize
from distributed import Future
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.tasks import slot_of
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.transport.blocks import lent, submit_blocks
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan import html
from tiledask.plan.products.placement import Partial, Placement, Shard, Tiling
from tiledask.plan.products.regions import Region, region_size, slices
from tiledask.plan.units import format_bytes
from tiledask.tile import TileCount
from tiledask.tile.backend import namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["Both", "ShardedArray", "Tiled", "operators", "placements_of", "to_numpy"]

if TYPE_CHECKING:
    import dask.array as da

SLAB = 2**25
"""Bytes of blocks up to which all are fetched at once."""


class Both(NamedTuple):
    """A prediction and the measurement of the same thing; None where there is none."""

    predicted: Any = None
    measured: Any = None


_NEITHER = Both()


class Tiled:
    """What has a Tiling: its shape and placements are those of the whole array."""

    __slots__ = ()
    tiling: Tiling

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tiling.shape

    @property
    def ndim(self) -> int:
        return len(self.tiling.shape)

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self.tiling.placements


@dataclass(frozen=True, eq=False, repr=False)
class ShardedArray(Tiled):
    """One array, a block of it on every rank of a mesh."""

    __array_ufunc__ = None  # numpy_array @ sharded is nobody's guess: both must be sharded

    mesh: Mesh
    tiling: Tiling
    dtype: np.dtype
    blocks: tuple[Future[Any], ...] = field(repr=False)
    """The block of rank 0, 1, ..."""
    made_by: str = ""
    """The operation that made it, such as "summa" or "all_gather"."""
    traffic: Both = _NEITHER
    """Traffic of that operation, predicted and measured."""
    memory: Both = _NEITHER
    """Ledger of that operation, a place per rank, predicted and measured."""
    seconds: float = 0.0
    """How long that operation took, measured by the client."""
    tiles: TileCount | None = None
    """What the tile kernels of a product loaded on all workers, counted as they ran; None where
    they cannot be looked into, as BLAS."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, counted once."""
        return prod(self.shape) * self.dtype.itemsize

    @cached_property
    def block_bytes(self) -> tuple[int, ...]:
        """Bytes of each rank's block."""
        return tuple(region_size(each) * self.dtype.itemsize for each in self.tiling.regions)

    @property
    def T(self) -> "ShardedArray":
        """The transposed matrix: every block seen the other way round, where it lies."""
        if self.ndim != 2:
            raise PlacementError(
                f"only a matrix is transposed, this array has {self.ndim} dimensions {self.shape}"
            )
        turned = (Shard(1 - p.dim) if isinstance(p, Shard) else p for p in self.tiling.placements)
        tiling = Tiling(self.shape[::-1], self.mesh.shape, tuple(turned))
        return self.mapped(attrgetter("T"), tiling, "transpose")

    def mapped(
        self, function: Callable[[Any], Any], tiling: Tiling, made_by: str
    ) -> "ShardedArray":
        """The array under ``tiling`` whose blocks are those of this one after ``function``."""
        held = {slot_of(block): (function, block) for block in self.blocks}
        blocks = submit_blocks(self.mesh.cluster, _apply, held, made_by)
        return ShardedArray(self.mesh, tiling, self.dtype, tuple(blocks), made_by)

    def to_dask(self) -> "da.Array":
        """A dask.array of the blocks where they are: a chunk per block, of replicas one.

        Nothing moves, and the blocks live as long as the dask.array does. Compute it with the
        mesh's client. Raises PlacementError for Partial(): partial sums are no blocks.
        """
        import dask.array as da

        if Partial() in self.placements:
            raise PlacementError(
                f"an array placed as {self.placements} has partial sums on its ranks, not blocks; "
                f"td.redistribute it to Replicate() or a Shard first"
            )
        blocks: dict[Region, Future[Any]] = {}
        for region, block in zip(self.tiling.regions, self.blocks, strict=True):
            blocks.setdefault(region, block)
        # along each dimension, the intervals that are not empty
        cuts = [
            sorted({(a, b) for a, b in ends if a < b}) or [(0, 0)]
            for ends in zip(*blocks, strict=True)
        ]
        name = f"tiledask_blocks-{tokenize([str(block.key) for block in self.blocks])}"
        graph = {
            (name, *(each.index(ends) for each, ends in zip(cuts, region, strict=True))): block
            for region, block in blocks.items()
            if all(ends in each for each, ends in zip(cuts, region, strict=True))
        }
        chunks = tuple(tuple(b - a for a, b in each) for each in cuts)
        meta = namespace(self.mesh.cluster.backend).empty((0,) * self.ndim, self.dtype)
        return da.Array(graph, name, chunks, meta=meta)

    def __matmul__(self, other: "ShardedArray") -> "ShardedArray":
        return operators["@"](self, other)

    def __repr__(self) -> str:
        return (
            f"ShardedArray({'x'.join(map(str, self.shape))} {self.dtype}, mesh {self.mesh}, "
            f"{', '.join(map(repr, self.placements))})"
        )

    def _repr_html_(self) -> str:
        rows = []
        for rank, at in enumerate(self.tiling.coordinates):
            region = " x ".join(f"{a}:{b}" for a, b in self.tiling.region(at))
            rows.append((rank, self.mesh.said(at), region, format_bytes(self.block_bytes[rank])))
        return html.table(("rank", "mesh", "holds", "bytes"), rows, repr(self))


def _apply(function: Callable[[Any], Any], block: Any) -> Any:
    return lent(function(block))


def placements_of(placements: Placement | Iterable[Placement]) -> tuple[Placement, ...]:
    """One for each axis; PlacementError for a dimension that is not sharded evenly, since products
    cut panels where even blocks end."""
    placements = (placements,) if isinstance(placements, Placement) else tuple(placements)
    for placement in placements:
        if isinstance(placement, Shard) and placement.shards is not None:
            raise PlacementError(
                f"arrays on workers are sharded evenly, got {placement!r}; take "
                f"Shard({placement.dim})"
            )
    return placements


operators: dict[str, Callable[..., ShardedArray]] = {}
"""What computes A @ B: it puts itself here as it is loaded, which `creation` sees to."""


@bounded
def to_numpy(array: ShardedArray, timeout: float | None = None) -> np.ndarray:
    """The whole array in this machine's memory; partial sums are summed in rank order.

    Blocks come one after the other, those of GPUs by way of their workers' host memory: this
    process needs no GPU. Raises DoesNotFitError where it may not hold the array and a block,
    DeadlineError after ``timeout`` seconds (default 300); the array stays what it is, and can be
    asked for again.
    """
    if not isinstance(array, ShardedArray):
        return off_device(array)
    if (needs := array.nbytes + max(array.block_bytes)) > MEMORY_LIMIT:
        raise DoesNotFitError(
            f"{array!r} and one of its blocks have {format_bytes(needs)}, this process may hold "
            f"{format_bytes(MEMORY_LIMIT)}; array.to_dask().to_zarr(path) writes it to a disk"
        )
    wanted = dict[tuple[Any, ...], Future[Any]]()  # of replicas the first
    for at, region, block in zip(
        array.tiling.coordinates, array.tiling.regions, array.blocks, strict=True
    ):
        addend = [i for i, p in zip(at, array.placements, strict=True) if p == Partial()]
        wanted.setdefault((region, *addend), block)
    partial = Partial() in array.placements
    whole = (np.zeros if partial else np.empty)(array.shape, array.dtype)
    one_by_one = sum(array.block_bytes) > SLAB
    for some in [[each] for each in wanted.items()] if one_by_one else [[*wanted.items()]]:
        blocks = [block for _, block in some]
        found = array.mesh.cluster.gather(blocks, f"collecting {array!r}", timeout)
        for ((region, *_), _), block in zip(some, found, strict=True):
            if partial:
                whole[slices(region)] += block
            else:
                whole[slices(region)] = block
    return whole
