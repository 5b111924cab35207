"""What one worker does for a product of stored matrices: its tiles, panel by panel.

fetch      [read 1][read 2]     [read 3]                two pairs of panels, in turn
compute    [multiply 0][multiply 1] ... [write tile]    C tile += A panel @ B panel
a thread                                  [fsync, record]
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.out_of_core.journal import Journal
from tiledask.distributed.out_of_core.stored import StoredArray
from tiledask.distributed.products.panels import Held, multiply_pieces, prefetched
from tiledask.plan.intervals import Interval
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts
from tiledask.tile import accumulator
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, synchronize, to_numpy

__all__ = ["StreamJob", "StreamProduct", "stream_tiles", "warm"]

_ALIGN = 64


@dataclass(frozen=True)
class StreamProduct:
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


@dataclass(frozen=True)
class StreamJob:
    """What one worker is told."""

    slot: int
    product: StreamProduct
    cuts: Cuts
    tiles: tuple[Region, ...]
    journal: Journal
    run: str
    """By this name ranks report how far they are."""
    backend: str

    @property
    def depths(self) -> list[Interval]:
        """The panels of each tile."""
        return self.cuts.panels(self.product.a.shape[1])


def warm(job: StreamJob) -> None:
    """Load what any product of this kind needs, so that it is there before memory is counted."""
    product = job.product
    if "zarr" in (product.a.kind, product.b.kind, product.c.kind):
        import zarr.buffer.cpu  # noqa: F401
    xp = namespace(job.backend)
    a, c = xp.ones((256, 256), product.a.dtype), xp.ones((256, 256), product.summed_in)
    loops = product.kernel == "loops"  # would take seconds, and needs what "tiled" does
    kernel, tile = ("tiled", None) if loops else (product.kernel, product.tile)
    for beta in (0.0, 1.0):  # two libraries, perhaps
        tile_matmul(a, a, kernel=kernel, tile=tile, out=c, beta=beta)
    synchronize(c)


def stream_tiles(job: StreamJob) -> int:
    """Bytes read, once all tiles of ``job`` are in the file and recorded.

    What the journal says is finished is left alone: this may be a second attempt, after a worker
    died.
    """
    product, depths = job.product, job.depths
    left = [region for region in job.tiles if not job.journal.finished(region)]
    turns = [(region, depth) for region in left for depth in depths]
    if not turns:
        return 0
    (tm, tn), wide = job.cuts.tile, max(stop - start for start, stop in depths)
    buffers = [
        (_buffer(tm * wide, product.a.dtype), _buffer(wide * tn, product.b.dtype))
        for _ in range(min(AHEAD, len(turns)))
    ]
    tile = _buffer(tm * tn, product.summed_in, job.backend)
    reporter = Reporter(job.run, job.slot, len(job.tiles) * len(depths),
                        (len(job.tiles) - len(left)) * len(depths))  # fmt: skip
    reads, xp = list[int](), namespace(job.backend)

    def fetch(turn: tuple[Region, Interval], buffer: tuple[Any, Any]) -> tuple[Held, Held]:
        (rows, columns), depth = turn
        held = list[Held]()
        regions = (rows, depth), (depth, columns)
        for array, region, memory in zip((product.a, product.b), regions, buffer, strict=True):
            panel = _view(memory, region, array.order)
            reads.append(array.read(region, panel))
            held.append([(region, xp.asarray(panel))])
        return held[0], held[1]

    with (
        ThreadPoolExecutor(1, thread_name_prefix="record") as recorder,
        closing(prefetched(turns, lambda turn: True, fetch, buffers)) as panels,
    ):
        recorded: Future[None] | None = None
        for (region, depth), (a, b) in panels:
            _check_wanted()
            c, adds = _view(tile, region, product.c.order), depth[0] > 0
            multiply_pieces(a, b, c, region, [region], product.kernel, product.tile, adds)
            del a, b
            if depth == depths[-1]:
                if recorded:
                    recorded.result()
                product.c.write(region, to_numpy(c))
                recorded = recorder.submit(_record, job, region)
            reporter.one_more()
        assert recorded is not None  # the last turn ends a tile
        recorded.result()
    return sum(reads)


def _record(job: StreamJob, region: Region) -> None:
    job.product.c.sync(region)
    job.journal.finish(region)


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


def _view(room: Any, region: Region, order: str) -> Any:
    """The start of ``room`` as a matrix of the region's extents."""
    rows, columns = (stop - start for start, stop in region)
    part = room[: rows * columns]
    return part.reshape(rows, columns) if order == "C" else part.reshape(columns, rows).T
