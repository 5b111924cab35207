"""The product of two stored matrices, panel by panel, in less memory than any of them takes.

    A, B  --each worker reads the panels it needs-->  a tile of C  --it writes its own-->  C
    client    the tiles that are finished, beside C                        journal.py

    fetch     [read 1][read 2]     [read 3]           two pairs of panels, in turn
    compute   [multiply 0][multiply 1] ... [write]    C tile += A panel @ B panel
    beside                                    [fsync] and then it is recorded

Nothing moves between workers. A product that was killed goes on from what is recorded, in another
process and with other workers.
"""

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
from dask.context import thread_state
from distributed import Client, Future, get_worker

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Counted, counting
from tiledask.distributed.cluster.progress import Progress, Reporter, watching
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.cluster.tasks import slot_of
from tiledask.distributed.connecting.connect import check_shared, cluster_of
from tiledask.distributed.deadlines import DEADLINE, seconds_of
from tiledask.distributed.out_of_core.disk import free
from tiledask.distributed.out_of_core.journal import Journal, differences
from tiledask.distributed.out_of_core.stored import (
    StoredArray,
    describe,
    materialize,
    open_array,
    remove,
)
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.distributed.products.panels import finish, prefetched
from tiledask.errors import ConfigError, DoesNotFitError, PlacementError
from tiledask.plan.intervals import Interval
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import Region, extents_of, region_size
from tiledask.plan.products.streaming import Cuts, Problem, StreamPlan, plan_cuts, plan_stream
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.tile import accumulator, workspace
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, on_device, to_numpy
from tiledask.tile.levels import as_tile

__all__ = ["StoredProduct", "multiply_stored"]

_LETTING_GO = 20.0
"""Seconds that a product that failed waits for its workers, which stop at their next panel."""
_SLOW = 1e9
"""FLOP per second of a worker by which a product that was given no timeout has one."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredProduct(StoredArray):
    """The result of a product of stored matrices: a StoredArray, and what its making took."""

    plan: StreamPlan | None = None
    """The plan of what this run had left to do."""
    traffic: Both | None = None
    """Traffic between workers, predicted (none) and measured."""
    memory: Both | None = None
    """Ledger, a place per slot, predicted and measured."""
    bytes_read: Both | None = None
    """Bytes read from files by all workers, predicted and counted."""
    seconds: float = 0.0
    """How long this run took, measured by the client."""
    resumed_tiles: int = 0
    """Tiles that an earlier run had finished."""


class _Product(NamedTuple):
    """What is multiplied, into what, and how."""

    a: StoredArray
    b: StoredArray
    c: StoredArray
    kernel: str
    tile: Any

    @property
    def about(self) -> dict[str, Any]:
        """What the sums depend on, besides the cuts; for JSON."""
        c, tile = self.c, self.tile
        lies = {"kind": c.kind, "chunks": list(c.chunks) if c.chunks else None}
        return {
            "A": self.a.identity(),
            "B": self.b.identity(),
            "result": {"shape": list(c.shape), "dtype": c.dtype.name, **lies},
            "kernel": {"name": self.kernel, "tile": tile and list(as_tile(tile))},
        }


def multiply_stored(
    a: StoredArray,
    b: StoredArray,
    out: StoredArray | str | os.PathLike[str],
    cluster: Cluster | Client | str,
    *,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
    timeout: float | None = None,
    progress: Progress = None,
    resume: bool = True,
    overwrite: bool = False,
) -> StoredProduct:
    """C = A @ B from files into a file, as a StoredProduct.

    cluster
        On one that td.connect gave, workers must find A, B and the folder of ``out`` as they are
        here, on a file system that all share: that is looked at first, else ConfigError.
    out
        A path, .npy or .zarr, which is created; or a StoredArray, whose elements are replaced. If
        the path exists and is no unfinished product, only ``overwrite`` replaces it.
    kernel, tile
        How each worker multiplies its panels: see ``td.tile.matmul``.
    memory_limit
        Bytes a worker may take beyond what it holds already. Default: half of what it has, so
        that the system can keep in its page cache what is read more than once; a quarter, an
        eighth ... where it holds too much already for Dask to leave it that.
    timeout
        Seconds for the whole. Default: 300, and what the plan would take at 1 GFLOP/s a worker.
    progress
        True draws a bar, False none, None one where somebody watches. A function is called with
        (panels multiplied, panels in all), from another thread.
    resume
        What an unfinished product recorded in ``<out>.tiledask`` is taken up where it ended, with
        its tiles, if operands and kernel are the same (otherwise ConfigError). False starts over.

    The same plan gives the same bits, interrupted or not. Raises DoesNotFitError before anything
    runs if no tiles fit, ConfigError if ``out`` is an operand, its disk is too full, or an operand
    changes meanwhile. An error, an interrupt or a timeout stops the workers at their next panel;
    then the same call goes on.
    """
    seconds = None if timeout is None else seconds_of(timeout)
    cluster = cluster_of(cluster, "a product of files")
    check_kernel(kernel, cluster.backend)
    a, b = _operands(a, b, kernel)
    workspace(1, 1, 1, a.dtype.itemsize, kernel, tile)  # raises for what does not go together
    product = _Product(a, b, _target(out, a, b, resume), kernel, tile)
    target, given = product.c, isinstance(out, StoredArray)
    check_shared(cluster, [a.path, b.path], [os.path.dirname(target.path)])
    journal = Journal(target.path)
    if os.path.lexists(target.path) and not (given or overwrite or journal.exists):
        raise ConfigError(
            f"{target.path} exists and is no unfinished product; overwrite=True replaces it, "
            f"td.open_array opens it"
        )
    with journal.claimed():
        if not (resume and os.path.lexists(target.path)):
            journal.forget()
        about, begun = product.about, journal.exists
        cuts, finished = journal.read(about, target.shape) if begun else (None, set())
        plan = _planned(product, cluster, memory_limit, cuts, timeout)
        if not begun:
            _begin(target, about, plan.cuts, journal, create=not given)
        left = plan.remaining(finished)
        if seconds is None:
            m, n, k = left.problem.extents
            seconds = DEADLINE + 2 * m * n * k / cluster.slots / _SLOW
        nbytes, counted = _run(cluster, product, left, journal, seconds, progress)
        if changed := differences(about, product.about):
            raise ConfigError(
                f"while it was multiplied, {'; '.join(changed)}: {target.path} mixes before and "
                f"after. Run it again with resume=False"
            )
        journal.forget()
    return StoredProduct(
        **{field.name: getattr(target, field.name) for field in fields(StoredArray)},
        plan=left,
        traffic=Both(Traffic.of(cluster.slots).on(cluster.hosts), counted.traffic),
        memory=Both(left.ledger, counted.ledger({})),
        bytes_read=Both(left.bytes_read, nbytes),
        seconds=counted.seconds,
        resumed_tiles=len(finished),
    )


# -- what is multiplied --------------------------------------------------------------------------


def _operands(a: Any, b: Any, kernel: str) -> tuple[StoredArray, StoredArray]:
    """A and B as their files are now, which multiply."""
    a, b = _now("A", a), _now("B", b)
    for name, operand in (("A", a), ("B", b)):
        if (journal := Journal(operand.path)).exists:
            raise ConfigError(
                f"{name}, {operand.path}, is the result of a product that is not finished: make "
                f"the same call again to finish it, or, if it was written otherwise since, remove "
                f"{journal.path}"
            )
    if a.shape[1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} has {a.shape[1]} columns and B {b.shape} has {b.shape[0]} rows, they "
            f"must be equal; is one of them to be stored transposed?"
        )
    check_types(a.dtype, b.dtype, kernel, convert="store")
    return a, b


def _now(name: str, array: Any) -> StoredArray:
    """``array`` as its file is now, which must be of the same shape and type."""
    if not isinstance(array, StoredArray):
        raise TypeError(
            f"{name} is a {type(array).__name__}; stored matrices are multiplied with stored "
            f"matrices: numpy.save it and td.open_array the file"
        )
    now = open_array(array.path)
    if (now.shape, now.dtype) != (array.shape, array.dtype):
        raise ConfigError(f"{name} was opened as {array}, and is now {now}; td.open_array it again")
    return now


def _target(out: Any, a: StoredArray, b: StoredArray, resume: bool) -> StoredArray:
    """The result as it is, or as it will be once it is created."""
    shape = a.shape[0], b.shape[1]
    given = isinstance(out, StoredArray)
    target = _now("out", out) if given else describe(out, shape, a.dtype)
    there = os.path.exists(target.path)
    if there and resume and Journal(target.path).exists:
        target = open_array(target.path)
    if (target.shape, target.dtype) != (shape, a.dtype):
        raise PlacementError(
            f"A {a.shape} @ B {b.shape} is {shape} {a.dtype}, {target.path} is {target.shape} "
            f"{target.dtype}; name another file, or start this one over with resume=False"
        )
    for name, operand in (("A", a), ("B", b)):
        if there and os.path.samefile(target.path, operand.path):
            raise ConfigError(
                f"the result {target.path} is {name} itself, which is read until the end; name "
                f"another file"
            )
    return target


# -- the plan, new or recorded -------------------------------------------------------------------


def _planned(
    product: _Product,
    cluster: Cluster,
    memory_limit: int | str | None,
    cuts: Cuts | None,
    timeout: float | None,
) -> StreamPlan:
    """The plan with the largest tiles; or with the ``cuts`` that were recorded."""
    room = room_of(cluster, timeout=timeout)
    limit = cluster.memory_limit // 2 if memory_limit is None else parse_bytes(memory_limit)
    while memory_limit is None and limit > room.bytes > 0:
        limit //= 2  # and not the room itself: the same product shall be cut alike another time
    a, b, c, kernel, tile = product
    itemsize, wide = a.dtype.itemsize, accumulator(a.dtype).itemsize

    def work(m: int, n: int, k: int) -> int:
        return workspace(m, n, k, itemsize, kernel, tile, True, wide)

    extents, chunks = (*c.shape, a.shape[1]), (a.grid, b.grid, c.grid)
    problem = Problem(extents, itemsize, chunks, wide, work)
    if cuts is None:
        plan = plan_stream(problem, cluster.slots, limit)
    else:
        plan = plan_cuts(problem, cuts, cluster.slots, limit)
    if (needs := plan.ledger.peak) > room.bytes:
        more = room.raised(needs) or f"memory_limit={format_bytes(room.bytes)!r}"
        raise DoesNotFitError(
            f"tiles of {'x'.join(map(str, plan.cuts.tile))} with panels of {plan.cuts.panel} "
            f"take {format_bytes(needs)} a slot, the workers leave {room}. What would fit: {more}"
            f"{', and resume=False' * bool(cuts)}"
        )
    return plan


def _begin(
    target: StoredArray, about: dict[str, Any], cuts: Cuts, journal: Journal, create: bool
) -> None:
    """None, once the product is recorded and the result's file is there."""
    needs, has = target.unwritten(), free(os.path.dirname(target.path))
    if needs > has:
        raise ConfigError(
            f"{target.path} needs {format_bytes(needs)} more on its disk, {format_bytes(has)} are "
            f"free; make room, or name a file on another disk"
        )
    if create:
        # in this order: what is recorded of a result that is not there is known to be of no use
        remove(target)
    journal.begin(about, cuts)
    if create:
        materialize(target)


# -- running it ----------------------------------------------------------------------------------


def _run(
    cluster: Cluster,
    product: _Product,
    plan: StreamPlan,
    journal: Journal,
    seconds: float,
    progress: Progress,
) -> tuple[int, Counted]:
    """(bytes that all workers read, what was counted meanwhile)."""
    if "zarr" in (product.a.kind, product.b.kind, product.c.kind):
        cluster.run(_load_zarr)  # before memory is counted
    run, (m, n, k) = uuid.uuid4().hex, plan.problem.extents
    depths = plan.cuts.panels(k)
    panels = [len(depths)] * len([*chain(*plan.tiles)])
    what = f"product {m}x{k} @ {k}x{n} into {os.path.basename(product.c.path)}"
    left, numbers = dict[Region, Future[int]](), iter(range(len(panels)))
    with counting(cluster) as counted, watching(progress, run, panels, what, cluster):
        try:
            for turn in zip_longest(*plan.tiles):
                mine = {slot: region for slot, region in enumerate(turn) if region}
                given = {
                    slot: (product, region, depths, run, next(numbers), cluster.backend)
                    for slot, region in mine.items()
                }
                tiles = cluster.submit_all(_multiply_tile, given, name="stream")
                ends = {slot_of(tile): (tile, product.c, mine[slot_of(tile)]) for tile in tiles}
                on_disk = cluster.submit_all(_sync, ends, name="sync", beside=True)
                left |= zip(mine.values(), on_disk, strict=True)
            futures = [*left.values()]

            def record(*_: int) -> None:
                for region, future in [*left.items()]:
                    if future.status == "finished":
                        journal.finish(region)
                        del left[region]

            cluster.wait(futures, what, seconds, record)
            record()
            return sum(cluster.gather(futures, what, seconds, cancel=True)), counted
        except BaseException:
            with suppress(Exception):  # what is cancelled writes to the result until it stops
                cluster.client.cancel([*left.values()], force=True)
                stopped = [cluster.submit(slot, int) for slot in range(cluster.slots)]
                cluster.gather(stopped, "the end", _LETTING_GO)
            raise


# -- on a worker ---------------------------------------------------------------------------------


def _load_zarr() -> None:
    import zarr.buffer.cpu  # noqa: F401


def _multiply_tile(
    product: _Product,
    region: Region,
    depths: Sequence[Interval],
    run: str,
    number: int,
    backend: str,
) -> int:
    """Bytes read, once the tile of C at ``region`` is written."""
    (rows, columns), (m, n), dtype = region, extents_of(region), product.a.dtype
    width, xp, nbytes = depths[0][1], namespace(backend), list[int]()
    buffers = [
        [host_memory.empty((extent * width,), dtype) for extent in (m, n)] for _ in depths[:AHEAD]
    ]
    allocate = host_memory.empty if backend == "numpy" else xp.empty
    tile, reporter = allocate((m, n), accumulator(dtype)), Reporter(run, number, len(depths))

    def fetch(depth: Interval, buffer: list[np.ndarray]) -> list[Any]:
        panels, parts = [], ((rows, depth), (depth, columns))
        for x, part, space in zip(product[:2], parts, buffer, strict=True):
            panel = space[: region_size(part)].reshape(extents_of(part))
            nbytes.append(x.read(part, panel))
            panels.append(xp.asarray(panel))
        return panels

    with prefetched(depths, fetch, buffers) as fetched:
        for start, _ in depths:
            x, y = next(fetched)
            _check_wanted()
            with on_device(tile):
                tile_matmul(x, y, product.kernel, product.tile, tile, beta=float(start > 0))
            finish(tile)
            del x, y  # on a GPU they are memory that the next panel takes
            reporter.one_more()
    product.c.write(region, to_numpy(tile))
    reporter.report()
    return sum(nbytes)


def _sync(nbytes: int, c: StoredArray, region: Region) -> int:
    """``nbytes``, once the tile at ``region`` would survive a loss of power."""
    c.sync(region)
    return nbytes


def _check_wanted() -> None:
    """Raise once nobody wants what this task makes."""
    task = get_worker().state.tasks.get(thread_state.key)
    if task is None or task.state == "cancelled":
        raise RuntimeError(f"{thread_state.key} was cancelled; what is finished is recorded")
