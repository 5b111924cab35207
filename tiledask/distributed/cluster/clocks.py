"""What time it is on the scheduler, known to every worker by asking it several times.

    worker     before ------.               .------ after        offset = there - (before + after)/2
    scheduler                '--- there ---'                     error <= (after - before)/2

The shortest of several round trips says the most (Cristian 1989). An offset within its error is
taken for none: workers on the scheduler's own machine read the same clock, and noise shall not
make a result be used before it was made.
"""

import time
from typing import Any

from tiledask.distributed.cluster.cluster import Cluster

__all__ = ["Clock", "clock_of", "now", "set_clocks"]

ROUNDS = 8
"""Round trips of which the shortest counts."""
_offset = 0.0


Clock = tuple[float, float]
"""How far a worker's clock is from the scheduler's: seconds to add to its time, 0 if that cannot be
told from 0; and seconds by which it may be wrong: half of the shortest round trip, and where it was
not told from 0, what there seemed to be of it as well."""


def clock_of(trips: list[tuple[float, float, float]]) -> Clock:
    """The Clock that round trips (before, there, after) tell.

    >>> clock_of([(0.0, 7.5, 1.0), (2.0, 7.25, 2.5)]), clock_of([(0.0, 0.75, 1.0)])
    ((5.0, 0.25), (0.0, 0.75))
    """
    before, there, after = min(trips, key=lambda trip: trip[2] - trip[0])
    offset, error = there - (before + after) / 2, (after - before) / 2
    return (offset, error) if abs(offset) > error else (0.0, error + abs(offset))


def set_clocks(cluster: Cluster, timeout: float | None = None) -> list[Clock]:
    """The Clock of every slot's worker, which now tells the scheduler's time by `now`."""
    return cluster.run(_set, timeout=timeout)


def now() -> float:
    """Seconds since 1970 by the scheduler's clock (in a worker whose clock was set)."""
    return time.time() + _offset


async def _set(dask_worker: Any) -> Clock:
    global _offset
    ask = dask_worker.scheduler.tiledask_clock
    found = clock_of([(time.time(), await ask(), time.time()) for _ in range(ROUNDS)])
    _offset = found[0]
    return found
