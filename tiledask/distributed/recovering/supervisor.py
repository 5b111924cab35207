"""Every slot of a started cluster has a worker again, whatever became of the last one.

    its process ended                       its nanny starts another: Dask's own part
    its nanny ended, or was retired         another nanny is started for the slot
    its process was stopped, for 3 s        it is killed, and its nanny starts another

Only the kernel knows who is frozen: a task that keeps the interpreter's lock for seconds is as
silent as a stopped process, and must not be killed. So it is asked for the process's state, and
stopped is who was so whenever it was looked at. Who looks may have been stopped too (Ctrl-Z stops
client and workers alike): it then comes late, and forgets what it saw before.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Iterable
from time import monotonic
from typing import Any, NamedTuple

import psutil
from distributed import SpecCluster, Status

__all__ = ["ENDED", "Supervisor", "close_quietly", "process_state"]

logger = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds for which a process is stopped before it is taken for frozen."""
ENDED = (Status.closing, Status.closing_gracefully, Status.closed, Status.failed)
"""States of a nanny that starts no worker any more."""
_UNSEEN = 1.0
"""Seconds for which a nanny that runs may have no process: it is between two."""
_MOST_PAUSE = 10.0
"""Seconds, at most, between two tries to start a worker that does not start."""


class ProcessState(NamedTuple):
    """What the kernel says of a process."""

    status: str
    """psutil's: "stopped", which is not "tracing-stop" of a debugger, "running", "sleeping", ..."""
    started: float
    """When, in seconds since 1970: another process of the number differs."""


def process_state(pid: int) -> ProcessState | None:
    """The state of a process; None where there is no such process."""
    try:
        process = psutil.Process(pid)
        return ProcessState(process.status(), process.create_time())
    except psutil.Error:
        return None


class Supervisor:
    """Watches the nannies and workers of a Dask cluster in this process, until it is stopped."""

    def __init__(self, cluster: SpecCluster) -> None:
        self._cluster = weakref.ref(cluster)
        self._stopping = threading.Event()
        self._stopped: dict[int, tuple[ProcessState, float]] = {}  # pid: since when
        self._empty: dict[Any, float] = {}  # slot: since when
        self._filling: Any = None
        self._failures, self._again = 0, 0.0
        threading.Thread(target=self._watch, name="tiledask-supervisor", daemon=True).start()

    def stop(self) -> None:
        """None; no slot is refilled from now on."""
        self._stopping.set()

    def _watch(self) -> None:
        last = monotonic()
        while not self._stopping.wait(LOOK):
            cluster, now = self._cluster(), monotonic()
            if cluster is None or cluster.status not in (Status.running, Status.starting):
                return
            if now - last > 4 * LOOK:  # this process was away itself
                self._stopped.clear()
                self._empty.clear()
            last = now
            self._look(cluster, now)
            del cluster

    def _look(self, cluster: SpecCluster, now: float) -> None:
        pids = {}
        for slot in list(cluster.worker_spec):
            nanny: Any = cluster.workers.get(slot)
            status = Status.closed if nanny is None else nanny.status
            process = getattr(getattr(nanny, "process", None), "process", None)
            pid = getattr(process, "pid", None)
            if status in ENDED or (status is Status.running and pid is None):
                self._empty.setdefault(slot, now)
                if status in ENDED or now - self._empty[slot] > _UNSEEN:
                    self._fill(cluster, now)
            else:
                self._empty.pop(slot, None)
            if pid is not None:
                pids[pid] = slot
        self._end_the_frozen(pids, now)

    def _end_the_frozen(self, pids: dict[int, Any], now: float) -> None:
        for pid in self._stopped.keys() - pids.keys():
            del self._stopped[pid]
        for pid, slot in pids.items():
            state = process_state(pid)
            if state is None or state.status != psutil.STATUS_STOPPED:
                self._stopped.pop(pid, None)
                continue
            before, since = self._stopped.setdefault(pid, (state, now))
            if before.started != state.started:
                self._stopped[pid] = state, now
            elif now - since >= PATIENCE:
                del self._stopped[pid]
                logger.warning(
                    "the worker of slot %s (process %d) was stopped for %.0f s: it is ended, and "
                    "another takes its slot",
                    *(slot, pid, now - since),
                )
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _fill(self, cluster: SpecCluster, now: float) -> None:
        """None; nannies for the slots that are empty are on their way."""
        if self._filling is not None and not self._filling.done():
            return
        if self._filling is not None:
            failed = self._filling.cancelled() or self._filling.exception() is not None
            self._filling = None
            self._failures = self._failures + 1 if failed else 0
            self._again = now + min(_MOST_PAUSE, LOOK * 2**self._failures) if failed else 0.0
        if now >= self._again:
            loop: Any = cluster.loop
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._filling = asyncio.run_coroutine_threadsafe(
                    refilled(cluster, list(self._empty)), loop.asyncio_loop
                )


async def close_quietly(nanny: Any) -> None:
    """None; the nanny is closed, or was asked to in vain for 5 s. Its worker's process has ended:
    one that was stopped while it started would be waited for by its nanny for ever."""
    process = getattr(nanny.process, "process", None)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(nanny.close(timeout=2), 5)
    with contextlib.suppress(Exception):  # it is closed, and has no process any more
        if process is not None and process.is_alive():
            await process.kill()


async def refilled(cluster: SpecCluster, slots: Iterable[Any]) -> None:
    """None, once each of these slots has a new nanny whose worker has started; raises what kept
    one from starting."""
    for slot in slots:
        nanny: Any = cluster.workers.get(slot)
        if nanny is not None and nanny.status not in ENDED and nanny.process is not None:
            continue  # it came back by itself
        cluster.workers.pop(slot, None)
        if nanny is not None:
            await close_quietly(nanny)
    if cluster.status is Status.running:
        await cluster._correct_state()
