"""The product of two stored matrices, panel by panel, in less memory than any of them takes.

    A, B  --each worker reads the panels it needs-->  a tile of C  --it writes its own-->  C
    client    the tiles that are finished, beside C                        journal.py

    fetch     [read 1][read 2]     [read 3]           two pairs of panels, in turn
    compute   [multiply 0][multiply 1] ... [write]    C tile += A panel @ B panel

Nothing moves between workers. A product that was killed goes on from what is recorded, in another
process and with other workers.
"""

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
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
from tiledask.distributed.connecting.connect import check_shared, cluster_of
from tiledask.distributed.deadlines import DEADLINE, seconds_of
from tiledask.distributed.out_of_core.disk import free
from tiledask.distributed.out_of_core.journal import Journal, differences
from tiledask.distributed.out_of_core.stored import StoredArray, describe, materialize, open_array
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
    a, b = _operand("A", a), _operand("B", b)
    if a.shape[1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} has {a.shape[1]} columns and B {b.shape} has {b.shape[0]} rows, they "
            f"must be equal; is one of them to be stored transposed?"
        )
    check_types(a.dtype, b.dtype, kernel, convert="store")
    workspace(1, 1, 1, a.dtype.itemsize, kernel, tile)  # raises for what does not go together
    given, c = isinstance(out, StoredArray), _target(out, a, b, resume)
    check_shared(cluster, [a.path, b.path], [os.path.dirname(c.path)])
    product, journal = _Product(a, b, c, kernel, tile), Journal(c.path)
    if os.path.lexists(c.path) and not (given or overwrite or journal.exists):
        raise ConfigError(
            f"{c.path} exists and is no unfinished product; overwrite=True replaces it, "
            f"td.open_array opens it"
        )
    with journal.claimed():
        about, cuts, finished = product.about, None, set[Region]()
        if resume and journal.exists and os.path.lexists(c.path):
            cuts, finished = journal.read(about, c.shape)
        plan = _planned(product, cluster, memory_limit, cuts, timeout).remaining(finished)
        if cuts is None:
            _begin(c, {**about, "cuts": asdict(plan.cuts)}, journal, create=not given)
        nbytes, counted = _run(cluster, product, plan, journal, seconds, progress)
        if changed := differences(about, product.about):
            raise ConfigError(
                f"while it was multiplied, {'; '.join(changed)}: {c.path} mixes before and after. "
                f"Run it again with resume=False"
            )
        journal.forget()
    return StoredProduct(
        **{field.name: getattr(c, field.name) for field in fields(StoredArray)},
        plan=plan,
        traffic=Both(Traffic.of(cluster.slots).on(cluster.hosts), counted.traffic),
        memory=Both(plan.ledger, counted.ledger({})),
        bytes_read=Both(plan.bytes_read, nbytes),
        seconds=counted.seconds,
        resumed_tiles=len(finished),
    )


# -- what is multiplied --------------------------------------------------------------------------


def _operand(name: str, array: Any) -> StoredArray:
    """``array`` as its file is now: finished, and of the same shape and type."""
    if not isinstance(array, StoredArray):
        raise TypeError(
            f"{name} is a {type(array).__name__}; stored matrices are multiplied with stored "
            f"matrices: numpy.save it and td.open_array the file"
        )
    now, journal = open_array(array.path), Journal(array.path)
    if (now.shape, now.dtype) != (array.shape, array.dtype):
        raise ConfigError(f"{name} was opened as {array}, and is now {now}; td.open_array it again")
    if name != "out" and journal.exists:
        raise ConfigError(
            f"{name}, {array.path}, is the result of a product that is not finished: make the same "
            f"call again to finish it, or, if it was written otherwise since, remove {journal.path}"
        )
    return now


def _target(out: Any, a: StoredArray, b: StoredArray, resume: bool) -> StoredArray:
    """The result as it is, or as it will be once it is created."""
    shape = a.shape[0], b.shape[1]
    given = isinstance(out, StoredArray)
    target = _operand("out", out) if given else describe(out, shape, a.dtype)
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

    problem = Problem((*c.shape, a.shape[1]), itemsize, (a.grid, b.grid, c.grid), wide, work)
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


def _begin(target: StoredArray, record: dict[str, Any], journal: Journal, create: bool) -> None:
    """None, once the product is recorded and the result's file is there."""
    needs, has = target.unwritten(), free(os.path.dirname(target.path))
    if needs > has:
        raise ConfigError(
            f"{target.path} needs {format_bytes(needs)} more on its disk, {format_bytes(has)} are "
            f"free; make room, or name a file on another disk"
        )
    journal.forget()
    journal.append(record)
    if create:
        materialize(target)


# -- running it ----------------------------------------------------------------------------------


def _run(
    cluster: Cluster,
    product: _Product,
    plan: StreamPlan,
    journal: Journal,
    seconds: float | None,
    progress: Progress,
) -> tuple[int, Counted]:
    """(bytes that all workers read, what was counted meanwhile)."""
    for chunked in [x.path for x in product[:3] if x.kind == "zarr"][:1]:
        cluster.run(open_array, chunked)  # so that zarr is loaded before memory is counted
    run, (m, n, k) = uuid.uuid4().hex, plan.problem.extents
    depths = plan.cuts.panels(k)
    tiles = [(slot, region) for slot, mine in enumerate(plan.tiles) for region in mine]
    what = f"product {m}x{k} @ {k}x{n} into {os.path.basename(product.c.path)}"
    if seconds is None:
        seconds = DEADLINE + 2 * m * n * k / cluster.slots / _SLOW
    panels, left = [len(depths)] * len(tiles), dict[Future[int], Region]()

    def record(*_: int) -> None:
        for future in [future for future in left if future.status == "finished"]:
            journal.append(left.pop(future))

    with counting(cluster) as counted, watching(progress, run, panels, what, cluster):
        try:
            for number, (slot, region) in enumerate(tiles):
                given = product, region, depths, run, number, cluster.backend
                left[cluster.submit(slot, _multiply_tile, *given, name="stream")] = region
            futures = [*left]
            cluster.wait(futures, what, seconds, record)
            record()
            return sum(cluster.gather(futures, what, seconds)), counted
        except BaseException:
            with suppress(Exception):  # what is cancelled writes to the result until it stops
                cluster.client.cancel([*left], force=True)
                stopped = [cluster.submit(slot, int) for slot in range(cluster.slots)]
                cluster.gather(stopped, "the end", _LETTING_GO)
            raise


# -- on a worker ---------------------------------------------------------------------------------


def _multiply_tile(
    product: _Product,
    region: Region,
    depths: Sequence[Interval],
    run: str,
    number: int,
    backend: str,
) -> int:
    """Bytes read, once the tile of C at ``region`` is on its disk."""
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
    product.c.sync(region)
    reporter.report()
    return sum(nbytes)


def _check_wanted() -> None:
    """Raise once nobody wants what this task makes."""
    task = get_worker().state.tasks.get(thread_state.key)
    if task is None or task.state == "cancelled":
        raise RuntimeError(f"{thread_state.key} was cancelled; what is finished is recorded")
