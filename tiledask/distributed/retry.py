"""What a lost worker ended is called again by the client, which alone decides, until time is over.

call 0   ....x  worker lost
                slots have workers again
call 1          ............ done
"""

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from distributed import KilledWorker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ClusterLostError, DeadlineError

__all__ = ["retry_lost"]

T = TypeVar("T")
_UNCHANGED = 3
"""How often a call is lost, and no worker, until it is said."""
_DEATHS = 4
"""How often in a row the same workers end in the same state until it is said; Dask's number."""


def retry_lost(
    cluster: Cluster,
    slots: Sequence[int],
    seconds: float,
    attempt: Callable[[int, float], T],
    state: Callable[[], Any] = tuple,
) -> T:
    """What ``attempt(number, seconds left)`` returns, called again when a worker was lost in it.

    Raises what it raises otherwise: ClusterLostError where the cluster is closed, a task is named
    that ends its worker each time, no time is left, or the workers are those that were there
    before; and where the same slots have lost theirs four times in a row, in the same ``state``.
    """

    def addresses(left: float) -> list[str]:
        workers = cluster.wait_for_slots(slots, left)
        return [workers[slot]["address"] for slot in slots]

    deadline, before = time.monotonic() + seconds, addresses(seconds)
    ended, times = (set[int](), state()), 0
    for number in count():
        begun = time.monotonic()
        try:
            return attempt(number, max(1e-3, deadline - begun) if number else seconds)
        except ClusterLostError as lost:
            took = time.monotonic() - begun
            cluster.check_alive()
            if isinstance(lost.__cause__, KilledWorker):  # whose task that was is known
                raise
            try:
                now = addresses(max(0.0, deadline - time.monotonic()))
            except DeadlineError:
                raise lost from None
            gone = {slot for slot, a, b in zip(slots, before, now, strict=True) if a != b}
            last, ended, before = ended, (gone, state()), now
            times = times + 1 if ended == last else 1
            if gone and times == _DEATHS:
                raise ClusterLostError(
                    f"the work of slots {sorted(gone)} ended their workers {_DEATHS} times in a "
                    f"row, {took:.1f} s after it was begun: it needs more memory than there "
                    f"is, or native code that it calls crashes. Look at the workers' output, give "
                    f"it less at a time, or call its functions by themselves"
                ) from lost
            # a connection may break and every worker live; not again and again
            if (not gone and times >= _UNCHANGED) or time.monotonic() >= deadline:
                raise
    raise AssertionError
