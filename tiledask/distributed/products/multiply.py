"""What one rank does for a product, on its worker: it goes through its line of the program.

fetch    [fetch 1][fetch 2]     [fetch 3]          from other workers' blocks, into two rooms
compute  [multiply 0][multiply 1][multiply 2]      C += A panel @ B panel, in place
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pickle import loads
from time import time
from typing import Any, NamedTuple

import numpy as np
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.products.line import ProductLine, finish, place_in
from tiledask.distributed.transport.loans import Span
from tiledask.distributed.transport.reader import Reader
from tiledask.distributed.transport.tickets import LentBlock, LoanLostError
from tiledask.plan.products.regions import Region, ends_within, extents_of, region_size, slices
from tiledask.plan.program.instructions import Do, Fetch, Instructions, Keep
from tiledask.tile import TileCount, accumulator, as_dtype
from tiledask.tile.backend import namespace, synchronize

__all__ = ["SUM_BYTES", "RankLine", "run_line", "summed_in"]

SUM_BYTES = {
    "memory": 2**20,
    "mixed": 2**20,
    "comm": 2**20,
    "ipc": 2**25,
}
"""Bytes of a partial sum that are fetched at a time for the sum: they stay in cache."""


def summed_in(dtype: np.dtype, arrays: str, panels: int, sums: bool) -> np.dtype:
    """The type in which a rank adds up its ``panels`` of C, and other ranks' if there are ``sums``.

    On a GPU one panel alone is rounded as it is written; NumPy would make it in float32 first all
    the same.

    >>> [summed_in(np.dtype("f2"), arrays, 1, False).name for arrays in ("cupy", "numpy")]
    ['float16', 'float32']
    """
    rounds = arrays == "cupy" and panels == 1 and not sums
    return dtype if rounds else accumulator(dtype)


@dataclass(frozen=True)
class RankLine:
    """What one rank is told that follows from shapes alone; one per rank and program."""

    rank: int
    program: Instructions
    """Its line alone."""
    owners: Mapping[tuple[str, int], Region]
    """(array, rank) -> where the block lies in the array, of all that it fetches of."""
    region: Region
    """What of C it makes."""
    dtype: str
    backend: str
    unrounded: bool = False
    """Leave C in the type that it is summed in: float32 for the half types."""

    @cached_property
    def wide(self) -> np.dtype:
        """The type that C is summed in."""
        sums = self.unrounded or any(fetch.buffer == "C" for fetch in self.fetches)
        return summed_in(as_dtype(self.dtype), self.backend, self.products, sums)

    @cached_property
    def fetches(self) -> list[Fetch]:
        return [each for each in self._instructions if isinstance(each, Fetch)]

    @cached_property
    def products(self) -> int:
        """How many panels it multiplies."""
        return sum(isinstance(x, Do) and x.kernel == "multiply" for x in self._instructions)

    @property
    def _instructions(self) -> tuple[Any, ...]:
        (part,) = self.program.role(0).parts
        return part.instructions


@lru_cache(64)
def _line_of(told: bytes) -> RankLine:
    """What is told again and again is read once."""
    line: RankLine = loads(told)
    return line


class _Told(NamedTuple):
    """What a rank is told of one product."""

    exchange: str
    transport: str
    rows: Sequence[bytes]
    """What ranks read that read the same: pickled pairs of (array, rank) and its block."""
    kernel: str
    tile: Any
    on_page: bool
    """Whether the dashboard's page shows how far it is."""


def run_line(
    line: bytes, told: bytes, own_a: Any, own_b: Any, own_partial: Any = None, *_anchors: Any
) -> Any:
    """The block of C, or a partial sum of it, that a rank's ``line`` makes.

    ``line`` is a RankLine, ``told`` what is of this product alone, both pickled: the scheduler need
    not look into them. ``own_partial``: where partial sums are added up, the rank's own. Sums are
    taken in the program's order: always the same bits.
    """
    own = {"A": _aligned(own_a), "B": _aligned(own_b), "partial": own_partial}
    way = _Line(_line_of(line), _Told(*loads(told)), own)
    try:
        return way.result()
    except LoanLostError:
        raise way.reader.step_aside() from None


def _aligned(block: Any) -> Any:
    """``block``; a copy where Dask had put it on disk and brought it back to any address, for then
    sums round otherwise."""
    return np.require(block, requirements="A") if isinstance(block, np.ndarray) else block


class _Line(ProductLine):
    """A rank's way through its line: it reads other ranks' blocks, and leaves its own."""

    def __init__(self, job: RankLine, told: _Told, own: dict[str, Any]) -> None:
        super().__init__(job.program, told.kernel, told.tile)
        self.job, self.told = job, told
        self.lent: dict[tuple[str, int], LentBlock] = {}
        for row in told.rows:
            self.lent.update(loads(row))
        wanted = [(self.lent[at := (f.array, _source(f))], ends_within(f.region, job.owners[at]))
                  for f in job.fetches]  # fmt: skip
        self.reader = Reader(
            told.exchange,
            told.transport,
            [(block.key, block.slot, ends) for block, ends in wanted],
        )
        self.spans = self.reader.facts.spans
        self.reporter = _reporter(job, told, self.reader)
        self.stays = {**own, "C": _empty(job, extents_of(job.region), job.wide)}
        for name, size in self.role.stays.items():
            if name not in self.stays:
                self.stays[name] = _room(job, told.transport, size)
        some = [self._some(fetch) for fetch in job.fetches if fetch.buffer == "C"]
        self.rows = _room(job, told.transport, max(some)) if some else None
        """Where rows of a partial sum come, before they are added."""

    def result(self) -> Any:
        """C, once the line was gone through."""
        job = self.job
        self.go(self.stays, lambda begun, end: self.spans.append(Span("wait", begun, end)))
        if job.products or "partial" not in self.role.stays:
            self.reader.facts.tiles.append(TileCount.of(self.loaded))
        _show(self.spans, self.reporter)
        c = self.stays["C"]
        return c if job.unrounded else c.astype(as_dtype(job.dtype), copy=False)

    # -- where it reads ---------------------------------------------------------------------------

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        at = each.array, _source(each)
        block, ends = self.lent[at], ends_within(each.region, self.job.owners[at])
        return partial(self._sum if each.buffer == "C" else self._read, each, block, ends)

    def keep(self, each: Keep) -> Callable[[Any], None]:
        """A block stays where it was made."""
        return lambda c: None

    def check(self) -> None:
        self.reader.check()

    def _read(self, each: Fetch, block: LentBlock, ends: Region, room: Any) -> Any:
        return self.reader.read(block, ends, None if room is None else room[each.at :])

    def _sum(self, each: Fetch, block: LentBlock, ends: Region, c: Any) -> Any:
        """C, once what is fetched is there, or was added."""
        begun, there = time(), c[place_in(each.region, self.job.region)]
        rows = self._some(each) // self._row(each)
        for first, some in self.reader.read_by_rows(block, ends, self.rows, rows):
            at = there[first : first + len(some)] if there.ndim else there
            _put(at, some, each.adds)
            finish(c)  # the next rows take their place
        self.spans.append(Span("sum", begun, time()))
        return c

    def _row(self, each: Fetch) -> int:
        """Bytes of one row of what is fetched."""
        return region_size(each.region[1:]) * self.job.wide.itemsize

    def _some(self, each: Fetch) -> int:
        """Bytes of the rows that are fetched at a time."""
        row, most = self._row(each), SUM_BYTES[self.told.transport]
        return min(each.nbytes, max(1, most // row) * row)

    # -- its kernels, beside multiply -------------------------------------------------------------

    def clear(self, c: Any) -> None:
        """No panel: nothing is added up."""
        c[...] = 0

    def add_up(self, own: Any, c: Any, *, ends: Region, into: Region, adds: bool) -> None:
        """The rank's own partial sum is added, or begins the sum."""
        begun = time()
        _put(c[place_in(into, self.job.region)], own[(*slices(ends), ...)], adds)
        finish(c)
        self.spans.append(Span("sum", begun, time()))

    def multiplied(self, begun: float) -> None:
        self.spans.append(Span("multiply", begun, time()))
        self.reporter.one_more()


def _source(each: Fetch) -> int:
    assert each.source is not None  # blocks lie on ranks
    return each.source


def _empty(job: RankLine, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if job.backend == "numpy":
        return host_memory.empty(shape, dtype)
    return namespace(job.backend).empty(shape, dtype)


def _room(job: RankLine, transport: str, nbytes: int) -> Any:
    """Bytes to read into; None where messages bring their own."""
    if job.backend == "numpy" and transport == "comm":
        return None
    made = _empty(job, (nbytes,), np.dtype(np.uint8))
    synchronize(made)  # what the GPU did with this memory before: copies do not wait for it
    return made


def _put(place: Any, part: Any, adds: bool) -> None:
    if adds:
        place += part
    else:  # assigned, not added to zero: the sign of a zero stays
        place[...] = part


# -- what others see of it -----------------------------------------------------------------------


def _reporter(job: RankLine, told: _Told, reader: Reader) -> Reporter:
    """Of how far this task is; the dashboard's page shows what was counted besides."""

    def counted() -> tuple[list[Any], dict[str, Any]]:
        facts, delay = reader.facts, reader.worker.scheduler_delay
        first, facts.reported = facts.reported, len(facts.spans)
        panel = sum(span.kind == "multiply" for span in facts.spans[:first]) - 1
        spans = []
        for each in facts.spans[first : facts.reported]:
            panel += each.kind == "multiply"
            spans.append((job.rank, each.kind, panel, each.start + delay, each.stop + delay))
        received = sum(nbytes for _, nbytes in facts.reads)
        return spans, {"received": received, "peak": host_memory.peak_bytes(job.backend)}

    more = counted if told.on_page else None
    return Reporter(told.exchange, job.rank, job.products, more=more)


def _show(spans: list[Span], reporter: Reporter) -> None:
    """Draw reads over this task on Dask's task stream, as it draws its own transfers; report the
    rest to the dashboard's page."""
    if reporter.more:
        reporter.report()
    with suppress(Exception):
        worker = get_worker()
        task = worker.state.tasks[thread_state.key]
        for span in spans:
            if span.kind == "read":
                start, stop = (t + worker.scheduler_delay for t in (span.start, span.stop))
                task.startstops.append({"action": "transfer", "start": start, "stop": stop})
