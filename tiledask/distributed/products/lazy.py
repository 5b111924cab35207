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
from dask.base import get_scheduler
from dask.system import CPU_COUNT
from distributed import Client

from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.products.explain import kernel_of
from tiledask.errors import PlacementError
from tiledask.plan.units import divisors, parse_bytes
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import accumulator, aligned, array_namespace, on_device

__all__ = ["multiply"]

CHUNKS = 3
"""What a task may hold, in chunks of Dask's setting array.chunk-size."""
SMALL, LIGHT = 10**8, 2**24
"""FLOP, and bytes of operands, below which a task is not cut: to run it costs as much as so few."""
FINEST = 2**16
"""Tasks at most."""
LONG = 8
"""How much longer than the others a side is that costs next to nothing to cut."""
FAN = 4
"""Panels that one task adds up."""


def multiply(x: Any, y: Any, *, kernel: str = "blas", tile: Any = None) -> da.Array:
    """x @ y as a lazy dask.array, for dask.arrays of any chunks.

    x is (..., m, k) or (k) and y is (k, n) or (k), both float16, bfloat16, float32 or float64; one
    of them may be a NumPy array. The chunks of the result are tiles for the scheduler that is
    active now, of Dask's setting ``array.chunk-size`` at most; any scheduler can run it.

    kernel, tile
        How a task multiplies: see ``td.tile.matmul``.

    Raises PlacementError for operands that do not multiply.

    >>> x = da.ones((6, 4), chunks=(2, 3))
    >>> multiply(x, x.T).sum().compute(scheduler="synchronous").item()
    144.0
    """
    x, y = _operands(x, y, kernel)
    c: da.Array
    if x.ndim == 1:
        c = multiply(x[None], y, kernel=kernel, tile=tile)[0]
        return c
    if y.ndim == 1:
        c = multiply(x, y[:, None], kernel=kernel, tile=tile)[..., 0]
        return c
    if 0 in (*x.shape, *y.shape):
        c = da.zeros_like(x, shape=(*x.shape[:-1], y.shape[1]), chunks=-1)
        return c
    *rows, panel, columns = _cut(x, y, _threads(x, y))
    # not Dask's way through a client that is the default: any scheduler is to compute it
    x = x.rechunk((*rows, panel), method="tasks")
    y = y.rechunk((panel, columns), method="tasks")
    # a tile of C for each panel
    (*at, k, n), meta = range(x.ndim + 1), x._meta[..., None].astype(accumulator(x.dtype))
    options: dict[str, Any] = {"kernel": kernel, "tile": tile, "adjust_chunks": {k: 1}}
    tiles = da.blockwise(_multiply, (*at, k, n), x, (*at, k), y, (k, n), meta=meta, **options)
    options = {"axis": x.ndim - 1, "split_every": FAN, "concatenate": False, "meta": x._meta}
    c = da.reduction(tiles, _same, _add, combine=_add, dtype=x.dtype, **options)
    return c


def _multiply(x: Any, y: Any, kernel: str, tile: Any) -> Any:
    """x @ y as [..., one panel, n], in the type in which panels are added.

    No task changes what it receives, so any scheduler may run one twice or keep what it likes.
    """
    with on_device(x):
        # BLAS rounds otherwise what has come unaligned from another worker
        x, y = aligned(x), aligned(y)
        shape = *x.shape[:-1], 1, y.shape[1]
        c = array_namespace(x).empty(shape, accumulator(x.dtype))
        flat = c.reshape(-1, c.shape[-1])
        tile_matmul(x.reshape(-1, x.shape[-1]), y, kernel=kernel, tile=tile, out=flat)
        return c


def _same(x: Any, **_: Any) -> Any:
    return x


def _add(panels: Any, axis: Any, keepdims: bool, dtype: Any = None) -> Any:
    """The sum of the panels, in order; at the end rounded to ``dtype``, without their axis."""
    first, *others = panels if isinstance(panels, list) else [panels]
    with on_device(first):
        c = first.copy() if others else first
        for part in others:
            c += part
        return c if keepdims else c[..., 0, :].astype(dtype, copy=False)


def _cut(x: da.Array, y: da.Array, threads: int) -> list[int]:
    """Extents of chunks along x's rows, the summed dimension and y's columns: for each of the
    ``threads`` a task or more, that holds CHUNKS. Whichever side of a task is the longest is cut,
    so the least moves [1]_; one that is longer by far into more tasks than that: so less is held.

    .. [1] Demmel et al., "Communication-optimal parallel recursive rectangular matrix
       multiplication", IPDPS 2013.
    """
    limit = CHUNKS * parse_bytes(dask.config.get("array.chunk-size"))
    m, (k, n), parts = prod(x.shape[:-1]), y.shape, [1, 1, 1]
    most = max(ceil(2 * m * k * n / SMALL), (x.nbytes + y.nbytes) // LIGHT)
    tasks, wide = min(threads, most), accumulator(x.dtype).itemsize
    while True:
        tall, deep, broad = m / parts[0], k / parts[1], n / parts[2]
        # two tiles of C: one is rounded, or added to another
        held = ((tall + broad) * deep + 2 * tall * broad) * wide
        sides = tall, deep / 2, broad  # partial sums are written and read
        _, second, longest = sorted(sides)
        fine = prod(parts) >= most or longest < LONG * second
        if tasks == 1 and (prod(parts) > FINEST or (held <= limit and fine)):
            break
        factor = divisors(tasks)[1] if tasks > 1 else 2
        parts[sides.index(longest)] *= factor
        tasks = max(1, tasks // factor)
    rows, left = list[int](), parts[0]
    for extent in x.shape[:-1]:  # the first ones first
        rows.append(ceil(extent / left))
        left = ceil(left / ceil(extent / rows[-1]))
    return [*rows, ceil(k / parts[1]), ceil(n / parts[2])]


def _threads(x: da.Array, y: da.Array) -> int:
    """Tasks that the scheduler which is active now runs at a time."""
    client = getattr(get_scheduler(collections=[x, y]), "__self__", None)
    for cluster in RUNNING:
        if cluster.client is client:
            return cluster.slots  # whoever is away now: plans, and so bits, stay the same
    if isinstance(client, Client):
        return sum(client.nthreads().values()) or 1
    return dask.config.get("num_workers", None) or CPU_COUNT


def _operands(x: Any, y: Any, kernel: str) -> list[da.Array]:
    """x and y as dask.arrays that multiply, of native byte order; else PlacementError."""
    found = []
    for name, z in (("x", x), ("y", y)):
        if not hasattr(z, "__array_function__"):
            raise TypeError(
                f"{name} is a {type(z).__name__}, must be a dask.array: see da.asarray, or "
                f".to_dask() of a sharded array"
            )
        z = da.asarray(z)
        if any(np.isnan(z.shape)) or isinstance(z._meta, np.ma.MaskedArray):
            raise PlacementError(
                f"{name} has shape {z.shape} and blocks of {type(z._meta).__name__}, must have "
                f"known chunks without masks: see {name}.compute_chunk_sizes() and "
                f"da.ma.filled({name}, 0)"
            )
        found.append(z.astype(z.dtype.newbyteorder("=")))
    x, y = found
    if x.ndim < 1 or y.ndim not in (1, 2) or x.shape[-1] != y.shape[0]:
        raise PlacementError(
            f"x must be (..., k) and y (k, n) or (k), got {x.shape} @ {y.shape}; transpose one of "
            f"them, or let dask's own x @ y broadcast"
        )
    kernel_of(x.dtype, y.dtype, kernel, array_namespace(x._meta).__name__)
    return found
