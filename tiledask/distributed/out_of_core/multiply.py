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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from dask.context import thread_state
from distributed import Client, Future, get_worker

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Counted, counting
from tiledask.distributed.cluster.progress import Progress, reporter, watching
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.connecting.connect import connect
from tiledask.distributed.deadlines import seconds_of
from tiledask.distributed.out_of_core.journal import journal_of, record, recorded
from tiledask.distributed.out_of_core.stored import StoredArray, describe, materialize, open_array
from tiledask.distributed.products.explain import kernel_of
from tiledask.distributed.products.panels import finish, prefetched
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.intervals import Interval
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import Region, extents_of, region_size
from tiledask.plan.products.streaming import Cuts, Problem, StreamPlan, plan_cuts, plan_stream
from tiledask.tile import accumulator, workspace
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace, on_device, to_numpy
from tiledask.tile.levels import as_tile

__all__ = ["multiply_stored"]

_Product = tuple[StoredArray, StoredArray, StoredArray, tuple[str, Any]]
"""A, B, C, and how panels are multiplied: kernel and tile."""


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
    overwrite: bool = False,
) -> StoredArray:
    """C = A @ B from files into a file, as a StoredArray with what its making took.

    An unfinished product goes on from the tiles that ``<out>.tiledask`` records, if operands and
    kernel are the same (otherwise ConfigError).

    cluster
        Its workers must find A, B and the result where they are here: on several hosts, on a file
        system that all share. ConfigError names the host that does not.
    out
        A path, .npy or .zarr, which is created; or a StoredArray, whose elements are replaced. One
        call at a time works on it.
    kernel, tile
        How each worker multiplies its panels: see ``td.tile.matmul``.
    memory_limit
        Bytes a worker may take beyond what it holds already, never more than Dask leaves it.
        Default: half of what it has: the system's page cache keeps what is read more than once.
    timeout
        Seconds for the whole (default 300).
    progress
        True draws a bar, False none, None one where somebody watches. A function is called with
        (panels multiplied, panels in all), from another thread.
    overwrite
        Start over, whatever ``out`` is.

    The same plan gives the same bits, interrupted or not. Raises DoesNotFitError before anything
    runs if no tiles fit, ConfigError if ``out`` is an operand, its disk is full, or an operand
    changes meanwhile. After an error, an interrupt or a timeout the same call goes on.
    """
    cluster = connect(cluster)
    for name, x in (("A", a), ("B", b)):
        if (begun := journal_of(x.path)).exists():
            raise ConfigError(
                f"{name}, {x.path}, is the result of a product that is not finished: make that "
                f"call again, or, if it was written otherwise since, remove {begun}"
            )
    a, b = open_array(a.path), open_array(b.path)  # as the files are now
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows:
        raise PlacementError(f"A has {k} columns and B has {rows} rows, they must be equal")
    kernel_of(a.dtype, b.dtype, kernel, cluster.backend)
    seconds, given = seconds_of(timeout), isinstance(out, StoredArray)
    c = open_array(out.path) if isinstance(out, StoredArray) else describe(out, (m, n), a.dtype)
    if (c.shape, c.dtype) != ((m, n), a.dtype):
        raise PlacementError(f"A @ B is {(m, n)} {a.dtype}, got {c}; name another file")
    journal, there = journal_of(c.path), os.path.exists(c.path)
    if there and any(os.path.samefile(c.path, x.path) for x in (a, b)):
        raise ConfigError(f"the result {c.path} is an operand; name another file")
    if there and not (given or journal.exists() or overwrite):
        raise ConfigError(
            f"{c.path} exists and is no unfinished product; overwrite=True replaces it"
        )
    how = kernel, tile and as_tile(tile)
    about = {"A": a.stamp(), "B": b.stamp(), "result": repr(c), "kernel and tile": repr(how)}
    goes_on = there and journal.exists() and not overwrite
    cuts, finished = recorded(journal, about) if goes_on else (None, set())
    product = a, b, c, how
    half = cluster.memory_limit // 2 if memory_limit is None else memory_limit
    room = room_of(cluster, limit=half, timeout=timeout)
    plan = _planned(product, cluster, room.bytes, cuts).remaining(finished)
    if not goes_on:
        record(journal, about, plan.cuts, ())
        if not given:
            materialize(c)
    save = lambda made: record(journal, about, plan.cuts, [*finished, *made])  # noqa: E731
    nbytes, counted = _run(cluster, product, plan, save, seconds, progress)
    if (a.stamp(), b.stamp()) != (about["A"], about["B"]):
        raise ConfigError(
            f"an operand changed while it was multiplied: {c.path} mixes before and after; run it "
            f"again with overwrite=True"
        )
    journal.unlink()
    return replace(
        c,
        plan=plan,
        memory=Both(plan.ledger, counted.ledger()),
        bytes_read=Both(plan.bytes_read, nbytes),
        seconds=counted.seconds,
    )


def _planned(product: _Product, cluster: Cluster, limit: int, cuts: Cuts | None) -> StreamPlan:
    """The plan with the largest tiles; or with the ``cuts`` that were recorded."""
    a, b, c, how = product
    itemsize, wide = a.dtype.itemsize, accumulator(a.dtype).itemsize
    problem = Problem(
        (*c.shape, a.shape[1]),
        itemsize,
        (a.grid, b.grid, c.grid),
        wide,
        lambda m, n, k: workspace(m, n, k, itemsize, *how, True, wide),
    )
    given = cluster.slots, limit
    return plan_cuts(problem, cuts, *given) if cuts else plan_stream(problem, *given)


def _run(
    cluster: Cluster,
    product: _Product,
    plan: StreamPlan,
    save: Callable[[list[Region]], None],
    seconds: float,
    progress: Progress,
) -> tuple[int, Counted]:
    """(bytes that all workers read, what was counted meanwhile); ``save`` is called with the tiles
    that are finished, whenever one more is."""
    # every worker finds them, or says so, and loads zarr before memory is counted
    cluster.run(lambda: [open_array(x.path) for x in product[:3]])
    run, (m, n, k) = uuid.uuid4().hex, plan.problem.extents
    what = f"product {m}x{k} @ {k}x{n} into {product[2].path}"
    tiles = [(slot, region) for slot, mine in enumerate(plan.tiles) for region in mine]
    depths, made = plan.cuts.panels(k), dict[Future[int], Region]()

    def finished(*_: int) -> None:
        save([region for future, region in made.items() if future.status == "finished"])

    shown = watching(progress, run, [len(depths)] * len(tiles), what, cluster)
    with counting(cluster) as counted, shown:
        try:
            for number, (slot, region) in enumerate(tiles):
                given = product, region, depths, cluster.backend, run, number
                made[cluster.submit(slot, _multiply_tile, *given, name="stream")] = region
            cluster.wait(made, what, seconds, finished)
            return sum(cluster.gather(made, what, seconds)), counted
        except BaseException:
            # what is cancelled writes to the result until it stops, at its next panel
            with suppress(Exception):
                cluster.client.cancel([*made], force=True)
                stopped = [cluster.submit(slot, int) for slot in range(cluster.slots)]
                cluster.gather(stopped, "the end", 20.0)
            raise


def _multiply_tile(
    product: _Product, region: Region, depths: list[Interval], backend: str, run: str, number: int
) -> int:
    """Bytes read, once the tile of C at ``region`` is on its disk; on a worker."""
    a, b, c, how = product
    (rows, columns), (m, n), nbytes = region, extents_of(region), list[int]()
    xp, width, panel_done = namespace(backend), depths[0][1], reporter(run, number, len(depths))
    buffers = [
        [host_memory.empty((extent * width,), a.dtype) for extent in (m, n)] for _ in depths[:AHEAD]
    ]
    allocate = host_memory.empty if backend == "numpy" else xp.empty
    tile = allocate((m, n), accumulator(a.dtype))

    def fetch(depth: Interval, buffer: list[np.ndarray]) -> list[Any]:
        panels, parts = [], ((rows, depth), (depth, columns))
        for x, part, space in zip((a, b), parts, buffer, strict=True):
            panel = space[: region_size(part)].reshape(extents_of(part))
            nbytes.append(x.read(part, panel))
            panels.append(xp.asarray(panel))
        return panels

    with prefetched(depths, fetch, buffers) as fetched:
        for start, _ in depths:
            x, y = next(fetched)
            task = get_worker().state.tasks.get(thread_state.key)
            if task is None or task.state == "cancelled":
                raise RuntimeError("nobody waits for this product; what is finished is recorded")
            with on_device(tile):
                tile_matmul(x, y, *how, tile, beta=float(start > 0))
            finish(tile)
            del x, y  # on a GPU they are memory that the next panel takes
            panel_done()
    c.write(region, to_numpy(tile), durable=True)
    panel_done(at_end=True)
    return sum(nbytes)
