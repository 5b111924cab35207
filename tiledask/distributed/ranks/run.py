"""Run a function on all workers of a mesh at once, one long task for each rank.

slot 0   function(rank 0) ....[all_reduce]....[all_gather]... result    one Dask task per rank;
slot 1   function(rank 1) ....[all_reduce]....[all_gather]... result    none between two collectives
"""

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.clocks import set_clocks
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.deadlines import GRACE, LAST, bounded, left_of, seconds_of
from tiledask.distributed.out_of_core.disk import writing
from tiledask.distributed.ranks.nccl import Devices
from tiledask.distributed.ranks.rank_function import RankResult, Ranks, arguments, collected, ran
from tiledask.distributed.retry import retry_lost
from tiledask.distributed.transport.messages import Where, endpoint_of, opened
from tiledask.errors import ConfigError
from tiledask.tile.nccl import Place, place, stay_near, why_not

__all__ = ["TRANSPORTS", "run_ranks"]

PATIENCE = 20.0
"""Seconds that setting up may take even if the function's own timeout is shorter."""
TRANSPORTS = "sockets", "posts"
"""How messages go between CPU workers, by name."""


@bounded
def run_ranks(
    function: Callable[..., Any],
    mesh: Mesh,
    *args: Any,
    per_rank: Sequence[Any] | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    again: bool = False,
) -> Ranks:
    """``function(rank, *args)`` on every worker of ``mesh`` at once: results, records, traffic.

    function
        An ordinary function. Its first argument is a `Rank`, whose groups have the collectives
        (``rank.group("tp")`` along an axis that the mesh has a name for);
        what it returns must be picklable; arrays of GPUs come back as NumPy's.
    args, per_rank
        Arrays, numbers, or Dask futures of what is on the workers. ``per_rank``: one more
        argument for each rank, the last.
    timeout
        Seconds that the function may take (default 300). Nothing waits longer.
    transport
        "sockets" between workers of one host, and by Dask's messages between hosts; "posts" all by
        Dask's messages. Both carry arrays of GPUs through host memory. "nccl" has NCCL's own
        all_reduce besides. None takes it where every rank has a GPU of its own and there is NCCL.
    again
        When a worker dies, run the function again on all ranks, from its beginning, as soon as the
        slot has another, until ``timeout`` is over. For a function that may run several times: what
        it writes it must write over, and what it draws it must draw from a seed, and then the
        result is the same to the bit. Otherwise, which is the default, ClusterLostError.

    If any rank raises, the run is over for all: each raises the same error, and so does this.
    Raises CollectiveError where ranks do not call the same collectives, DeadlineError after
    ``timeout``, ClusterLostError if a worker dies, or the scheduler. A rank that computes without
    ever calling a collective cannot be interrupted: it keeps its slot until it returns.

    With ``def function(rank, x): return rank.group().all_reduce(x)``:
    ``td.run_ranks(function, td.Mesh(cluster, (4,)), 1.0).results`` is ``[4.0] * 4``.
    """
    if not isinstance(mesh, Mesh):
        raise ConfigError(
            f"run_ranks(function, mesh, ...) needs a mesh of workers, got {type(mesh).__name__}; "
            f"td.Mesh(cluster, (2, 2)), or run_threads(function, (2, 2)) without a cluster; the "
            f"ranks along an axis are rank.group(axis) in the function"
        )
    seconds, given = seconds_of(timeout), arguments(mesh.shape, args, per_rank)

    def attempt(_: int, left: float) -> Ranks:
        return _run(function, mesh, given, left, transport)

    if not again:
        return attempt(0, seconds)
    return retry_lost(mesh.cluster, mesh.at, seconds, attempt)


def _run(
    function: Callable[..., Any],
    mesh: Mesh,
    given: Sequence[Sequence[Any]],
    seconds: float,
    transport: str | None,
) -> Ranks:
    """`run_ranks`, once."""
    cluster = mesh.cluster
    patience = max(seconds, PATIENCE)
    run = f"tiledask-ranks-{uuid.uuid4().hex[:12]}"
    folder = cluster.spool / run[-12:]
    places = _places(cluster, mesh.at, transport, patience)
    set_clocks(cluster, patience)
    try:
        with writing(folder, lambda: 0):
            folder.mkdir()
        with opened(cluster, run, mesh.at, folder, patience) as where:
            tasks = []
            left = left_of(seconds).seconds - GRACE  # they say it before this call does
            reach = max(LAST, left), () if transport == "posts" else where
            about = mesh.shape, cluster.backend, mesh.names, places
            name = getattr(function, "__name__", "function")
            for r, (slot, mine) in enumerate(zip(mesh.at, given, strict=True)):
                spec = run, r, *reach, about, function, *mine
                tasks.append(cluster.submit(slot, _work, *spec, name=name))
            what = f"{name} on {mesh.ranks} ranks"
            parts = cluster.gather(tasks, what, seconds + GRACE, cancel=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return collected(parts, mesh.hosts)


def _places(
    cluster: Cluster, slots: Sequence[int], asked: str | None, timeout: float
) -> tuple[Place, ...]:
    """Where the ranks are, if arrays go by NCCL; else none. Raises ConfigError if they should go
    by NCCL and cannot."""
    if asked not in (None, "nccl", *TRANSPORTS):
        raise ConfigError(f"no transport {asked!r}; there are {', '.join(TRANSPORTS)}, nccl")
    if asked in TRANSPORTS:
        return ()
    places = ()
    if cluster.backend == "cupy":
        found = cluster.run(place, timeout=timeout)
        places = tuple(found[slot] for slot in slots)
        reason = why_not(places)
    else:
        reason = "NCCL needs GPU workers, and these compute on CPUs"
    if reason and asked:
        raise ConfigError(f"{reason}; leave transport= out, and arrays go through host memory")
    return () if reason else places


def _work(
    run: str,
    rank: int,
    seconds: float,
    where: tuple[Where, ...],
    about: tuple[tuple[int, ...], str, tuple[str, ...], tuple[Place, ...]],
    function: Callable[..., Any],
    *args: Any,
) -> RankResult:
    """The function on this worker (a task); sockets go to ``where`` the ranks are.

    Arrays go from GPU to GPU if ``about`` has the places of all ranks.
    """
    transport, (shape, backend, names, places) = endpoint_of(run, rank), about
    transport.begin(time.monotonic() + seconds, where)
    if places:
        stay_near(places)
        transport.devices = Devices(transport)
    with host_memory.kept_by_malloc():
        return ran(function, shape, transport, backend, args, names)
