"""What one worker does for a product of stored matrices: it goes through its line of the program.

fetch      [read 1][read 2]     [read 3]                two pairs of panels, in turn
compute    [multiply 0][multiply 1] ... [write tile]    C tile += A panel @ B panel
a thread                                  [fsync, record]
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.out_of_core.folder import is_url
from tiledask.distributed.out_of_core.stored import StoredArray, checksum
from tiledask.distributed.out_of_core.stored_zarr import look
from tiledask.distributed.out_of_core.unfinished import StreamRecords
from tiledask.distributed.products.line import ProductLine
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts, StreamPlan
from tiledask.plan.program.instructions import Do, Fetch, Instructions, Keep
from tiledask.plan.program.making.of_product import once
from tiledask.plan.program.making.of_stream import stream_role
from tiledask.tile import accumulator
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, synchronize, to_numpy

__all__ = [
    "StreamJob",
    "StreamProduct",
    "stream_tiles",
    "warm",
]

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
    run: str
    """By this name ranks say how far they are."""
    backend: str

    @classmethod
    def of(
        cls,
        plan: StreamPlan,
        slot: int,
        product: StreamProduct,
        records: StreamRecords,
        run: str,
        backend: str,
    ) -> "StreamJob":
        """The part of ``plan`` that ``slot`` does."""
        mine = plan.of(slot)
        tiles = tuple(tile.region for tile in mine.tiles)
        return cls(slot, product, plan.cuts, tiles, mine.panels, records, run, backend)


def warm(job: StreamJob) -> None:
    """Loads what any product of this kind needs, so that it is there before memory is counted."""
    product = job.product
    if "zarr" in (product.a.kind, product.b.kind, product.c.kind):
        import zarr.buffer.cpu  # noqa: F401
    for array in (product.a, product.b, product.c):
        if is_url(array.path):  # what its store needs, or an error that says what is missing here
            look(array.path, array.storage_options)
            array.folder.size("zarr.json")
    xp = namespace(job.backend)
    a, c = xp.ones((256, 256), product.a.dtype), xp.ones((256, 256), product.summed_in)
    loops = product.kernel == "loops"  # would take seconds, and needs what "tiled" does
    kernel, tile = ("tiled", None) if loops else (product.kernel, product.tile)
    for beta in (0.0, 1.0):  # two libraries, perhaps
        tile_matmul(a, a, kernel=kernel, tile=tile, out=c, beta=beta)
    synchronize(c)


class StoppedError(RuntimeError):
    """What a worker works for is wanted by nobody any more."""


def stream_tiles(job: StreamJob) -> int:
    """Bytes read, once all tiles of ``job`` are in the file and recorded.

    What the records say is finished is left alone: this may be a second attempt, after a worker
    died.
    """
    product, records = job.product, job.records
    known = {region: records.tile(region) for region in job.tiles}
    begun = [(region, 0 if check is None else product.k) for region, check in known.items()]
    size, wide = product.a.dtype.itemsize, product.summed_in.itemsize
    role = stream_role(job.cuts, product.k, begun, size, wide)
    if not role.parts:
        return 0
    with _Keeper(job) as keeper:
        return _FileLine(job, keeper, once([role], "files")).read_bytes()


class _FileLine(ProductLine):
    """A worker's way through its line: files are where it reads and keeps."""

    def __init__(
        self,
        job: StreamJob,
        keeper: "_Keeper",
        line: Instructions,
    ) -> None:
        product = job.product
        super().__init__(line, product.kernel, product.tile)
        self.job, self.keeper = job, keeper
        self._check = check_wanted()
        self.reads: list[int] = []
        """Bytes of each read. Two threads read: their sum is taken when both are done."""
        of, size = {"a": product.a, "b": product.b}, product.a.dtype.itemsize
        self.stays: dict[str, Any] = {
            name: _Panel(of[name[0]], nbytes // size, job.backend)
            for name, nbytes in self.role.stays.items()
            if name != "C"
        }
        tm, tn = job.cuts.tile
        self.stays["C"] = _room(tm * tn, product.summed_in, job.backend)
        left = sum(isinstance(each, Do) for each in self.role.parts[0].instructions)
        self.reporter = Reporter(job.run, job.slot, job.panels, job.panels - left)

    def read_bytes(self) -> int:
        """Bytes read, once the line was gone through."""
        self.go(self.stays)
        return sum(self.reads)

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        return partial(self._fill, each.region)

    def _fill(self, region: Region, room: "_Panel") -> Any:
        panel, nbytes = room.fill(region)
        self.reads.append(nbytes)
        return panel

    def keep(self, each: Keep) -> Callable[[Any], None]:
        def keep(room: Any) -> None:
            if not each.partial:
                self.keeper.keep(each.region, self.place(room, each.region))
            self.reporter.one_more()

        return keep

    def check(self) -> None:
        self._check()

    def place(self, room: Any, region: Region, like: Any = None) -> Any:
        return _view(room, region, self.job.product.c.order)


class _Panel:
    """Room for a panel of one operand."""

    def __init__(self, array: StoredArray, elements: int, backend: str) -> None:
        self.array = array
        self.room = _room(elements, array.dtype, backend)

    def fill(self, region: Region) -> tuple[Any, int]:
        """(the panel, bytes read)."""
        panel = _view(self.room, region, self.array.order)
        if isinstance(panel, np.ndarray):
            return panel, self.array.read(region, panel)
        held = np.empty(panel.shape, panel.dtype, order=self.array.order)
        read = self.array.read(region, held)
        panel.set(held)
        return panel, read


class _Keeper:
    """Writes tiles to the file; syncs and records them in the background. A context manager."""

    def __init__(self, job: StreamJob) -> None:
        self.job = job
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="keep")
        self.pending: Future[Any] | None = None

    def keep(self, region: Region, c: Any) -> None:
        """None, once the file has ``c``; the record of it follows."""
        self.wait()
        array, host = self.job.product.c, to_numpy(c)
        array.write(region, host)
        self.pending = self.pool.submit(self._record, region, _check_of(array, region, host))

    def _record(self, region: Region, check: int) -> None:
        self.job.product.c.sync(region)
        self.job.records.keep(region, check)

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


def _check_of(array: StoredArray, region: Region, c: np.ndarray) -> int:
    """The checksum of the tile ``c`` as the file has it."""
    (top, _), (left, _) = region
    return checksum(
        array,
        region,
        lambda rows, columns: c[
            rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
        ],
    )


def check_wanted() -> Callable[[], None]:
    """What raises StoppedError once nobody wants what this task makes; nothing outside of one."""
    try:
        worker, key = get_worker(), thread_state.key
    except (ValueError, AttributeError):
        return lambda: None

    def check() -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise StoppedError(f"{key} was cancelled; what is finished is recorded")

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
