"""What one worker does for a product of stored matrices: read panels, multiply, write its tiles.

reading thread    [read 1][read 2]     [read 3]                two pairs of panels, in turn
worker's thread   [multiply 0][multiply 1] ... [write tile]    C tile += A panel @ B panel
keeping thread                                     [fsync, record]
"""

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.out_of_core.stored import StoredArray
from tiledask.distributed.out_of_core.stored_npy import rounded
from tiledask.distributed.out_of_core.unfinished import StreamRecords, TileRecord
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import DEPTH, Cuts, StreamPlan
from tiledask.tile import accumulator
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, synchronize, to_numpy

__all__ = ["CHECKPOINT", "StreamJob", "StreamProduct", "checksum", "stream_tiles", "warm"]

CHECKPOINT = 30.0
"""Seconds between two records of a tile that is being summed."""
_SHARE = 20
"""Partial sums keep a worker from multiplying for at most one part in so many of its time."""
_SLAB = 2**20
"""Bytes of a tile, about, that are read or rounded at a time for its checksum."""
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
    def k(self) -> int:
        return self.a.shape[1]

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
    panels: int
    """Pairs of panels, when the job was given out; fewer are left for a second attempt."""
    records: StreamRecords
    backend: str
    checkpoint: float
    """Seconds."""

    @classmethod
    def of(
        cls,
        plan: StreamPlan,
        slot: int,
        product: StreamProduct,
        records: StreamRecords,
        backend: str,
        checkpoint: float,
    ) -> "StreamJob":
        """The part of ``plan`` that ``slot`` does."""
        mine = plan.of(slot)
        tiles = tuple(tile.region for tile in mine.tiles)
        return cls(slot, product, plan.cuts, tiles, mine.panels, records, backend, checkpoint)


def warm(job: StreamJob) -> None:
    """Loads what any product of this kind needs, so that it is there before memory is counted."""
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

    What the records say is finished is left alone: this may be a second attempt, after a worker
    died.
    """
    product, records = job.product, job.records
    with records.working(job.slot):
        known = {region: records.tile(region) for region in job.tiles}
        begin = {region: record.summed for region, record in known.items() if record}
        steps = [
            (region, depth)
            for region in job.tiles
            for depth in job.cuts.panels(product.k, begin.get(region, 0))
        ]
        if not steps:
            return 0
        tm, tn = job.cuts.tile
        room, read = _room(tm * tn, product.summed_in, job.backend), 0
        reporter = Reporter(records.run, job.slot, job.panels, job.panels - len(steps))
        with _Keeper(job) as keeper, _panels_ahead(job, steps) as panels:
            for (region, (start, stop)), (a, b, nbytes) in zip(steps, panels, strict=True):
                records.check()
                c, read = _view(room, region, product.c.order), read + nbytes
                if start and start == begin.get(region):
                    read += _take_up(product.c, region, c)
                tile_matmul(
                    a, b, kernel=product.kernel, tile=product.tile, out=c, beta=float(start > 0)
                )
                synchronize(c)
                if stop == product.k or keeper.due:
                    keeper.keep(region, c, stop)
                reporter.one_more()
    return read


def _take_up(array: StoredArray, region: Region, c: Any) -> int:
    """Bytes read, once ``c`` holds the partial sum in the file."""
    if isinstance(c, np.ndarray):
        return array.read(region, c)
    held = np.empty(c.shape, c.dtype, order=array.order)
    read = array.read(region, held)
    c.set(held)
    return read


@contextmanager
def _panels_ahead(job: StreamJob, steps: list[Any]) -> Iterator[Iterator[tuple[Any, Any, int]]]:
    """An iterator over (panel of A, panel of B, bytes read) for each of ``steps``.

    The next pair is read while the caller works on this one; there are DEPTH of them, made once.
    """
    product, (tm, tn), w = job.product, job.cuts.tile, min(job.cuts.panel, job.product.k)
    ring = [
        (_Panel(product.a, tm * w, job.backend), _Panel(product.b, w * tn, job.backend))
        for _ in range(min(DEPTH, len(steps)))
    ]

    def fill(step: int) -> tuple[Any, Any, int]:
        ((of_m, of_n), depth), (a, b) = steps[step], ring[step % DEPTH]
        (panel_a, read_a), (panel_b, read_b) = a.fill((of_m, depth)), b.fill((depth, of_n))
        return panel_a, panel_b, read_a + read_b

    with ThreadPoolExecutor(1, thread_name_prefix="panels") as reader:
        ahead = deque(reader.submit(fill, step) for step in range(len(ring)))

        def panels() -> Iterator[tuple[Any, Any, int]]:
            for step in range(len(steps)):
                yield ahead.popleft().result()
                if step + len(ring) < len(steps):  # this one's panels are free now
                    ahead.append(reader.submit(fill, step + len(ring)))

        try:
            yield panels()
        finally:
            reader.shutdown(cancel_futures=True)


class _Panel:
    """Room for a panel of one operand, and on a GPU for its copy there."""

    def __init__(self, array: StoredArray, elements: int, backend: str) -> None:
        self.array = array
        self.host = _room(elements, array.dtype, "numpy")
        self.device = None if backend == "numpy" else _room(elements, array.dtype, backend)

    def fill(self, region: Region) -> tuple[Any, int]:
        """(the panel, bytes read)."""
        held = _view(self.host, region, self.array.order)
        read = self.array.read(region, held)
        if self.device is None:
            return held, read
        with namespace("cupy").cuda.Stream(non_blocking=True) as stream:
            there = _view(self.device, region, self.array.order)
            there.set(held, stream=stream)
            stream.synchronize()
        return there, read


class _Keeper:
    """Writes tiles to the file; syncs and records them in the background. A context manager."""

    def __init__(self, job: StreamJob) -> None:
        self.job = job
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self.pending: Future[Any] | None = None
        self.last, self.pause = time.monotonic(), job.checkpoint

    @property
    def due(self) -> bool:
        """Whether a partial sum is worth keeping now."""
        exact = self.job.product.summed_in == self.job.product.c.dtype
        return exact and time.monotonic() - self.last >= self.pause

    def keep(self, region: Region, c: Any, summed: int) -> None:
        """None, once the file has ``c``; the record of it follows."""
        begun, array = time.monotonic(), self.job.product.c
        self.wait()
        self.job.records.strike(region)
        array.write(region, to_numpy(c))
        (top, _), (left, _) = region
        check = checksum(
            array,
            region,
            lambda rows, columns: to_numpy(
                c[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
            ),
        )
        self.pending = self.pool.submit(self._settle, region, TileRecord(summed, check))
        self.last = time.monotonic()
        self.pause = max(self.job.checkpoint, _SHARE * (self.last - begun))

    def _settle(self, region: Region, record: TileRecord) -> None:
        self.job.product.c.sync(region)
        self.job.records.keep(region, record)

    def wait(self) -> None:
        """None, once what was kept is recorded."""
        if self.pending is not None:
            self.pending.result()

    def __enter__(self) -> "_Keeper":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()
        if error[0] is None:
            self.wait()


def checksum(array: StoredArray, region: Region, part: Callable[[slice, slice], np.ndarray]) -> int:
    """CRC-32 of the tile of ``array`` at ``region``, line by line as the file has them.

    ``part(rows, columns)`` is that part of the array. It is asked for one slab after the other, of
    whole chunks where there are chunks; the checksum does not depend on how the tile is cut.
    """
    along = int(array.order == "F")  # the axis across lines
    (start, stop), (low, high) = region[along], region[1 - along]
    step = max(1, _SLAB // ((high - low) * array.dtype.itemsize))
    if array.chunks:
        step = -(-step // array.chunks[0]) * array.chunks[0]
    check = 0
    for i in range(start, stop, step):
        across = slice(i, min(stop, i + step)), slice(low, high)
        lines = part(*across) if along == 0 else part(*across[::-1]).T
        check = zlib.crc32(rounded(lines, array.dtype).data, check)
    return check


def _room(elements: int, dtype: np.dtype, backend: str) -> Any:
    """Memory for ``elements``, at the start of a cache line."""
    xp = namespace(backend)
    if backend != "numpy":
        return xp.empty(elements, dtype)
    raw = np.empty(elements * dtype.itemsize + _ALIGN, np.uint8)
    skip = -raw.ctypes.data % _ALIGN
    return raw[skip : skip + elements * dtype.itemsize].view(dtype)


def _view(room: Any, region: Region, order: str) -> Any:
    """The start of ``room`` as a matrix of the region's extents."""
    rows, columns = (stop - start for start, stop in region)
    part = room[: rows * columns]
    return part.reshape(rows, columns) if order == "C" else part.reshape(columns, rows).T
