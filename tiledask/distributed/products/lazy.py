"""x @ y as a lazy dask.array, for dask.arrays of any chunks and any scheduler.

              y    [  |  ]      x and y are rechunked to a few tiles and panels. A task multiplies
                   [  |  ]      two of them, and what belongs to one tile of C is added up:
    x  [__|__|__]  [C |C ]
       [__|__|__]  [C |C ]      x0 @ y0    x1 @ y1    x2 @ y2    ->    C

Every panel is done as soon as it is there, so what is held does not grow along a long dimension.
dask.array's own product makes every x_ik @ y_kj an array and adds those up.
"""

from math import ceil, prod
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import get_scheduler
from dask.system import CPU_COUNT
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.cluster.tasks import workers_of
from tiledask.distributed.products.explain import check_kernel, check_types
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.units import divisors, format_bytes, parse_bytes
from tiledask.tile import matmul as tile_matmul
from tiledask.tile import probe, workspace
from tiledask.tile.backend import accumulator, aligned, array_namespace, on_device

__all__ = ["multiply"]

SHARE = 0.3
"""The share of a worker's memory that its product tasks may hold; the blocks of x and y that
live there, and whatever else it keeps, have the rest."""
SMALL, LIGHT = 10**8, 2**24
"""FLOP, and bytes of operands, below which a task is not cut: to run it costs as much as so few."""
FINEST = 2**16
"""Parts of a dimension, and tasks, at most."""
LONG = 8
"""How much longer than the others a side is that costs next to nothing to cut."""
FAN = 4
"""Panels that one task adds up."""

Chunks = tuple[tuple[int, ...], ...]
"""Along x's rows, the summed dimension and y's columns."""


def multiply(
    x: Any, y: Any, *, memory_limit: int | str | None = None, kernel: str = "blas", tile: Any = None
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
    threads, limit = _active(x, y)
    limit = limit if memory_limit is None else parse_bytes(memory_limit)
    how = kernel, tile
    *rows, panels, columns = _plan(x, y, threads, limit, how)
    # not Dask's way through a client that is the default: any scheduler is to compute it
    x, y = (
        each.rechunk(cuts, method="tasks")
        for each, cuts in ((x, (*rows, panels)), (y, (panels, columns)))
    )
    # a tile of C for each panel
    (*at, k, n), alone = range(x.ndim + 1), len(panels) == 1
    given = {"how": how, "rounded": alone, "adjust_chunks": {k: 1}}
    given["meta"] = meta[..., None, :].astype(x.dtype if alone else accumulator(x.dtype))
    tiles: da.Array = da.blockwise(_multiply, (*at, k, n), x, (*at, k), y, (k, n), **given)
    if alone:
        only: da.Array = tiles[..., 0, :]
        return only
    given = {"axis": x.ndim - 1, "split_every": FAN, "concatenate": False, "meta": meta}
    summed: da.Array = da.reduction(tiles, _same, _add, combine=_add, dtype=x.dtype, **given)
    return summed


def _multiply(x: Any, y: Any, how: tuple[str, Any], rounded: bool) -> Any:
    """x @ y as [..., one panel, n], in the type in which panels are added; or ``rounded``.

    No task changes what it receives, so any scheduler may run one twice or keep what it likes.
    """
    xp, (kernel, tile) = array_namespace(x), how
    with on_device(x):
        # BLAS rounds otherwise what has come unaligned from another worker
        x, y = aligned(x), aligned(y)
        c = xp.empty((*x.shape[:-1], 1, y.shape[1]), accumulator(x.dtype))
        flat = c.reshape(-1, c.shape[-1])
        tile_matmul(x.reshape(-1, x.shape[-1]), y, kernel=kernel, tile=tile, out=flat)
        return c.astype(x.dtype, copy=False) if rounded else c


def _same(x: Any, **_: Any) -> Any:
    return x


def _add(panels: Any, axis: Any, keepdims: bool, dtype: Any = None) -> Any:
    """The sum of the panels, in order; at the end rounded to ``dtype``, without their axis."""
    first, *others = panels if isinstance(panels, list) else [panels]
    with on_device(first):
        c = first.copy()
        for part in others:
            c += part
        return c if keepdims else c[..., 0, :].astype(dtype, copy=False)


# -- the plan ------------------------------------------------------------------------------------


def _plan(x: da.Array, y: da.Array, threads: int, limit: int, how: tuple[str, Any]) -> Chunks:
    """Chunks of x's rows, the summed dimension and y's columns: for each of the ``threads`` a task
    or more, that fit. Whichever side of a task is the longest is cut, so the least moves [1]_; one
    that is longer by far into more tasks than that: so less is held.

    .. [1] Demmel et al., "Communication-optimal parallel recursive rectangular matrix
       multiplication", IPDPS 2013.
    """
    if (largest := max(prod(z.chunksize) * z.dtype.itemsize for z in (x, y))) > limit:
        raise DoesNotFitError(
            f"the largest block of x and y has {format_bytes(largest)}, a task may hold "
            f"{format_bytes(limit)}; rechunk to smaller blocks, or give memory_limit= a larger "
            f"number"
        )
    m, (k, n), parts = prod(x.shape[:-1]), y.shape, [1, 1, 1]
    most = max(ceil(2 * m * k * n / SMALL), (x.nbytes + y.nbytes) // LIGHT)
    tasks = min(threads, most)
    while True:
        chunks, left = Chunks(), parts[0]
        for extent in x.shape[:-1]:  # the first ones first
            chunks += (_even(extent, left),)
            left = ceil(left / len(chunks[-1]))
        chunks += _even(k, parts[1]), _even(n, parts[2])
        held, count = _held(chunks, x.dtype, how), prod(map(len, chunks))
        sides = m / parts[0], k / parts[1] / 2, n / parts[2]  # partial sums are written and read
        _, second, longest = sorted(sides)
        last = longest <= 0.5 or count > FINEST
        if tasks == 1 and held <= limit and (last or count >= most or longest < LONG * second):
            return chunks
        if last:
            raise DoesNotFitError(
                f"the smallest task of this product would hold {format_bytes(held)}, a task may "
                f"hold {format_bytes(limit)}; give memory_limit= a larger number"
            )
        factor = divisors(tasks)[1] if tasks > 1 else 2
        parts[sides.index(longest)] *= factor
        tasks = max(1, tasks // factor)


def _even(extent: int, parts: int) -> tuple[int, ...]:
    """``extent`` in even parts.

    >>> _even(10, 3), _even(2, 5)
    ((3, 3, 4), (1, 1))
    """
    ends = np.arange(min(parts, extent) + 1) * extent // min(parts, extent)
    return tuple(np.diff(ends).tolist())


def _held(chunks: Chunks, dtype: np.dtype, how: tuple[str, Any]) -> int:
    """Bytes that a task holds: it rechunks a panel, multiplies two, or adds up tiles."""
    *rows, panels, columns = chunks
    itemsize, wide = dtype.itemsize, accumulator(dtype).itemsize
    tall, deep, broad = prod(map(max, rows)), max(panels), max(columns)
    tile, rounded = tall * broad * wide, tall * broad * itemsize * (wide > itemsize)
    work = workspace(tall, broad, deep, itemsize, *how, out_itemsize=wide)
    multiplies = (tall + broad) * deep * itemsize + tile + max(work, rounded)
    adds = (1 + min(FAN, len(panels))) * tile + rounded if len(panels) > 1 else 0
    return int(max(multiplies, 2 * max(tall, broad) * deep * itemsize, adds))


def _active(x: da.Array, y: da.Array) -> tuple[int, int]:
    """Of the scheduler that is active now, (tasks that it runs at a time, bytes that each of them
    may hold)."""
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


def _operands(x: Any, y: Any, kernel: str) -> list[da.Array]:
    """x and y as dask.arrays that multiply, of native byte order; else PlacementError."""
    found = []
    for name, z in (("x", x), ("y", y)):
        if not isinstance(z, da.Array) and not hasattr(z, "__array_function__"):
            raise TypeError(
                f"{name} is a {type(z).__name__}, must be a dask.array: see da.asarray, or "
                f".to_dask() of a sharded array"
            )
        z = z if isinstance(z, da.Array) else da.from_array(z, chunks="auto")
        plain = hasattr(z._meta, "strides") and not isinstance(z._meta, np.ma.MaskedArray)
        if any(np.isnan(z.shape)) or not plain:
            raise PlacementError(
                f"{name} has shape {z.shape} and blocks of {type(z._meta).__name__}, must have "
                f"known chunks of NumPy's or CuPy's arrays: see {name}.compute_chunk_sizes(), "
                f"{name}.map_blocks and da.ma.filled({name}, 0)"
            )
        found.append(z if z.dtype.isnative else z.astype(z.dtype.newbyteorder("=")))
    x, y = found
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
    return found
