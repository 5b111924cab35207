"""The product of two stored matrices, panel by panel, in less memory than any of them takes.

    A, B  --each worker reads the panels it needs-->  a tile at a time  --each writes its own-->  C

Nothing moves between workers. Finished tiles are recorded beside the result, so that a product
that was killed goes on from there, in another process and with other workers.
"""

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from distributed import Client

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Counted, counting
from tiledask.distributed.cluster.progress import Progress, watching
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.distributed.connecting.shared import check_shared
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
from tiledask.distributed.out_of_core.tiles import StoredOperands, multiply_tiles, warm
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.errors import ConfigError, DoesNotFitError, PlacementError
from tiledask.plan.products.streaming import Cuts, Problem, StreamPlan, plan_cuts, plan_stream
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.tile import workspace
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
    product = StoredOperands(a, b, _target(out, a, b, resume), kernel, tile)
    target, given = product.c, isinstance(out, StoredArray)
    check_shared(cluster, [a.path, b.path], [os.path.dirname(target.path)])
    journal = _journal(target)
    if os.path.lexists(target.path) and not (given or overwrite or journal.exists):
        raise ConfigError(
            f"{target.path} exists and is no unfinished product; overwrite=True replaces it, "
            f"td.open_array opens it"
        )
    with journal.claimed():
        if not (resume and os.path.lexists(target.path)):
            journal.forget()
        about, begun = _about(product), journal.exists
        cuts = journal.cuts(about, target.shape) if begun else None
        plan = _planned(product, cluster, memory_limit, cuts, timeout)
        if not begun:
            _begin(target, about, plan.cuts, journal, create=not given)
        finished = {region for region in plan.cuts.regions if journal.finished(region)}
        left = plan.remaining(finished)
        if seconds is None:
            m, n, k = left.problem.extents
            seconds = DEADLINE + 2 * m * n * k / cluster.slots / _SLOW
        nbytes, counted = _run(cluster, product, left, journal, seconds, progress)
        if changed := differences(about, _about(product)):
            raise ConfigError(
                f"while it was multiplied, {'; '.join(changed)}: {target.path} mixes before and "
                f"after. Run it again with resume=False"
            )
        journal.forget()
    return StoredProduct(
        **_fields(target),
        plan=left,
        traffic=Both(Traffic.of(cluster.slots).on(cluster.hosts), counted.traffic),
        memory=Both(left.ledger, counted.ledger({})),
        bytes_read=Both(left.bytes_read, nbytes),
        seconds=counted.seconds,
        resumed_tiles=len(finished),
    )


# -- what is asked for ---------------------------------------------------------------------------


def _operands(a: Any, b: Any, kernel: str) -> tuple[StoredArray, StoredArray]:
    """A and B as their files are now, which multiply."""
    a, b = _now("A", a), _now("B", b)
    for name, operand in (("A", a), ("B", b)):
        if (journal := _journal(operand)).exists:
            raise ConfigError(
                f"{name}, {operand.path}, is the result of a product that is not finished: make "
                f"the same call again to finish it, or, if it was written otherwise since, remove "
                f"{journal.folder}"
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
    if there and resume and _journal(target).exists:
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


def _journal(array: StoredArray) -> Journal:
    return Journal(f"{array.path}.tiledask")


def _about(product: StoredOperands) -> dict[str, Any]:
    """What the sums depend on, besides the cuts; for JSON."""
    a, b, c, kernel, tile = product
    lies = {"kind": c.kind, "chunks": list(c.chunks) if c.chunks else None}
    return {
        "A": a.identity(),
        "B": b.identity(),
        "result": {"shape": list(c.shape), "dtype": c.dtype.name, **lies},
        "kernel": {"name": kernel, "tile": None if tile is None else list(as_tile(tile))},
    }


# -- the plan, new or recorded -------------------------------------------------------------------


def _planned(
    product: StoredOperands,
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
    (a, b, c, kernel, tile), wide = product, product.summed_in.itemsize

    def work(m: int, n: int, k: int) -> int:
        return workspace(m, n, k, a.dtype.itemsize, kernel, tile, True, wide)

    extents, chunks = (*c.shape, a.shape[1]), (a.grid, b.grid, c.grid)
    problem = Problem(extents, a.dtype.itemsize, chunks, wide, work)
    if cuts is None:
        plan = plan_stream(problem, cluster.slots, limit)
    else:
        plan = plan_cuts(problem, cuts, cluster.slots, limit)
    if (needs := plan.ledger.peak) > room.bytes:
        more = room.raised(needs) or f"memory_limit={format_bytes(room.elsewhere())!r}"
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
    product: StoredOperands,
    plan: StreamPlan,
    journal: Journal,
    seconds: float,
    progress: Progress,
) -> tuple[int, Counted]:
    """(bytes that all workers read, what was counted meanwhile)."""
    if not any(plan.tiles):  # the last run was killed between its last tile and its end
        with counting(cluster) as counted:
            return 0, counted
    run, (m, n, k) = uuid.uuid4().hex, plan.problem.extents
    panels = [len(mine) * len(plan.cuts.panels(k)) for mine in plan.tiles]
    tiles = {slot: mine for slot, mine in enumerate(plan.tiles) if mine}
    what = f"product {m}x{k} @ {k}x{n} into {os.path.basename(product.c.path)}"
    loaded = cluster.submit_all(warm, dict.fromkeys(tiles, (product, cluster.backend)), name="load")
    cluster.wait(loaded, f"loading what the {what} needs", min(seconds, DEADLINE), cancel=True)
    jobs = {
        slot: (product, plan.cuts, mine, journal, run, slot, cluster.backend)
        for slot, mine in tiles.items()
    }
    with counting(cluster) as counted, watching(progress, run, panels, what, cluster):
        futures = cluster.submit_all(multiply_tiles, jobs, name="stream")
        try:
            return sum(cluster.gather(futures, what, seconds, cancel=True)), counted
        except BaseException:
            with suppress(Exception):  # what was cancelled wrote to the result: until it stopped
                ends = [cluster.submit(slot, int) for slot in jobs]
                cluster.gather(ends, "the end", _LETTING_GO)
            raise


def _fields(array: StoredArray) -> dict[str, Any]:
    return {f.name: getattr(array, f.name) for f in fields(StoredArray)}
