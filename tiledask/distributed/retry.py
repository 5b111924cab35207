"""What a lost worker ended is called again by the client, which alone decides, until time is over.

call 0   ....x  worker lost
                slots have workers again
call 1          ............ done
"""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar

from distributed import Future, KilledWorker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.tasks import slot_of
from tiledask.distributed.deadlines import seconds_of
from tiledask.distributed.transport.tickets import LoanLostError
from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["call_again", "retry_lost"]

T = TypeVar("T")
_CALLS = 20
"""After so many that were lost, the work itself is taken to end its workers."""


def call_again(
    cluster: Cluster,
    blocks: Iterable[Future[Any]],
    what: str,
    timeout: float | None,
    attempt: Callable[[], T],
) -> T:
    """What ``attempt()`` returns once the ``blocks`` are there; called again, with those that were
    lost made again, if a worker dies meanwhile."""
    blocks = [*blocks]

    def once(number: int, seconds: float) -> T:
        try:
            cluster.wait(blocks, what, seconds)
        except LoanLostError as lost:
            raise ClusterLostError(f"{what}: {lost}") from lost
        return attempt()

    return retry_lost(cluster, [*map(slot_of, blocks)], seconds_of(timeout), once)


def retry_lost(
    cluster: Cluster,
    slots: Sequence[int],
    seconds: float,
    attempt: Callable[[int, float], T],
) -> T:
    """What ``attempt(number, seconds left)`` returns, called again when a worker was lost in it.

    Raises what it raises otherwise: ClusterLostError where the cluster is closed, a task is named
    that ends its worker each time, what it needs cannot be made again, no time is left, or it was
    lost in 20 calls.
    """
    deadline = time.monotonic() + seconds
    for number in count():
        try:
            return attempt(number, max(1e-3, deadline - time.monotonic()) if number else seconds)
        except ClusterLostError as lost:
            error: BaseException | None = lost
            while error is not None:  # their frames hold blocks, and each other
                traceback.clear_frames(error.__traceback__)
                error = error.__context__
            cluster.check_alive()
            known = isinstance(lost.__cause__, KilledWorker | LoanLostError)
            if known or number + 1 == _CALLS or time.monotonic() >= deadline:
                raise  # whose task that was is known, or what is lost for good; or it is too late
            try:
                cluster.wait_for_slots(slots, max(0.0, deadline - time.monotonic()))
            except DeadlineError:
                raise lost from None
    raise AssertionError
