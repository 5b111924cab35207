"""Use of a machine's cores while a block ran, and what a schedule would leave of them idle."""

import threading
import time
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import psutil

from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Schedule

__all__ = ["CoreSeconds", "Meter", "idle_on_cores"]

LOOK = 0.05
"""Seconds between two looks at the machine's counters."""


class CoreSeconds(NamedTuple):
    """Core-seconds of the machine since it was started, and of this process."""

    busy: float
    idle: float
    stolen: float
    """By the host, from a virtual machine."""
    mine: float


class Meter:
    """Looks at the machine's counters while the block runs, so that they are known at any time."""

    def __enter__(self) -> "Meter":
        self._over, self._seen = threading.Event(), [self._look()]
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        self._seen.append(self._look())

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self._seen.append(self._look())

    @staticmethod
    def _look() -> tuple[float, ...]:
        t = psutil.cpu_times()
        idle, stolen = t.idle + getattr(t, "iowait", 0.0), getattr(t, "steal", 0.0)
        busy = t.user + t.nice + t.system + getattr(t, "irq", 0.0) + getattr(t, "softirq", 0.0)
        return time.time(), busy, idle, stolen, time.process_time()

    def between(self, begin: float, end: float) -> CoreSeconds:
        """What was spent between two times of the block, in seconds since 1970."""
        at, *counters = np.array(self._seen).T
        return CoreSeconds(*(float(np.diff(np.interp((begin, end), at, c))[0]) for c in counters))


def idle_on_cores(schedule: Schedule, copies: int, cores: int) -> float:
    """The share of ``cores`` that stay idle if ``copies`` of each device carry out ``schedule`` on
    them, any device on any core, a backward twice as long as a forward, and nothing else waits.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> [round(idle_on_cores(schedule("1f1b", 2, 2), 1, cores), 4) for cores in (1, 2)]
    [0.0, 0.3333]
    """
    waits, took = needs(schedule), {"F": 1.0, "B": 2.0}
    queues = {
        at: list(reversed(schedule.orders[at[1]]))
        for at in product(range(copies), range(schedule.devices))
    }
    done, running, now, busy = set(), [], 0.0, 0.0
    while any(queues.values()) or running:
        at_work = {at for _, at, _ in running}
        for at, queue in queues.items():
            if len(running) == cores or not queue or at in at_work:
                continue
            if all((at[0], before) in done for before in waits[queue[-1]]):
                action = queue.pop()
                heappush(running, (now + took[action.kind], at, action))
                busy += took[action.kind]
        now, at, action = heappop(running)
        done.add((at[0], action))
    return 1 - busy / (cores * now)
