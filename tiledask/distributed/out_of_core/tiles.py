"""What one worker does for a product of stored matrices: its tiles, panel by panel.

fetch      [read 1][read 2]     [read 3]                two pairs of panels, in turn
compute    [multiply 0][multiply 1] ... [write tile]    C tile += A panel @ B panel
a thread                                  [fsync, record]
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.out_of_core.journal import Journal
from tiledask.distributed.out_of_core.stored import StoredArray
from tiledask.distributed.products.panels import finish, prefetched
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts
from tiledask.tile import accumulator
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, on_device, synchronize, to_numpy

__all__ = ["StoredOperands", "multiply_tiles", "warm"]

_ALIGN = 64
"""Bytes: panels begin where a line of the cache does."""


class StoredOperands(NamedTuple):
    """What is multiplied, into what, and how."""

    a: StoredArray
    b: StoredArray
    c: StoredArray
    kernel: str
    tile: Any

    @property
    def summed_in(self) -> np.dtype:
        """The type of a tile in memory."""
        return accumulator(self.a.dtype)


def warm(product: StoredOperands, backend: str) -> None:
    """Load what any product of this kind needs, so that it is there before memory is counted."""
    if "zarr" in (product.a.kind, product.b.kind, product.c.kind):
        import zarr.buffer.cpu  # noqa: F401
    xp = namespace(backend)
    a, c = xp.ones((256, 256), product.a.dtype), xp.ones((256, 256), product.summed_in)
    loops = product.kernel == "loops"  # would take seconds, and needs what "tiled" does
    kernel, tile = ("tiled", None) if loops else (product.kernel, product.tile)
    for beta in (0.0, 1.0):  # two libraries, perhaps
        tile_matmul(a, a, kernel=kernel, tile=tile, out=c, beta=beta)
    synchronize(c)


def multiply_tiles(
    product: StoredOperands,
    cuts: Cuts,
    tiles: Sequence[Region],
    journal: Journal,
    run: str,
    slot: int,
    backend: str,
) -> int:
    """Bytes read, once all ``tiles`` of C are in the file and recorded.

    What the journal says is finished is left alone: this may be a second attempt, after a worker
    died. ``run`` and ``slot`` are for reports of how far it is.
    """
    a, b, c, kernel, own_tile = product
    depths = cuts.panels(a.shape[1])
    left = [region for region in tiles if not journal.finished(region)]
    turns = [(region, depth) for region in left for depth in depths]
    if not turns:
        return 0
    (m, n), k, xp, nbytes = cuts.tile, depths[0][1], namespace(backend), list[int]()
    buffers = [
        [_buffer(m * k, a.dtype), _buffer(k * n, b.dtype)] for _ in range(min(AHEAD, len(turns)))
    ]
    memory = _buffer(m * n, product.summed_in, backend)
    done = (len(tiles) - len(left)) * len(depths)
    reporter = Reporter(run, slot, len(tiles) * len(depths), done)

    def fetch(turn: tuple[Region, tuple[int, int]], buffer: list[Any]) -> list[Any]:
        (rows, columns), depth = turn
        panels = []
        for x, region, space in zip((a, b), ((rows, depth), (depth, columns)), buffer, strict=True):
            panel = _view(space, region)
            nbytes.append(x.read(region, panel))
            panels.append(xp.asarray(panel))
        return panels

    def record(region: Region) -> None:
        c.sync(region)
        journal.finish(region)

    with (
        ThreadPoolExecutor(1, "record") as recorder,
        prefetched(turns, fetch, buffers) as fetched,
    ):
        recorded: Future[None] | None = None
        for region, depth in turns:
            x, y = next(fetched)
            _check_wanted()
            sums = _view(memory, region)
            with on_device(sums):
                tile_matmul(x, y, kernel, own_tile, sums, beta=float(depth[0] > 0))
            finish(sums)
            del x, y
            if depth == depths[-1]:
                if recorded:
                    recorded.result()
                c.write(region, to_numpy(sums))
                recorded = recorder.submit(record, region)
            reporter.one_more()
        assert recorded is not None  # the last turn ends a tile
        recorded.result()
    return sum(nbytes)


def _check_wanted() -> None:
    """Raise once nobody wants what this task makes."""
    key = getattr(thread_state, "key", None)
    if key is None:  # no task
        return
    task = get_worker().state.tasks.get(key)
    if task is None or task.state == "cancelled":
        raise RuntimeError(f"{key} was cancelled; what is finished is recorded")


def _buffer(elements: int, dtype: np.dtype, backend: str = "numpy") -> Any:
    """Memory for ``elements``, at the start of a cache line."""
    if backend != "numpy":
        return namespace(backend).empty(elements, dtype)
    raw = np.empty(elements * dtype.itemsize + _ALIGN, np.uint8)
    skip = -raw.ctypes.data % _ALIGN
    return raw[skip : skip + elements * dtype.itemsize].view(dtype)


def _view(memory: Any, region: Region) -> Any:
    """The start of ``memory`` as a matrix of the region's extents."""
    rows, columns = (stop - start for start, stop in region)
    return memory[: rows * columns].reshape(rows, columns)
