"""What one rank does for a product, on its worker: its panels, or the partial sums of its part.

multiply   C = sum of A panel @ B panel                read from other workers' blocks
sum        C = sum of the ranks' partial sums          where k is shared out, in rank order
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pickle import loads
from time import time
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.progress import Reporter
from tiledask.distributed.products.panels import (
    Held,
    finish,
    multiply_pieces,
    place_in,
    prefetched,
)
from tiledask.distributed.transport.blocks import Span
from tiledask.distributed.transport.reader import Reader
from tiledask.distributed.transport.tickets import LoanLostError, Ticket
from tiledask.plan.products.comms import Piece
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product_plan import AHEAD, ProductPanel, ProductPlan
from tiledask.plan.products.regions import Region, around, ends_within, extents_of, region_size
from tiledask.tile import TileCount, TileTraffic, accumulator, as_dtype
from tiledask.tile.backend import namespace, synchronize

__all__ = ["SUM_BYTES", "RankCall", "RankJob", "run_rank", "summed_in"]

SUM_BYTES = {"memory": 2**20, "mixed": 2**20, "comm": 2**20, "ipc": 2**25}
"""Bytes of a partial sum that are fetched at a time for the sum: they stay in cache."""
_ALIGN = 64
"""Bytes: pieces in a buffer begin where a line of the cache does."""


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
class RankJob:
    """What one rank does that follows from shapes alone: equal products need it once."""

    rank: int
    tilings: Mapping[str, Tiling]
    """How "A", "B" and the "partial" sums lie."""
    region: Region
    """What of C it makes."""
    strips: tuple[Region, ...]
    """What of that its panels are multiplied into."""
    panels: tuple[ProductPanel, ...]
    addends: tuple[Piece, ...]
    """Partial sums that it adds up first, in this order."""
    dtype: str
    backend: str
    unrounded: bool
    """Whether C is left in the type that it is summed in: float32 for the half types."""

    @classmethod
    def multiplies(cls, plan: ProductPlan, rank: int, dtype: str, backend: str) -> "RankJob":
        """The rank's panels; of its own part only what other ranks add up, if it adds it itself."""
        region = plan.work.regions[rank]
        strips = [region]
        if plan.sums_in_place:
            strips = list(around(region, plan.result.regions[rank]))
        tilings, panels = {"A": plan.a, "B": plan.b}, plan.panels[rank]
        return cls(rank, tilings, region, tuple(strips), panels, (), dtype, backend, plan.sums)

    @classmethod
    def sums(cls, plan: ProductPlan, rank: int, dtype: str, backend: str) -> "RankJob":
        """The sum of the rank's part of C: its own product last where that is added in place."""
        region, in_place = plan.result.regions[rank], plan.sums_in_place
        tilings = {"A": plan.a, "B": plan.b, "partial": plan.work}
        panels = plan.panels[rank] if in_place else ()
        addends = plan.summed[rank] if in_place else plan.partials[rank]
        return cls(rank, tilings, region, (region,), panels, addends, dtype, backend, False)

    @classmethod
    def moves(
        cls,
        rank: int,
        source: Tiling,
        target: Tiling,
        pieces: Iterable[Piece],
        dtype: str,
        backend: str,
    ) -> "RankJob":
        """The rank's block under another tiling: its pieces, those for the same place added."""
        mine = tuple(piece for piece in pieces if piece.destination == rank)
        region = target.regions[rank]
        return cls(rank, {"partial": source}, region, (), (), mine, dtype, backend, False)

    @property
    def summed_in(self) -> np.dtype:
        """The type that C is summed in."""
        if self.tilings.keys() == {"partial"}:
            return as_dtype(self.dtype)
        sums = self.unrounded or any(p.source != self.rank for p in self.addends)
        return summed_in(as_dtype(self.dtype), self.backend, len(self.panels), sums)

    def reads(self) -> list[tuple[str, Piece]]:
        """(array, piece) of all that it reads of other ranks' blocks."""
        found = [("partial", piece) for piece in self.addends]
        for panel in self.panels:
            found += [*(("A", piece) for piece in panel.a), *(("B", piece) for piece in panel.b)]
        return [(name, piece) for name, piece in found if piece.source != self.rank]


class RankCall(NamedTuple):
    """What a rank is told of one product."""

    exchange: str
    transport: str
    lent: dict[tuple[str, int], Ticket]
    """By (array, rank), the blocks that it reads."""
    kernel: str
    tile: Any
    on_page: bool
    """Whether the dashboard's page shows how far it is."""


@lru_cache(64)
def _job_of(pickled: bytes) -> RankJob:
    """What is sent again and again is read once."""
    job: RankJob = loads(pickled)
    return job


def run_rank(
    job: bytes, call: bytes, own_a: Any, own_b: Any, own_partial: Any = None, *_anchors: Any
) -> Any:
    """The block of C, or a partial sum of it, that a rank makes.

    ``job`` is a RankJob and ``call`` a RankCall, both pickled: the scheduler need not look into
    them. ``own_partial``: where partial sums are added up, the rank's own.
    """
    own = {"A": own_a, "B": own_b, "partial": own_partial}
    run = _RankRun(_job_of(job), loads(call), own)
    try:
        return run.result()
    except LoanLostError:
        raise run.reader.step_aside() from None


class _RankRun:
    """One rank at work."""

    def __init__(self, job: RankJob, call: RankCall, own: dict[str, Any]) -> None:
        self.job, self.call, self.own = job, call, own
        wanted = [(name, *self._lent(name, piece)) for name, piece in job.reads()]
        parts = [(ticket.key, ticket.slot, ends) for _, ticket, ends in wanted]
        self.reader = Reader(call.exchange, call.transport, parts)
        self.spans = self.reader.facts.spans
        self.reporter = _reporter(job, call, self.reader)
        self.c = _empty(job, extents_of(job.region), job.summed_in)

    def result(self) -> Any:
        """C, once the partial sums and the panels were gone through."""
        job, call, c = self.job, self.call, self.c
        adds = self._sum()
        loaded = self._multiply(adds)
        if not adds and not job.panels:
            c[...] = 0
        if job.panels or "partial" not in job.tilings:
            self.reader.facts.tiles.append(TileCount.of(loaded))
        if call.on_page:
            self.reporter.report()
        return c if job.unrounded else c.astype(as_dtype(job.dtype), copy=False)

    def _lent(self, name: str, piece: Piece) -> tuple[Ticket, Region]:
        """(another rank's block, where the piece lies in it)."""
        whole = self.job.tilings[name].regions[piece.source]
        return self.call.lent[name, piece.source], ends_within(piece.region, whole)

    # -- panels -----------------------------------------------------------------------------------

    def _multiply(self, adds: bool) -> list[TileTraffic | None]:
        """What the products of all panels loaded."""
        job, call, loaded = self.job, self.call, list[TileTraffic | None]()
        sizes = [self._fetched_bytes(panel) for panel in job.panels]
        count = min(AHEAD, sum(size > 0 for size in sizes))
        buffers = [_buffer(job, call.transport, max(sizes)) for _ in range(count)]
        turns = prefetched(
            job.panels,
            lambda panel: self._fetched_bytes(panel) > 0,
            self._fetch,
            buffers,
            lambda begun, end: self.spans.append(Span("wait", begun, end)),
        )
        with closing(turns):
            for _, (a, b) in turns:
                self.reader.check()
                begun = time()
                loaded += multiply_pieces(
                    a, b, self.c, job.region, job.strips, call.kernel, call.tile, adds
                )
                adds = True
                self.spans.append(Span("multiply", begun, time()))
                self.reporter.one_more()
        return loaded

    def _fetched_bytes(self, panel: ProductPanel) -> int:
        """Bytes of a buffer for what a panel fetches."""
        size = as_dtype(self.job.dtype).itemsize
        fetched = (p for p in (*panel.a, *panel.b) if p.source != self.job.rank)
        return sum(-(-p.size * size // _ALIGN) * _ALIGN for p in fetched)

    def _fetch(self, panel: ProductPanel, buffer: Any) -> tuple[Held, Held]:
        """The pieces of A and of B: views of what is here, others read into ``buffer``."""
        held, at = list[Held](), 0
        size = as_dtype(self.job.dtype).itemsize
        for name, pieces in (("A", panel.a), ("B", panel.b)):
            mine: Held = []
            for piece in pieces:
                if piece.source == self.job.rank:
                    whole = self.job.tilings[name].regions[piece.source]
                    mine.append((piece.region, self.own[name][place_in(piece.region, whole)]))
                    continue
                room = None if buffer is None else buffer[at:]
                mine.append((piece.region, self.reader.read(*self._lent(name, piece), room)))
                at += -(-piece.size * size // _ALIGN) * _ALIGN
            held.append(mine)
        return held[0], held[1]

    # -- partial sums -----------------------------------------------------------------------------

    def _sum(self) -> bool:
        """Whether there were partial sums; C holds their sum."""
        job, most = self.job, SUM_BYTES[self.call.transport]
        size, begun_regions = job.summed_in.itemsize, set[Region]()
        steps = {}
        for piece in job.addends:
            row = region_size(piece.region[1:]) * size
            steps[piece] = min(piece.size * size, max(1, most // row) * row) // row, row
        others = [rows * row for piece, (rows, row) in steps.items() if piece.source != job.rank]
        buffer = _buffer(job, self.call.transport, max(others)) if others else None
        for piece in job.addends:
            begun, there = time(), self.c[place_in(piece.region, job.region)]
            adds = piece.region in begun_regions
            if piece.source == job.rank:
                whole = job.tilings["partial"].regions[job.rank]
                _put(there, self.own["partial"][place_in(piece.region, whole)], adds)
                finish(self.c)
            else:
                block, ends = self._lent("partial", piece)
                parts = self.reader.read_by_rows(block, ends, buffer, steps[piece][0])
                for first, some in parts:
                    _put(there[first : first + len(some)] if there.ndim else there, some, adds)
                    finish(self.c)  # the next rows take their place
            begun_regions.add(piece.region)
            self.spans.append(Span("sum", begun, time()))
        return bool(job.addends)


def _empty(job: RankJob, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if job.backend == "numpy":
        return host_memory.empty(shape, dtype)
    return namespace(job.backend).empty(shape, dtype)


def _buffer(job: RankJob, transport: str, nbytes: int) -> Any:
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


def _reporter(job: RankJob, call: RankCall, reader: Reader) -> Reporter:
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

    more = counted if call.on_page else None
    return Reporter(call.exchange, job.rank, len(job.panels), more=more)
