"""How busy a machine was with other things while something ran on it.

    load               processes that want a core at a time, the run's own too
    cores x seconds    =  idle  +  ours  +  others'
                                   this process and all that it has started, workers among them

The system's load average forgets over minutes, and doesn't say whose load it is. Here both are
counted while the block runs.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["CpuSeconds", "Load", "cpu_seconds", "measuring_load"]

OTHERS = 0.25
"""Share of the cores from which on a high load is the doing of others."""
_LOOK = 0.05  # seconds between two looks at who wants a core


class CpuSeconds(NamedTuple):
    """CPU time counted up to a moment, on the cores that this process may use."""

    at: float
    """Seconds of a clock that never goes back."""
    cores: int
    busy: float
    """Core-seconds of all processes; of those that yield to this one, by their nice value, none."""
    ours: float
    """Core-seconds of this process and all that it has started, the ended ones included."""


class Load(NamedTuple):
    """Who wanted a machine's cores while something ran, and who had them, on average.

    >>> print(Load(12.3, others=1.9, cores=2), Load(12.3, others=1.9, cores=2).is_high)
    load 12.3 on 2 cores True
    >>> Load(4.0, others=0.1, cores=2).is_high, Load(1.2, others=1.0, cores=2).is_high
    (False, False)
    """

    wanted: float
    """Processes and threads that ran or could have run."""
    others: float
    """Cores that others had."""
    cores: int

    @property
    def is_high(self) -> bool:
        """Whether more wanted a core than there are, and others had a good part of them: what was
        timed meanwhile says little of what was measured."""
        return self.wanted > self.cores and self.others >= OTHERS * self.cores

    def __str__(self) -> str:
        return f"load {self.wanted:.3g} on {self.cores} cores"


@contextmanager
def measuring_load() -> Iterator[Callable[[], Load]]:
    """While the block runs the load is measured; call what it gives to know it so far."""
    begun, over, wanted = cpu_seconds(), threading.Event(), [_wanted()]

    def look() -> None:
        while not over.wait(_LOOK):
            wanted.append(_wanted())

    def so_far() -> Load:
        now = cpu_seconds()
        # counters are in hundredths of a second: what is none may seem to be less
        others = max(0.0, now.busy - begun.busy - max(0.0, now.ours - begun.ours))
        return Load(sum(wanted) / len(wanted), others / max(now.at - begun.at, 1e-9), now.cores)

    looking = threading.Thread(target=look, name="load", daemon=True)
    looking.start()
    try:
        yield so_far
    finally:
        over.set()
        looking.join()


def _wanted() -> float:
    """How many want a core now, but for who asks; where the system doesn't say, of late."""
    try:
        running = Path("/proc/loadavg").read_text().split()[3].split("/")[0]
        return max(0.0, float(running) - 1)
    except (OSError, IndexError, ValueError):
        return os.getloadavg()[0]


def cpu_seconds() -> CpuSeconds:
    """The CPU time counted so far."""
    here = psutil.Process()
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    counted = psutil.cpu_times(percpu=True)
    every = [counted[n] for n in allowed if n < len(counted)] or counted
    kinds = ["user", "system", "irq", "softirq", "steal"]
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:  # then those of a nice value don't yield
        kinds.append("nice")
    busy = sum(getattr(core, kind, 0.0) for core in every for kind in kinds)
    ours = 0.0
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended meanwhile: its parent has its time
            spent = process.cpu_times()
            ours += spent.user + spent.system
            ours += getattr(spent, "children_user", 0.0) + getattr(spent, "children_system", 0.0)
    return CpuSeconds(time.monotonic(), len(every), busy, ours)
