"""What one rank does for a product, on its worker: its panels, or the partial sums of its part.

multiply   C = sum of A panel @ B panel                read from other workers' blocks
sum        C = sum of the ranks' partial sums          where k is shared out, in rank order
move       C = the pieces of another tiling            what `redistribute` does
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pickle import dumps, loads
from time import time
from typing import Any, NamedTuple

import numpy as np
from distributed import Future

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.progress import reporter
from tiledask.distributed.products.panels import (
    Held,
    finish,
    multiply_pieces,
    place_in,
    prefetched,
)
from tiledask.distributed.transport.blocks import Made, Reader, made_of, submit_blocks
from tiledask.distributed.transport.tickets import Ticket
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product_plan import AHEAD, ProductPanel, ProductPlan
from tiledask.plan.products.regions import Region, around, ends_within, extents_of, region_size
from tiledask.plan.products.traffic import Piece, Traffic
from tiledask.tile import TileCount, TileTraffic, accumulator, as_dtype
from tiledask.tile.backend import namespace, synchronize

__all__ = ["SUM_BYTES", "Stages", "moves", "product_stages", "run_stages", "summed_in"]

SUM_BYTES = {"numpy": 2**20, "cupy": 2**25}
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


class RankWork(NamedTuple):
    """What one rank does."""

    rank: int
    tilings: dict[str, Tiling]
    """How "A", "B" and the "partial" sums lie."""
    region: Region
    """What of C it makes."""
    strips: tuple[Region, ...]
    """What of that its panels are multiplied into."""
    panels: tuple[ProductPanel, ...]
    addends: tuple[Piece, ...]
    """Partial sums that it adds up first, in this order."""
    dtypes: tuple[str, str, str]
    """Of the operands, of the sum, and of C as it is left."""
    backend: str
    kernel: str = "blas"
    tile: Any = None
    run: str = ""
    """The run that it reports on to the dashboard's page; none if that does not show it."""
    tickets: Mapping[tuple[str, int], Ticket] = {}
    """By (array, rank), of its own blocks and those that it reads."""

    def blocks(self) -> set[tuple[str, int]]:
        """(array, rank) of all blocks that it has or reads."""
        own = {(array, self.rank) for array in self.tilings}
        named = [("partial", self.addends)]
        for panel in self.panels:
            named += ("A", panel.a), ("B", panel.b)
        return own | {(array, piece.source) for array, pieces in named for piece in pieces}


Stage = tuple[str, list[RankWork]]
"""The name of its tasks, and the work by rank."""


def product_stages(plan: ProductPlan, dtype: str, backend: str) -> list[Stage]:
    """What the ranks of a product do: multiply, and where k is shared out, add up partial sums.

    Where these are added in place, a rank multiplies first what others add up, and its own part of
    C last, on top of the others' sums.
    """
    in_place, multiply, add_up = plan.sums_in_place, list[RankWork](), list[RankWork]()
    tilings = {"A": plan.a, "B": plan.b}
    for rank, (region, part) in enumerate(zip(plan.work.regions, plan.result.regions, strict=True)):
        panels = plan.panels[rank]
        wide = summed_in(as_dtype(dtype), backend, len(panels), plan.sums).name
        types = dtype, wide, wide if plan.sums else dtype
        strips = tuple(around(region, part)) if in_place else (region,)
        multiply.append(RankWork(rank, tilings, region, strips, panels, (), types, backend))
        if plan.sums:
            addends, panels = (plan.summed[rank], panels) if in_place else (plan.partials[rank], ())
            others = any(piece.source != rank for piece in addends)
            wide = summed_in(as_dtype(dtype), backend, len(panels), others).name
            types, every = (dtype, wide, dtype), tilings | {"partial": plan.work}
            add_up.append(RankWork(rank, every, part, (part,), panels, addends, types, backend))
    stages = [(f"multiply_{plan.algorithm}", multiply)]
    return [*stages, ("reduce_scatter", add_up)] if plan.sums else stages


def moves(
    source: Tiling, target: Tiling, pieces: Sequence[Piece], dtype: str, backend: str
) -> list[RankWork]:
    """Each rank's block under another tiling: its pieces, those for the same place added."""
    types, made = (dtype,) * 3, list[RankWork]()
    for rank, region in enumerate(target.regions):
        mine = tuple(p for p in pieces if p.destination == rank)
        made.append(RankWork(rank, {"partial": source}, region, (), (), mine, types, backend))
    return made


class Stages(NamedTuple):
    """What the ranks of a product, or of a redistribution, have done."""

    blocks: tuple[Future[Any], ...]
    """By rank, the block that the last stage made."""
    traffic: Traffic
    """Counted, from slot to slot."""
    growth: tuple[int, ...]
    """By rank, the most bytes that its process took beyond those it held as the first stage began;
    on a GPU, its memory pool."""
    tiles: TileCount | None


def run_stages(
    cluster: Cluster,
    slots: Sequence[int],
    stages: Sequence[Stage],
    arrays: Mapping[str, Sequence[Future[Any]]],
    what: str,
    timeout: float | None,
    **how: Any,
) -> Stages:
    """Run the ``stages``, (name of its tasks, work by rank), one after the other.

    ``arrays`` are "A", "B" and "partial", blocks by rank: what one stage leaves are the partial
    sums of the next. ``how``: kernel, tile and run.
    """
    blocks, done = list[Future[Any]](), list[list[Made]]()
    for name, works in stages:
        given = {**arrays, "partial": blocks} if blocks else arrays
        tickets = {array: [made.ticket for made in made_of(each)] for array, each in given.items()}
        args = dict[int, Sequence[Any]]()
        for rank, (slot, work) in enumerate(zip(slots, works, strict=True)):
            mine = {(array, of): tickets[array][of] for array, of in work.blocks()}
            spec = dumps(work._replace(tickets=mine, **how))
            args[slot] = spec, *(given[array][rank] for array in work.tilings)
        blocks = submit_blocks(cluster, _run_rank, args, name)
        cluster.wait(blocks, what, timeout, cancel=True)
        done.append(made_of(blocks))
    every = [made for stage in done for made in stage]
    reads = [(source, made.ticket.slot, n) for made in every for source, n in made.reads]
    growth = (max(m.peak for m in of_rank) - of_rank[0].held for of_rank in zip(*done, strict=True))
    return Stages(
        tuple(blocks),
        Traffic.of(cluster.slots, reads).on(cluster.hosts),
        tuple(max(0, each) for each in growth),
        TileCount.of(count for made in every for count in made.tiles),
    )


def _run_rank(given: bytes, *own: Any) -> Any:
    """The block of C, or a partial sum of it, that a rank makes.

    ``given`` is a RankWork, pickled: the scheduler need not look into it. Its ``own`` blocks come
    in the order of the tilings.
    """
    work = loads(given)
    reader = Reader((work.tickets[name, work.rank] for name in work.tilings), work.backend)
    try:
        return reader.lent(_Rank(work, dict(zip(work.tilings, own, strict=True)), reader).result())
    finally:
        reader.opened.close()


class _Rank:
    """One rank at work."""

    def __init__(self, work: RankWork, own: dict[str, Any], reader: Reader) -> None:
        self.work, self.own, self.reader, self.spans = work, own, reader, reader.spans
        # not a method: a circle of references would keep the blocks until Python looks for circles
        spans = partial(_spans, work, reader)
        self.panel_done = reporter(work.run, work.rank, len(work.panels), spans)
        self.c = self._empty(extents_of(work.region), as_dtype(work.dtypes[1]))

    def result(self) -> Any:
        """C, once the partial sums and the panels were gone through."""
        if self.work.addends:
            self._sum()
        elif not self.work.panels:
            self.c[...] = 0
        self._multiply()
        self.panel_done(at_end=True)
        return self.c.astype(as_dtype(self.work.dtypes[2]), copy=False)

    def _lent(self, name: str, piece: Piece) -> tuple[Ticket, Region]:
        """(another rank's block, where the piece lies in it)."""
        whole = self.work.tilings[name].regions[piece.source]
        return self.work.tickets[name, piece.source], ends_within(piece.region, whole)

    def _own(self, name: str, piece: Piece) -> Any:
        """A view of the piece of the rank's own block."""
        return self.own[name][place_in(piece.region, self.work.tilings[name].regions[piece.source])]

    def _multiply(self) -> None:
        """Add the products of all panels to C."""
        work, loaded = self.work, list[TileTraffic | None]()
        sizes = [sum(map(self._bytes, panel.fetched(work.rank))) for panel in work.panels]
        fetching = [panel for panel, size in zip(work.panels, sizes, strict=True) if size]
        buffers = [self._buffer(max(sizes)) for _ in fetching[:AHEAD]]
        with prefetched(fetching, self._fetch, buffers) as coming:
            for number, (panel, size) in enumerate(zip(work.panels, sizes, strict=True)):
                asked = time()
                a, b = next(coming) if size else self._fetch(panel, None)
                self.reader.check()
                begun, adds = time(), bool(number or work.addends)
                if size:
                    self.spans.append(("wait", number, asked, begun))
                loaded += multiply_pieces(
                    a, b, self.c, work.region, work.strips, work.kernel, work.tile, adds
                )
                del a, b  # on a GPU they are memory that the next panel takes
                self.spans.append(("multiply", number, begun, time()))
                self.panel_done()
        if work.panels or "partial" not in work.tilings:
            self.reader.tiles.append(TileCount.of(loaded))

    def _bytes(self, piece: Piece) -> int:
        """What a piece takes of a buffer."""
        return -(-piece.size * as_dtype(self.work.dtypes[0]).itemsize // _ALIGN) * _ALIGN

    def _fetch(self, panel: ProductPanel, buffer: Any) -> list[Held]:
        """The pieces of A and of B: views of what is here, others read into ``buffer``."""
        at, held = 0, list[Held]()
        for name, pieces in (("A", panel.a), ("B", panel.b)):
            held.append([])
            for piece in pieces:
                if piece.source == self.work.rank:
                    part = self._own(name, piece)
                else:
                    part = self.reader.read(*self._lent(name, piece), buffer[at:])
                    at += self._bytes(piece)
                held[-1].append((piece.region, part))
        return held

    def _sum(self) -> None:
        """Add up the partial sums, in their order; others' some rows at a time."""
        work, begun_regions, size = self.work, set[Region](), self.c.itemsize
        at_a_time = SUM_BYTES[work.backend] // size
        others = (
            min(piece.size, max(at_a_time, region_size(piece.region[1:]))) * size
            for piece in work.addends
            if piece.source != work.rank
        )
        buffer = self._buffer(max(others, default=0))
        for piece in work.addends:
            begun, place = time(), self.c[place_in(piece.region, work.region)]
            if piece.source == work.rank:
                parts = iter([(0, self._own("partial", piece))])
            else:
                rows = max(1, at_a_time // region_size(piece.region[1:]))
                parts = self.reader.read_by_rows(*self._lent("partial", piece), buffer, rows)
            for first, part in parts:
                there = place[first : first + len(part)] if place.ndim else place
                if piece.region in begun_regions:
                    there += part
                else:  # assigned, not added to zero: the sign of a zero stays
                    there[...] = part
                finish(self.c)  # the next rows take their place
            begun_regions.add(piece.region)
            self.spans.append(("sum", 0, begun, time()))

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        backend = self.work.backend
        return (host_memory if backend == "numpy" else namespace(backend)).empty(shape, dtype)

    def _buffer(self, nbytes: int) -> Any:
        """Bytes to read into."""
        made = self._empty((nbytes,), np.dtype(np.uint8))
        synchronize(made)  # what the GPU did with this memory before: copies do not wait for it
        return made


def _spans(work: RankWork, reader: Reader) -> list[Any]:
    """What the rank did since the last report, by the scheduler's clock, for the page."""
    delay, new = now() - time(), reader.spans[:]
    del reader.spans[: len(new)]
    return [(work.rank, kind, n, start + delay, stop + delay) for kind, n, start, stop in new]
