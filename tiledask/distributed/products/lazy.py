"""x @ y as a lazy dask.array, for dask.arrays of any chunks and any scheduler.

dask.array's own product makes every x_ik @ y_kj an array and adds those up. Here a task makes a
whole tile of the result, so that few blocks travel and few partial results are held.

    lazy_plan.py    cuts the result into tiles, and k where a tile's task would not fit
    lazy_graph.py   the graph of that plan
    lazy_tasks.py   what its tasks do
"""

from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import dask.multiprocessing
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import get_scheduler, tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.cluster.cluster import RUNNING, Cluster, slot_named, workers_of
from tiledask.distributed.products.lazy_graph import Graph, Operand, check_chunks
from tiledask.distributed.products.lazy_plan import LazyPlan, Machine, plan_product
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.errors import (
    ClusterLostError,
    ConfigError,
    DeadlineError,
    DoesNotFitError,
    KernelError,
    PlacementError,
    short,
)
from tiledask.plan.units import parse_bytes
from tiledask.tile import probe
from tiledask.tile.backend import array_namespace

__all__ = ["OPTIONS", "multiply"]

OPTIONS = ("memory_limit", "kernel", "tile", "verify")
"""What `multiply` takes."""

SHARE = 0.5
"""The share of a worker's memory that its product tasks may hold; the blocks of x and y that
live there, and whatever else it keeps, have the rest."""
MOST = 0.7
"""The share of it that one task may hold if it is asked to: beyond, Dask moves blocks to disk, then
pauses the worker and kills it."""
_BACK = 30.0
"""Seconds that a plan waits for a first worker where all are lost."""
_GRAIN = 2**26
_TASK = {"distributed": 1.5e-3, "local": 1e-4}  # seconds that a task costs besides its work


def multiply(
    x: Any,
    y: Any,
    *,
    memory_limit: int | str | None = None,
    kernel: str = "blas",
    tile: Any = None,
    verify: bool = False,
) -> da.Array:
    """x @ y as a lazy dask.array, for dask.arrays of any chunks.

    x is (..., m, k) or (k) and y is (k, n) or (k), both float16, bfloat16, float32 or float64; one
    of them may be a NumPy array. The chunks of the result are the tiles of a plan that was made
    for the scheduler that is active now; any scheduler can run it.

    memory_limit
        Bytes that one task may hold. Default: half of what a thread of the active scheduler has,
        less what a worker's process takes by itself; no more than 70 % of it on a cluster.
    kernel, tile
        How a task multiplies: see ``td.tile.matmul``.
    verify
        Each task compares its tile with the blocks that it was given, by random signs (Freivalds),
        and multiplies again once, with a UserWarning, if that is wrong; then DamagedBlockError.

    Where x and y together are larger than all tasks may hold at once, blocks that depend on nothing
    but a source (a file, a random seed) are made within each task that uses them, and dropped. What
    it takes to make one, besides the block itself, is assumed to be as much again.

    Raises PlacementError for operands that do not multiply, and DoesNotFitError if a block, or the
    smallest task that there is, is larger than the limit.

    >>> x = da.ones((6, 4), chunks=(2, 3))
    >>> multiply(x, x.T).sum().compute(scheduler="synchronous").item()
    144.0
    """
    if not isinstance(verify, bool):
        raise ConfigError(
            f"verify of a lazy product is True or False, got {short(verify)}; whether blocks are "
            f"finite is known when they are computed: da.isfinite(x).all()"
        )
    x, y = _operands(x, y, kernel)
    shape = (*x.shape[:-1], *y.shape[1:])
    meta = meta_from_array(x._meta, ndim=len(shape), dtype=x.dtype)
    if 0 in (*x.shape, *y.shape):
        empty: da.Array = da.zeros_like(meta, shape=shape, chunks=-1)
        return empty
    machine = _machine(x, y)
    limit = machine.task_bytes if memory_limit is None else parse_bytes(memory_limit)
    left, right, plan = _planned(x, y, machine, limit, kernel, tile)
    token = tokenize(x, y, plan, left.side, right.side, kernel, tile, verify)
    # Dask learns from its prefix how long a task takes: products of other sizes have other names
    name = f"tiledask_matmul_1e{len(str(plan.task_flops)) - 1}-{token}"
    tasks = Graph(name, plan, left, right, kernel, tile, verify).tasks()
    cuts = (plan.tiles[:-1] if x.ndim > 1 else ()) + (plan.tiles[-1:] if y.ndim > 1 else ())
    chunks = tuple(tuple(b - a for a, b in pairwise(edges)) for edges in cuts)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[x, y])
    return da.Array(graph, name, chunks, meta=meta)


def _planned(
    x: da.Array, y: da.Array, machine: Machine, limit: int, kernel: str, tile: Any
) -> tuple["Operand", "Operand", LazyPlan]:
    """x, y and their plan: with blocks that tasks make where all together are too large to keep."""

    def attempt(made: bool) -> tuple["Operand", "Operand", LazyPlan]:
        left, right = Operand.of(x, True, made), Operand.of(y, False, made)
        plan = plan_product(left.side, right.side, machine, limit, kernel=kernel, tile=tile)
        return left, right, plan

    if x.nbytes + y.nbytes > limit * machine.threads:
        with suppress(DoesNotFitError):
            return attempt(made=True)
    return attempt(made=False)


def _operands(x: Any, y: Any, kernel: str) -> tuple[da.Array, da.Array]:
    """x and y as dask.arrays that multiply, of native byte order; else PlacementError."""
    found = []
    for name, z in (("x", x), ("y", y)):
        if isinstance(z, ShardedArray):
            raise PlacementError(
                f"{name} is a ShardedArray and the other is not, both must be one or the other; "
                f"use {name}.to_dask(), or td.from_dask for the other"
            )
        if not isinstance(z, da.Array) and not hasattr(z, "__array_function__"):
            raise TypeError(f"{name} is a {type(z).__name__}, must be a dask.array; see da.asarray")
        z = z if isinstance(z, da.Array) else da.from_array(z, chunks="auto")
        _check_operand(name, z)
        found.append(z if z.dtype.isnative else z.astype(z.dtype.newbyteorder("=")))
    x, y = found
    if x.ndim < 1 or y.ndim not in (1, 2):
        raise PlacementError(
            f"x must have 1 dimension or more and y 1 or 2, as in (..., k) @ (k, n), got {x.shape} "
            f"@ {y.shape}; dask's own x @ y broadcasts"
        )
    if x.shape[-1] != y.shape[0]:
        raise PlacementError(
            f"x {x.shape} has {x.shape[-1]} columns and y {y.shape} has {y.shape[0]} rows, they "
            f"must be equal; transpose one of them?"
        )
    check_kernel(kernel, array_namespace(x._meta).__name__)
    check_types(x.dtype, y.dtype, kernel, ("x", "y"))
    return x, y


def _check_operand(name: str, z: da.Array) -> None:
    check_chunks(name, z)
    dense = not isinstance(z._meta, np.ma.MaskedArray)
    try:
        array_namespace(z._meta)
    except KernelError:
        dense = False
    if not dense:
        raise PlacementError(
            f"{name} has blocks of {type(z._meta).__name__}, must be NumPy's or CuPy's arrays; "
            f"convert them with {name}.map_blocks, masked ones with da.ma.filled({name}, 0)"
        )
    if (z.dtype.kind != "f" and z.dtype.name != "bfloat16") or z.dtype.itemsize > 8:
        raise PlacementError(
            f"{name} is {z.dtype}, products here are float16, bfloat16, float32 or float64; use "
            f"{name}.astype('float64'), or dask's own x @ y"
        )


def _machine(x: da.Array, y: da.Array) -> Machine:
    """What the active scheduler would run a graph on."""
    get = get_scheduler(collections=[x, y])
    client = getattr(get, "__self__", None)
    if isinstance(client, Client):
        ours = next((c for c in RUNNING if c.client is client), None)
        if ours is not None:
            ours.check_alive()
        workers = list(workers_of(client).values())
        if ours is not None:  # who is lost comes back: plans, and so bits, are those of all slots
            with suppress(ClusterLostError, DeadlineError):
                workers = workers or list(ours.wait_for_slots([0], _BACK).values())
            workers += workers[:1] * (ours.slots - len(workers))
        if workers:
            return _distributed(workers, x, ours)
    threads = 1
    if get is not dask.local.get_sync:
        pool = getattr(dask.config.get("pool", None), "_max_workers", None)
        pool = get.args[1] if isinstance(get, partial) else pool
        threads = pool or dask.config.get("num_workers", None) or CPU_COUNT
    processes = threads if get is dask.multiprocessing.get else 1
    memory = _memory(x, processes, MEMORY_LIMIT)
    return Machine(processes, threads, int(memory * SHARE / threads), _TASK["local"])


def _distributed(
    workers: list[dict[str, Any]], x: da.Array, cluster: Cluster | None = None
) -> Machine:
    """The Machine of these workers, each of which has no more bytes than a slot of ``cluster``."""
    cap = cluster and cluster.memory_limit
    # a slot of td.start_cluster computes one task at a time; its other thread hands data over
    one = cluster is None or cluster.started_here
    threads = [
        1 if one and slot_named(worker["resources"]) >= 0 else worker["nthreads"]
        for worker in workers
    ]
    memory = [
        _memory(x, len(workers), _left(worker, MEMORY_LIMIT // len(workers))) for worker in workers
    ]
    each = min(min(m, cap or m) / t for m, t in zip(memory, threads, strict=True))
    return Machine(
        len(workers), sum(threads), int(each * SHARE), _TASK["distributed"], int(each * MOST)
    )


def _left(worker: dict[str, Any], otherwise: int) -> int:
    """Bytes of a worker's memory limit beyond what its process holds that is no block of Dask's.

    As its last heartbeat said, rounded up: the same product shall be cut alike another time.
    """
    metrics = worker.get("metrics", {})
    holds: int = max(0, metrics.get("memory", 0) - metrics.get("managed_bytes", 0))
    limit: int = worker["memory_limit"] or otherwise
    return max(1, limit - -(-holds // _GRAIN) * _GRAIN)


def _memory(x: da.Array, processes: int, host: int) -> int:
    """Bytes that each process has for blocks of ``x``: of a GPU here if they are CuPy's, else of
    the ``host``; of a GPU that has the host's memory no more than that."""
    devices = () if array_namespace(x._meta) is np else probe().devices
    if not devices:
        return host
    share = int(min(device.memory for device in devices) * min(1, len(devices) / processes))
    return min(share, host) if any(device.integrated for device in devices) else share
