"""What a lost worker ended is called again by the client, which alone decides, until time is over.

call 0   ....x  worker lost
                slots have workers again
call 1          ............ done
"""

import time
import traceback
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from distributed import KilledWorker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.transport.tickets import LoanLostError
from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["retry_lost"]

T = TypeVar("T")
_LOSSES = 10
"""How often in a row a call is lost in the same state until it is said."""


def retry_lost(
    cluster: Cluster,
    slots: Sequence[int],
    seconds: float,
    attempt: Callable[[int, float], T],
    state: Callable[[], Any] = tuple,
) -> T:
    """What ``attempt(number, seconds left)`` returns, called again when a worker was lost in it.

    Raises what it raises otherwise: ClusterLostError where the cluster is closed, a task is named
    that ends its worker each time, what it needs cannot be made again, no time is left, or it was
    lost ten times in the same ``state``.
    """
    deadline, last, losses = time.monotonic() + seconds, None, 0
    for number in count():
        try:
            return attempt(number, max(1e-3, deadline - time.monotonic()) if number else seconds)
        except ClusterLostError as lost:
            error: BaseException | None = lost
            while error is not None:  # their frames hold blocks, and each other
                traceback.clear_frames(error.__traceback__)
                error = error.__context__
            cluster.check_alive()
            last, before = state(), last
            losses = losses + 1 if last == before else 1
            if losses == _LOSSES:
                raise ClusterLostError(
                    f"workers were lost {losses} times in a row during this work: it needs more "
                    f"memory than there is, or native code crashes. Look at the workers' output"
                ) from lost
            known = isinstance(lost.__cause__, KilledWorker | LoanLostError)
            if known or time.monotonic() >= deadline:
                raise  # whose task that was is known, or what is lost for good; or it is too late
            try:
                cluster.wait_for_slots(slots, max(0.0, deadline - time.monotonic()))
            except DeadlineError:
                raise lost from None
    raise AssertionError
