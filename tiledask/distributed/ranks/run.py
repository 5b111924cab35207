"""Run a function on all workers of a mesh at once, one long task for each rank.

slot 0   function(rank 0) ....[all_reduce]....[all_gather]... result    one Dask task per rank;
slot 1   function(rank 1) ....[all_reduce]....[all_gather]... result    none between two collectives
"""

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.clocks import set_clocks
from tiledask.distributed.deadlines import GRACE, bounded, end_of, seconds_of
from tiledask.distributed.out_of_core.disk import on_disk
from tiledask.distributed.ranks.rank_function import RankResult, Ranks, arguments, collected, ran
from tiledask.distributed.retry import retry_lost
from tiledask.distributed.transport.messages import Where, endpoint_of, opened
from tiledask.errors import ConfigError

__all__ = ["run_ranks"]

PATIENCE = 20.0
"""Seconds that setting up may take even if the function's own timeout is shorter."""


@bounded
def run_ranks(
    function: Callable[..., Any],
    mesh: Mesh,
    *args: Any,
    per_rank: Sequence[Any] | None = None,
    timeout: float | None = None,
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
    attempt = partial(_run, function, mesh, given)
    return retry_lost(mesh.cluster, mesh.at, seconds, attempt) if again else attempt(0, seconds)


def _run(
    function: Callable[..., Any],
    mesh: Mesh,
    given: Sequence[Sequence[Any]],
    _: int,
    seconds: float,
) -> Ranks:
    """`run_ranks`, once."""
    cluster, patience = mesh.cluster, max(seconds, PATIENCE)
    run = f"tiledask-ranks-{uuid.uuid4().hex[:12]}"
    set_clocks(cluster, patience)
    with on_disk(cluster.spool):
        scratch = tempfile.TemporaryDirectory(dir=cluster.spool, ignore_cleanup_errors=True)
    with scratch as folder, opened(cluster, run, mesh.at, folder, patience) as where:
        left = end_of(seconds) - time.monotonic() - GRACE  # they say it before this call does
        reach = max(GRACE, left), where
        about = mesh.shape, cluster.backend, mesh.names
        each = [(run, r, *reach, about, function, *mine) for r, mine in enumerate(given)]
        name = getattr(function, "__name__", "function")
        tasks = cluster.submit_all(_work, dict(zip(mesh.at, each, strict=True)), name=name)
        what = f"{name} on {mesh.ranks} ranks"
        parts = cluster.gather(tasks, what, seconds + GRACE, cancel=True)
    return collected(parts, mesh.hosts)


def _work(
    run: str,
    rank: int,
    seconds: float,
    where: tuple[Where, ...],
    about: tuple[tuple[int, ...], str, tuple[str, ...]],
    function: Callable[..., Any],
    *args: Any,
) -> RankResult:
    """The function on this worker (a task); sockets go to ``where`` the ranks are."""
    transport, (shape, backend, names) = endpoint_of(run, rank), about
    transport.begin(time.monotonic() + seconds, where)
    return ran(function, shape, transport, backend, args, names)
