"""Tasks that are pinned to slots, and questions outside of tasks: how they begin, end and fail."""

import asyncio
import contextlib
import copy
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from distributed import Client, Future, KilledWorker

from tiledask.distributed.deadlines import DEADLINE, HEAR, end_of
from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["asked", "check_status", "enter", "failure", "slot_named", "slot_of"]
__all__ += ["slot_on", "states", "workers_of"]

T = TypeVar("T")


def slot_named(resources: Iterable[str]) -> int:
    """The slot of a worker that has these resources; -1 if it is in none.

    >>> slot_named(["GPU", "slot12"]), slot_named(["slots"])
    (12, -1)
    """
    named = (name.removeprefix("slot") for name in resources if name.startswith("slot"))
    return next((int(number) for number in named if number.isdigit()), -1)


def slot_on(worker: Any) -> int:
    """The slot that a worker is in, on itself; -1 if it is in none."""
    return slot_named(worker.state.total_resources)


def slot_of(future: Future[Any]) -> int:
    """The slot that `Cluster.submit` gave ``future``; -1 for a future from elsewhere."""
    slot: int = vars(future).get("slot", -1)
    return slot


def enter(function: Callable[..., Any], *args: Any) -> Any:
    """Every task starts here, on its worker: arrays aligned, and contiguous in C or Fortran order.

    Blocks that were sent or spilled come back unaligned, and then sums round differently.
    """

    def ready(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        return np.require(x, requirements=["F" if x.flags.fnc else "C", "A"])

    return function(*map(ready, args))


# -- failures --------------------------------------------------------------------------------------


def failure(cluster: Any, future: Future[Any], what: str) -> BaseException:
    """What the failed ``future`` raised, and where."""
    if future.status == "cancelled":
        cluster.check_alive()
        return ClusterLostError(
            f"{what}: task {future.key} was cancelled; the cluster runs on: make it again"
        )
    error = future.exception(timeout=30)
    if isinstance(error, KilledWorker):
        named = ClusterLostError(
            f"{what}, in slot {slot_of(future)}: {error}. It needs more memory than there is, or "
            f"native code crashes"
        )
        named.__cause__ = error  # by which it is known that trying again will not do
        return named
    with contextlib.suppress(Exception):
        # the client keeps its own as long as the future lives, and so would keep the frames
        # that this one passes, or has passed, and the future and blocks in them
        error = copy.copy(error.with_traceback(None))
    error.add_note(f"raised in slot {slot_of(future)} during {what}")
    raised: BaseException = error.with_traceback(future.traceback(timeout=30))
    return raised


def states(cluster: Any, slots: Iterable[int]) -> list[str]:
    """How each of these slots is: without a worker, or last heard of when."""
    workers, now, found = cluster.workers(), time.time(), []
    for slot in sorted(slots):
        how = "it has no worker"
        if facts := workers.get(slot):
            how = f"its worker was last heard of {max(0, now - facts['last_seen']):.1f} s ago"
        found.append(f"slot {slot} ({how})")
    return found


# -- questions -------------------------------------------------------------------------------------


def asked(
    client: Client,
    call: Callable[[], Awaitable[T]],
    seconds: float,
    what: Callable[[], str] = lambda: "the scheduler",
) -> T:
    """What ``call()``, of the client's loop, returns.

    Raises DeadlineError, that ``what()`` did not answer within ``seconds``; ClusterLostError if the
    client has lost its scheduler.
    """
    check_status(client.status)
    begun, end = time.monotonic(), end_of(seconds)
    try:
        found: T = client.sync(call, callback_timeout=end - begun)
    except (Exception, asyncio.CancelledError) as error:
        late = isinstance(error, TimeoutError)
        # of a connection that broke it is known within a second whose end is gone
        for _ in range(1 if late or not isinstance(error, OSError) else 50):
            check_status(client.status)
            time.sleep(HEAR / 5)
        if late and (now := time.monotonic()) >= end:
            raise DeadlineError(
                f"{what()} did not answer within {now - begun:.3g} s: frozen, busy or gone. Give "
                f"it longer with timeout=, or look at the logs of scheduler and workers"
            ) from None
        raise
    return found


def check_status(status: str) -> None:
    """Raise ClusterLostError if a cluster, or the client that speaks to it, is not "running"."""
    if status != "running":
        raise ClusterLostError(
            f"the cluster is {status}, or its scheduler is gone; make a new one with "
            f"td.start_cluster(), or td.connect(address), where a product of files, "
            f"td.matmul(a, b, out=, cluster=), or td.train(..., folder=) goes on"
        )


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """Address -> what the scheduler knows of each worker now.

    `Client.scheduler_info` may have totals without workers. Raises ClusterLostError if the
    scheduler is gone.
    """
    with contextlib.suppress(OSError):  # whoever needs a worker waits for it, and says so
        scheduler: Any = client.scheduler
        found: Any = asked(client, partial(scheduler.identity, n_workers=-1), DEADLINE)
        return dict(found["workers"])
    return {}
