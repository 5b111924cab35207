"""Every slot of a started cluster has a worker again, whatever became of the last one.

    its process ended                       its nanny starts another: Dask's own part
    its nanny ended, or was retired         another nanny is started for the slot
    its process was stopped, for 3 s        it is killed, and its nanny starts another

Who is frozen, frozen.py says.
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Iterable
from time import monotonic
from typing import Any

from distributed import Nanny, SpecCluster, Status

from tiledask.distributed.recovering.frozen import LOOK, Frozen, end, process_state
from tiledask.distributed.recovering.poison import name_of

__all__ = ["ENDED", "Supervisor", "close_quietly"]

logger = logging.getLogger(__name__)

ENDED = (Status.closing, Status.closing_gracefully, Status.closed, Status.failed)
"""States of a nanny that starts no worker any more."""
_UNSEEN = 1.0
"""Seconds for which a nanny that runs may have no process: it is between two."""
_MOST_PAUSE = 10.0
"""Seconds, at most, between two tries to start a worker that does not start."""


class Supervisor:
    """Watches the nannies and workers of a Dask cluster in this process, until it is stopped."""

    def __init__(self, cluster: SpecCluster) -> None:
        self._cluster = weakref.ref(cluster)
        self._stopping = threading.Event()
        self._frozen = Frozen()
        self._empty: dict[Any, float] = {}  # slot: since when
        self._filling: Any = None
        self._failures, self._again = 0, 0.0
        self.thread = threading.Thread(target=self._watch, name="tiledask-supervisor", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """None; no slot is refilled from now on."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK):
            cluster, now = self._cluster(), monotonic()
            if cluster is None or cluster.status not in (Status.running, Status.starting):
                return
            if self._frozen.late(now):  # this process was away itself
                self._empty.clear()
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
                pids[pid] = slot, nanny.address
        self._end_the_frozen(pids, now)

    def _end_the_frozen(self, slots: dict[int, tuple[Any, str]], now: float) -> None:
        for pid, seconds in self._frozen.among(slots.keys(), now).items():
            slot, nanny = slots[pid]
            state = process_state(pid)
            if state is None:
                continue
            logger.warning(
                "the worker of slot %s (process %d) was stopped for %.0f s: it is ended, and "
                "another takes its slot",
                *(slot, pid, seconds),
            )
            end(pid, name_of(nanny, state.parent))

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
    """None; the nanny is closed, if not by itself within 5 s then by hand. Its worker's process has
    ended: one that was stopped while it started would be waited for by its nanny for ever."""
    worker = nanny.process
    process = getattr(worker, "process", None)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(nanny.close(timeout=2), 5)
    with contextlib.suppress(Exception):  # it is closed, and has no process any more
        if process is not None and process.is_alive():
            await process.kill()
            await process.join(2)  # it is nobody's worker any more, before there is another
    if nanny.status is not Status.closed:  # else its connections and pipes would stay
        with contextlib.suppress(Exception):
            worker.running.set()  # who closes it waits for that, or for what the end brings
            await asyncio.wait_for(nanny.finished(), 1)
    if nanny.status is not Status.closed:
        nanny.process, nanny.status = None, Status.closed
        with contextlib.suppress(Exception):
            await asyncio.wait_for(super(Nanny, nanny).close(), 2)


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
