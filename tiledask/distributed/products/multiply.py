"""What one rank does for a product, on its worker: multiply panels, fetch the next ones meanwhile.

    reading thread    [read 1][read 2]     [read 3]          two buffers, used in turn
    computing thread  [multiply 0][multiply 1][multiply 2]   C += A panel @ B panel, in place

Panels come in the plan's order, whatever arrives when: the same plan gives the same bits.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from time import time
from typing import Any

import numpy as np
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.arrays.array import slices
from tiledask.distributed.arrays.redistribute import ends_within
from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.transport.remote_read import LentBlock, LoanLostError, Reader, Span
from tiledask.plan.products.placement import Region, region_size
from tiledask.tile import TileCount, TileTraffic, accumulator, as_dtype
from tiledask.tile.backend import namespace, synchronize
from tiledask.tile.product import accumulate

__all__ = [
    "AHEAD",
    "SUM_BYTES",
    "OperandPart",
    "PanelParts",
    "RankJob",
    "matrices",
    "multiply",
    "sum_partials",
]

AHEAD = 2
"""Fetched panels in memory at a time: the one in use and the next."""
SUM_BYTES = {"memory": 2**20, "comm": 2**20, "ipc": 2**25}
"""Bytes of a partial sum that are fetched at a time for the sum: they stay in cache."""
_ALIGN = 64


@dataclass(frozen=True)
class OperandPart:
    """A piece of an operand, seen by the rank that needs it."""

    block: LentBlock | None
    """Where to read it; None for a part of the rank's own block."""
    ends: Region
    """Where it lies within the owner's block."""
    region: Region
    """Within the whole array."""

    @property
    def index(self) -> tuple[slice, ...]:
        return slices(self.ends)

    @property
    def elements(self) -> int:
        return region_size(self.region)


@dataclass(frozen=True)
class PanelParts:
    """A panel of the plan: the parts of A and of B that it needs."""

    a: tuple[OperandPart, ...]
    b: tuple[OperandPart, ...]

    @property
    def fetched(self) -> tuple[OperandPart, ...]:
        return tuple(part for part in (*self.a, *self.b) if part.block)


@dataclass(frozen=True)
class RankJob:
    """What one rank is told; one of these per rank and product."""

    exchange: str
    transport: str
    rank: int
    region: Region
    """What of C it computes or, for a sum, what it keeps."""
    dtype: str
    backend: str
    kernel: str = "blas"
    tile: Any = None
    turns: tuple[PanelParts, ...] = ()
    leave: Region | None = None
    """A part of the region that this task leaves out: what the rank's own sum will be."""
    partials: tuple[OperandPart, ...] = ()
    unrounded: bool = False
    """Leave C in the type that it is summed in: float32 for the half types."""
    on_page: bool = False
    """Whether the dashboard's page is told how far it is."""


def multiply(job: RankJob, own_a: Any, own_b: Any, *_anchors: Any) -> Any:
    """The block of C (or a partial sum of it) that ``job`` asks for, over all its turns."""
    reader = _reader(job, [part for turn in job.turns for part in turn.fetched])
    reporter, dtype = _reporter(job, reader), as_dtype(job.dtype)
    try:
        c = _empty(job, _shape(job.region), accumulator(dtype))
        if not job.turns:
            c[...] = 0
        strips = [job.region] if job.leave is None else _around(job.region, job.leave)
        _add_products(job, reader, reporter, own_a, own_b, c, strips, more=False)
        _show(reader.facts.spans, reporter)
        return c if job.unrounded else c.astype(dtype, copy=False)
    except LoanLostError:
        raise reader.step_aside() from None


def sum_partials(job: RankJob, own: Any, own_a: Any, own_b: Any, *_anchors: Any) -> Any:
    """The sum of all ranks' partial sums of ``job.region``, in a fixed order: always the same bits.

    In rank order; if ``job`` has turns, the rank's own comes last, multiplied here.
    """
    reader = _reader(job, [part for part in job.partials if part.block])
    try:
        return _sum_partials(job, reader, own, own_a, own_b)
    except LoanLostError:
        raise reader.step_aside() from None


def _reader(job: RankJob, parts: list[OperandPart]) -> Reader:
    wanted = [(part.block.key, part.block.slot, part.ends) for part in parts if part.block]
    return Reader(job.exchange, job.transport, wanted)


def _add_products(
    job: RankJob,
    reader: Reader,
    reporter: Reporter,
    own_a: Any,
    own_b: Any,
    c: Any,
    strips: list[Region],
    more: bool,
) -> None:
    """c (+)= A @ B in each of ``strips`` of C, panel by panel."""
    counted: list[TileTraffic | None] = []
    with _fetching(job, reader, own_a, own_b) as panels:
        for turn, (parts_a, parts_b) in enumerate(panels):
            reader.check()
            begun = time()
            for strip in strips:
                counted += _add_product(job, parts_a, parts_b, c, strip, more or turn > 0)
            _finish(c)
            reader.facts.spans.append(Span("multiply", begun, time()))
            reporter.one_more()
            del parts_a, parts_b  # the next panel may take their place
    reader.facts.tiles.append(TileCount.of(counted))  # once it is done: a task may run again


def _add_product(
    job: RankJob, parts_a: "Held", parts_b: "Held", c: Any, strip: Region, more: bool
) -> Iterator[TileTraffic | None]:
    """c (+)= A @ B in ``strip``, for the parts of one panel; what each local product loaded."""
    rows = len(parts_a[0][0]) - 1
    for region_a, a in _cut(parts_a, (*strip[:rows], None)):
        for region_b, b in _cut(parts_b, (None, *strip[rows:])):
            where = _place((*region_a[:-1], *region_b[1:]), job.region)
            yield from _accumulate(job, a, b, c[where], more)


def _sum_partials(job: RankJob, reader: Reader, own: Any, own_a: Any, own_b: Any) -> Any:
    """The sum; with turns, the rank's own part is its product, made here on top of the others'."""
    begun, reporter = time(), _reporter(job, reader)
    total = _empty(job, _shape(job.region), own.dtype)
    room = max((_sum_room(p, job, own.itemsize) for p in job.partials if p.block), default=0)
    buffer = _buffer(job, room)
    filled: set[Region] = set()
    for part in job.partials:
        place = total[_place(part.region, job.region)]
        if part.block is not None:
            rows = _rows_at_a_time(part, job, own.itemsize)
            for first, some in reader.read_by_rows(part.block, part.ends, buffer, rows):
                there = place[first : first + len(some)] if place.ndim else place
                _add(there, some, part.region in filled)
                _finish(total)  # the next rows take their place
        elif not job.turns:
            _add(place, own[(*part.index, ...)], part.region in filled)
        else:
            continue
        filled.add(part.region)
    _finish(total)
    reader.facts.spans.append(Span("sum", begun, time()))
    if job.turns:
        region, more = [job.region], bool(filled)
        _add_products(job, reader, reporter, own_a, own_b, total, region, more)
    _show(reader.facts.spans, reporter)
    return total.astype(as_dtype(job.dtype), copy=False)


def _empty(job: RankJob, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if job.backend == "numpy":
        return host_memory.empty(shape, dtype)
    return namespace(job.backend).empty(shape, dtype)


def _finish(x: Any) -> None:
    """None, once what this thread began on the GPU of ``x`` is done; copies beside it go on."""
    if not isinstance(x, np.ndarray):
        with x.device:
            namespace("cupy").cuda.get_current_stream().synchronize()


def _buffer(job: RankJob, nbytes: int) -> Any:
    """Bytes to read into; None where messages bring their own."""
    if job.backend == "numpy" and job.transport == "comm":
        return None
    made = _empty(job, (nbytes,), np.dtype(np.uint8))
    synchronize(made)  # what the GPU did with this memory before: copies do not wait for it
    return made


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)


def _around(region: Region, hole: Region) -> list[Region]:
    """What of ``region`` lies before and after ``hole``: all of it but along one dimension.

    >>> _around(((0, 9), (0, 5)), ((3, 6), (0, 5)))
    [((0, 3), (0, 5)), ((6, 9), (0, 5))]
    """
    if any(start == stop for start, stop in hole):
        return [region]
    found = []
    for d, ((start, stop), (first, last)) in enumerate(zip(region, hole, strict=True)):
        for ends in ((start, first), (last, stop)):
            if ends[0] < ends[1]:
                found.append((*region[:d], ends, *region[d + 1 :]))
    return found


def _cut(parts: "Held", ends: tuple[Any, ...]) -> Iterator[tuple[Region, Any]]:
    """Views of ``parts`` within ``ends``, (start, stop) per dimension or None for all of it."""
    for region, x in parts:
        within = tuple(
            own if limits is None else (max(own[0], limits[0]), min(own[1], limits[1]))
            for own, limits in zip(region, ends, strict=True)
        )
        if all(start < stop for start, stop in within):
            yield within, x[slices(ends_within(within, region))]


def _extent(part: OperandPart) -> int:
    return part.region[0][1] - part.region[0][0] if part.region else 1


def _rows_at_a_time(part: OperandPart, job: RankJob, itemsize: int) -> int:
    rows, most = _extent(part), SUM_BYTES[job.transport]
    return max(1, min(rows, most // max(1, part.elements // rows * itemsize)))


def _sum_room(part: OperandPart, job: RankJob, itemsize: int) -> int:
    """Bytes of the rows of ``part`` that are fetched at a time."""
    return _rows_at_a_time(part, job, itemsize) * part.elements // _extent(part) * itemsize


def _add(place: Any, partial_sum: Any, more: bool) -> None:
    if more:
        place += partial_sum
    else:  # assigned, not added to zero: the sign of a zero stays
        place[...] = partial_sum


# -- one local product ---------------------------------------------------------------------------


def _place(region: Region, whole: Region) -> tuple[Any, ...]:
    # the ellipsis makes it a view for an array without dimensions, too
    return *slices(ends_within(region, whole)), ...


def _accumulate(job: RankJob, a: Any, b: Any, c: Any, more: bool) -> Iterator[TileTraffic | None]:
    """c (+)= a @ b for a [..., k], b [k, n] or [k], c to match, as few local products as can be."""
    if b.ndim == 1:
        b, c = b[:, None], c[..., None]
    if a.ndim == 1:
        a, c = a[None], c[None]
    for rows, there in matrices(a, c):
        yield accumulate(rows, b, there, job.kernel, job.tile, beta=float(more))


def matrices(x: Any, c: Any) -> Iterator[tuple[Any, Any]]:
    """Views of two dimensions that together are x [..., k] and c [..., n]; nothing is copied."""
    if c.ndim == 2:
        yield x, c
    elif _one_stride(x) and _one_stride(c):
        rows = prod(c.shape[:-1])
        yield x.reshape(rows, x.shape[-1]), c.reshape(rows, c.shape[-1])
    else:
        for inner in zip(x, c, strict=True):
            yield from matrices(*inner)


def _one_stride(x: Any) -> bool:
    """Whether it is equally far from each row to the next, over all dimensions but the last."""
    steps = [(n, s) for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    return all(outer == n * s for (_, outer), (n, s) in pairwise(steps))


# -- panels ahead --------------------------------------------------------------------------------

Held = list[tuple[Region, Any]]


@contextmanager
def _fetching(job: RankJob, reader: Reader, own_a: Any, own_b: Any) -> Iterator[Any]:
    """An iterator over (parts of A, parts of B) per turn; the next are fetched meanwhile."""
    fetched = [turn.fetched for turn in job.turns if turn.fetched]
    itemsize = as_dtype(job.dtype).itemsize
    room = max((sum(_padded(p.elements * itemsize) for p in parts) for parts in fetched), default=0)
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(min(AHEAD, len(fetched))):
        free.put(_buffer(job, room))
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stop = threading.Event()

    def fetch() -> None:
        try:
            for parts in fetched:
                buffer, at, found = free.get(), 0, []
                if stop.is_set():
                    return
                for part in parts:
                    assert part.block is not None  # it is one of turn.fetched
                    room_for_it = None if buffer is None else buffer[at:]
                    found.append(reader.read(part.block, part.ends, room_for_it))
                    at += _padded(part.elements * itemsize)
                ready.put((buffer, found))
        except BaseException as error:
            ready.put((None, error))

    def turns() -> Iterator[tuple[Held, Held]]:
        for turn in job.turns:
            buffer, found = None, []
            if turn.fetched:
                begun = time()
                buffer, found = ready.get()
                if isinstance(found, BaseException):
                    raise found
                reader.facts.spans.append(Span("wait", begun, time()))
            come = iter(found)
            yield _held(turn.a, own_a, come), _held(turn.b, own_b, come)
            del found, come
            if turn.fetched:
                free.put(buffer)

    thread = threading.Thread(target=fetch, name="panels", daemon=True)
    if fetched:
        thread.start()
    try:
        yield turns()
    finally:
        stop.set()
        free.put(None)
        if fetched:
            thread.join()


def _held(parts: tuple[OperandPart, ...], own: Any, come: Iterator[Any]) -> Held:
    return [(p.region, next(come) if p.block else own[p.index]) for p in parts]


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


# -- what others see of it -----------------------------------------------------------------------


def _reporter(job: RankJob, reader: Reader) -> Reporter:
    """What says how far this task is; the dashboard's page hears what was counted besides."""

    def counted() -> dict[str, Any]:
        facts, delay = reader.facts, reader.worker.scheduler_delay
        first, facts.told = facts.told, len(facts.spans)
        return {
            "received": sum(nbytes for _, nbytes in facts.reads),
            "peak": host_memory.peak_bytes(job.backend),
            "spans": [
                [span.kind, span.start + delay, span.stop + delay]
                for span in facts.spans[first : facts.told]
            ],
        }

    more = counted if job.on_page else None
    return Reporter(job.exchange, job.rank, len(job.turns), more=more)


def _show(spans: list[Span], reporter: Reporter) -> None:
    """Draw reads over this task on Dask's task stream, as it draws its own transfers; tell the
    dashboard's page the rest."""
    if reporter.more:
        reporter.report()
    with suppress(Exception):
        worker = get_worker()
        task = worker.state.tasks[thread_state.key]
        for span in spans:
            if span.kind == "read":
                start, stop = (t + worker.scheduler_delay for t in (span.start, span.stop))
                task.startstops.append({"action": "transfer", "start": start, "stop": stop})
