"""x @ y as a lazy dask.array, for dask.arrays of any chunks and any scheduler.

              y    [  |  ]      x and y are rechunked to a few tiles, as many as there are threads.
                   [  |  ]      A task adds one panel to its tile, k ascending:
    x  [__|__|__]  [C |C ]
       [__|__|__]  [C |C ]      C = x0 @ y0    C' = C + x1 @ y1    C'' = C' + x2 @ y2

dask.array's own product makes every x_ik @ y_kj an array and adds those up.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from math import ceil, prod
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import get_scheduler, tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.cluster.tasks import workers_of
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.product import grids
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.tile import matmul as tile_matmul
from tiledask.tile import probe, workspace
from tiledask.tile.backend import accumulator, aligned, array_namespace, as_dtype, on_device

__all__ = ["multiply"]

SHARE = 0.3
"""The share of a worker's memory that its product tasks may hold; the blocks of x and y that
live there, and whatever else it keeps, have the rest."""
SMALL = 10**8
"""FLOP below which a tile is not cut: a task costs as much as so few."""
FINEST = 2**16
"""Tiles that are tried at most."""


class LazyPlan(NamedTuple):
    """How a product is cut into tasks."""

    moved: int
    """Bytes that tasks receive, about."""
    peak: int
    """Bytes that a task holds at most, those that it receives included."""
    rows: tuple[int, ...]
    """Tiles along each dimension that C has from x."""
    columns: int
    depth: int
    """Of a panel, along k."""


def multiply(
    x: Any,
    y: Any,
    *,
    memory_limit: int | str | None = None,
    kernel: str = "blas",
    tile: Any = None,
) -> da.Array:
    """x @ y as a lazy dask.array, for dask.arrays of any chunks.

    x is (..., m, k) or (k) and y is (k, n) or (k), both float16, bfloat16, float32 or float64; one
    of them may be a NumPy array. The chunks of the result are tiles that were chosen for the
    scheduler that is active now; any scheduler can run it.

    memory_limit
        Bytes that one task may hold. Default: 30 % of what a thread of the active scheduler has.
    kernel, tile
        How a task multiplies: see ``td.tile.matmul``.

    Raises PlacementError for operands that do not multiply, and DoesNotFitError if a block, or the
    smallest task that there is, is larger than the limit.

    >>> x = da.ones((6, 4), chunks=(2, 3))
    >>> multiply(x, x.T).sum().compute(scheduler="synchronous").item()
    144.0
    """
    x, y = _operands(x, y, kernel)
    if x.ndim == 1 or y.ndim == 1:
        left, right = (x[None] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)
        c = multiply(left, right, memory_limit=memory_limit, kernel=kernel, tile=tile)
        row: da.Array = c[(*([0] * (x.ndim == 1)), ..., *([0] * (y.ndim == 1)))]
        return row
    shape = (*x.shape[:-1], y.shape[1])
    meta = meta_from_array(x._meta, ndim=len(shape), dtype=x.dtype)
    if 0 in (*x.shape, *y.shape):
        empty: da.Array = da.zeros_like(meta, shape=shape, chunks=-1)
        return empty
    threads, limit = _threads(x, y)
    limit = limit if memory_limit is None else parse_bytes(memory_limit)
    if (largest := max(prod(z.chunksize) * z.dtype.itemsize for z in (x, y))) > limit:
        raise DoesNotFitError(
            f"the largest block of x and y has {format_bytes(largest)}, a task may hold "
            f"{format_bytes(limit)}; rechunk to smaller blocks, or give memory_limit= a larger "
            f"number"
        )
    plan = _plan(x, y, threads, limit, kernel, tile)
    rows = [_even(n, parts) for n, parts in zip(x.shape, plan.rows, strict=False)]
    columns = _even(y.shape[1], plan.columns)
    panels = _even(y.shape[0], ceil(y.shape[0] / plan.depth))
    x, y = x.rechunk((*rows, panels)), y.rechunk((panels, columns))
    # Dask learns from its prefix how long a task takes: products of other sizes have other names
    size, how = len(str(2 * prod(x.chunksize) * y.chunksize[1])) - 1, (kernel, tile)
    name = f"tiledask_matmul_1e{size}-{tokenize(x, y, how)}"
    graph = HighLevelGraph.from_collections(name, _tasks(name, x, y, how), dependencies=[x, y])
    return da.Array(graph, name, (*rows, columns), meta=meta)


def _tasks(name: str, x: da.Array, y: da.Array, how: tuple[str, Any]) -> dict[Any, Any]:
    """A chain of tasks for each tile of C."""
    panels, tasks = x.numblocks[-1], dict[Any, Any]()
    for at in product(*map(range, (*x.numblocks[:-1], y.numblocks[1]))):
        before = None
        for k in range(panels):
            last = k == panels - 1
            key = (name, *at) if last else (f"{name}-panel", *at, k)
            blocks = (x.name, *at[:-1], k), (y.name, k, at[-1])
            tasks[key] = (_step, before, *blocks, how, x.dtype.name if last else None)
            before = key
    return tasks


def _step(before: Any, x: Any, y: Any, how: tuple[str, Any], final: str | None) -> Any:
    """``before`` and x @ y, in the type that it is summed in; or rounded, if it is ``final``.

    No task changes what it receives, so any scheduler may run one twice or keep what it likes.
    """
    xp, (kernel, tile) = array_namespace(x), how
    with on_device(x):
        # BLAS rounds otherwise what has come unaligned from another worker
        x, y = aligned(x), aligned(y)
        shape = (*x.shape[:-1], y.shape[1])
        c = xp.empty(shape, accumulator(x.dtype)) if before is None else before.copy()
        flat = c.reshape(-1, shape[-1])
        x, beta = x.reshape(-1, x.shape[-1]), float(before is not None)
        tile_matmul(x, y, kernel=kernel, tile=tile, out=flat, beta=beta)
        return c if final is None else c.astype(as_dtype(final), copy=False)


# -- the plan ------------------------------------------------------------------------------------


def _plan(x: da.Array, y: da.Array, threads: int, limit: int, kernel: str, tile: Any) -> LazyPlan:
    """The plan that moves fewest bytes, of those that keep all threads busy within the limit."""
    lead, (k, n), least = x.shape[:-1], y.shape, 0
    count = min(threads, ceil(2 * prod(lead) * n * k / SMALL))
    while count <= min(FINEST, 2 * threads * prod(lead) * n):
        found = [
            _cut(x, y, _rows(lead, rows), min(columns, n), limit, (kernel, tile))
            for rows, columns in grids(count, 2)
        ]
        if fitting := [plan for plan in found if plan.peak <= limit]:
            return min(fitting)
        least, count = min(plan.peak for plan in found), 2 * count
    raise DoesNotFitError(
        f"the smallest task of this product would hold {format_bytes(least)}, a task may hold "
        f"{format_bytes(limit)}; give memory_limit= a larger number"
    )


def _cut(
    x: da.Array,
    y: da.Array,
    rows: tuple[int, ...],
    columns: int,
    limit: int,
    how: tuple[str, Any],
) -> LazyPlan:
    """The plan of these cuts with the deepest panels that fit, or of one number if none does.

    A task holds a panel of each operand, C, and C again that it goes on with; before it one that
    rechunks holds a panel in parts and put together.
    """
    itemsize, wide, (k, n) = x.dtype.itemsize, accumulator(x.dtype).itemsize, y.shape
    m = prod(ceil(extent / parts) for extent, parts in zip(x.shape[:-1], rows, strict=True))
    n = ceil(n / columns)

    def peak(depth: int) -> int:
        c = m * n * (wide * (2 if depth < k else 1) + itemsize * (wide > itemsize))
        work = workspace(m, n, depth, itemsize, *how, accumulate=True, out_itemsize=wide)
        return int(max((m + n) * depth * itemsize + c + work, 2 * max(m, n) * depth * itemsize))

    depth = k
    while depth > 1 and peak(depth) > limit:
        depth = ceil(depth / 2)
    moved = int(columns * x.nbytes + prod(rows) * y.nbytes)
    return LazyPlan(moved, peak(depth), rows, columns, depth)


def _even(extent: int, parts: int) -> tuple[int, ...]:
    """``extent`` in even parts.

    >>> _even(10, 3)
    (3, 3, 4)
    """
    return tuple(b - a for a, b in pairwise(i * extent // parts for i in range(parts + 1)))


def _rows(lead: Sequence[int], parts: int) -> tuple[int, ...]:
    """About ``parts`` tiles along these dimensions, the first ones cut first."""
    found = []
    for extent in lead:
        found.append(min(extent, parts))
        parts = ceil(parts / found[-1])
    return tuple(found)


def _threads(x: da.Array, y: da.Array) -> tuple[int, int]:
    """(tasks that the active scheduler runs at a time, bytes that each of them may hold)."""
    get = get_scheduler(collections=[x, y])
    client = getattr(get, "__self__", None)
    processes, threads, memory = 1, 1, MEMORY_LIMIT
    ours = next((c for c in RUNNING if c.client is client), None)
    if ours is not None:  # of all slots, whoever is away now: plans, and so bits, stay the same
        ours.check_alive()
        processes, threads, memory = ours.slots, ours.slots, ours.memory_limit
    elif isinstance(client, Client) and (workers := list(workers_of(client).values())):
        processes, threads = len(workers), sum(w["nthreads"] for w in workers)
        memory = min(w["memory_limit"] or MEMORY_LIMIT // processes for w in workers)
    elif get is not dask.local.get_sync:
        threads = dask.config.get("num_workers", None) or CPU_COUNT
    devices = () if array_namespace(x._meta) is np else probe().devices
    if devices:
        share = int(min(d.memory for d in devices) * min(1, len(devices) / processes))
        memory = min(memory, share) if any(d.integrated for d in devices) else share
    return threads, int(SHARE * memory * processes / threads)


# -- what is refused -----------------------------------------------------------------------------


def _operands(x: Any, y: Any, kernel: str) -> tuple[da.Array, da.Array]:
    """x and y as dask.arrays that multiply, of native byte order; else PlacementError."""
    x, y = _operand("x", x), _operand("y", y)
    if x.ndim < 1 or y.ndim not in (1, 2):
        raise PlacementError(
            f"x must have 1 dimension or more and y 1 or 2, as in (..., k) @ (k, n), got {x.shape} "
            f"@ {y.shape}; dask's own x @ y broadcasts"
        )
    if x.shape[-1] != y.shape[0]:
        raise PlacementError(
            f"x {x.shape} has {x.shape[-1]} columns and y {y.shape} has {y.shape[0]} rows, they "
            f"must be equal; transpose one of them?"
        )
    check_kernel(kernel, array_namespace(x._meta).__name__)
    check_types(x.dtype, y.dtype, kernel, ("x", "y"))
    return x, y


def _operand(name: str, z: Any) -> da.Array:
    if not isinstance(z, da.Array) and not hasattr(z, "__array_function__"):
        raise TypeError(
            f"{name} is a {type(z).__name__}, must be a dask.array: see da.asarray, or .to_dask() "
            f"of a sharded array"
        )
    z = z if isinstance(z, da.Array) else da.from_array(z, chunks="auto")
    plain = hasattr(z._meta, "strides") and not isinstance(z._meta, np.ma.MaskedArray)
    if any(np.isnan(z.shape)) or not plain:
        raise PlacementError(
            f"{name} has shape {z.shape} and blocks of {type(z._meta).__name__}, must have known "
            f"chunks of NumPy's or CuPy's arrays: see {name}.compute_chunk_sizes(), "
            f"{name}.map_blocks and da.ma.filled({name}, 0)"
        )
    native: da.Array = z if z.dtype.isnative else z.astype(z.dtype.newbyteorder("="))
    return native
