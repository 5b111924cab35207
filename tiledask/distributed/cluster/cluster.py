"""Workers in numbered slots: give a slot work, wait for it with a deadline.

One worker process per slot. Each carries a Dask *resource* named after its slot and each task
asks for its slot's resource. Addresses and names will not do for pinning: a worker that dies
comes back with another address, and Dask turns names into addresses at submit time, so work
pinned by either waits for ever (dask/distributed issues 8600 and 7346). A resource follows the
slot through a restart.
"""

import contextlib
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future, as_completed
from distributed.comm.core import CommClosedError
from distributed.utils import has_arg

from tiledask.distributed.cluster import device_arrays
from tiledask.distributed.cluster.spool import open_spool
from tiledask.distributed.cluster.tasks import (
    asked,
    check_status,
    enter,
    failure,
    slot_named,
    slot_of,
    slot_on,
    states,
    workers_of,
)
from tiledask.distributed.deadlines import HEAR, end_of, keep_interrupts, seconds_of
from tiledask.distributed.out_of_core.disk import on_disk
from tiledask.errors import ConfigError, DeadlineError
from tiledask.plan import html
from tiledask.plan.products.regions import Region, slices
from tiledask.plan.whole import is_whole

__all__ = ["PAGE", "RUNNING", "Cluster"]

PAGE = "tiledask-page"
"""Dask's name of what collects for the dashboard's page, on the scheduler."""
SCRIPT = f"<script>{Path(__file__).with_name('panel.js').read_text('utf-8')}</script>"
"""Runs where outputs are trusted; nothing in it depends on the cluster."""
RUNNING: list["Cluster"] = []
"""The clusters of this process that are not closed, the newest last."""


@dataclass(eq=False)
class Cluster(contextlib.AbstractContextManager["Cluster"]):
    """Workers in slots 0..n-1 and the client that speaks to them; a context manager."""

    client: Client
    given: Any
    """Dask's own cluster, or what was connected to."""
    _end: Callable[[float], None]
    """Ends what is to end with it, within so many seconds."""
    memory_limits: tuple[int, ...]
    """Per slot, bytes that it may hold: its cap, its share of a GPU, or of its machine."""
    hosts: tuple[str, ...]
    """The host of each slot, as `this_host` has it; or what it is taken to be."""
    backend: str
    """"numpy" or "cupy": what the blocks on the workers are."""
    why: str
    """Why these devices were chosen, one sentence."""
    page: bool
    """Whether the dashboard has tiledask's page."""
    started_here: bool
    """Whether the workers are this process's, and end with the cluster."""
    started: float = field(default_factory=time.time, init=False)
    """Seconds since 1970."""
    counting: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while transfers and memory are counted: one operation at a time."""
    rates: dict[str, Any] = field(default_factory=dict, init=False)
    """Element type -> its measured `tiledask.plan.products.cost.MachineRates`."""

    def __post_init__(self) -> None:
        keep_interrupts()
        self.slots = len(self.memory_limits)
        self.kind = "GPU" if self.backend == "cupy" else "CPU"  # what computes
        # workers make lost blocks again from what lies there: it grows until the cluster is closed
        self.spool, self._remove_spool = open_spool(self)
        scheduler: Any = self.client.scheduler
        comm: Any = self.client.scheduler_comm
        self.scheduler_address: str = scheduler.address
        self._comm, self._ended = comm, ""
        # Dask's client gathers messages for 10 ms before it sends them, which is most of the time
        # of a small product
        comm.interval = 0.001
        if self.backend == "cupy":
            device_arrays.register(on_host=True)
        RUNNING.append(self)

    # -- state ------------------------------------------------------------

    @property
    def memory_limit(self) -> int:
        """Bytes that every slot may hold: the least of ``memory_limits``."""
        return min(self.memory_limits)

    @property
    def status(self) -> str:
        """ "running", or what else has become of it.

        A client that has lost its scheduler connects again, to the same or to one that took its
        place. Neither knows anything of what was there before.
        """
        now = self._ended or self.client.status
        return "lost" if now == "running" and self.client.scheduler_comm is not self._comm else now

    def workers(self) -> dict[int, dict[str, Any]]:
        """slot -> what the scheduler knows of the worker there now."""
        found = {}
        for address, facts in workers_of(self.client).items():
            if (slot := slot_named(facts.get("resources", ()))) >= 0:
                found[slot] = {**facts, "address": address}
        return found

    def check_alive(self) -> None:
        """Raise ClusterLostError if this cluster is closed or lost."""
        check_status(self.status)

    def wait_for_slots(self, slots: Iterable[int], timeout: float) -> dict[int, dict[str, Any]]:
        """slot -> what the scheduler knows of its worker, once all ``slots`` have one."""
        wanted, end = set(slots), end_of(timeout)
        while missing := sorted(wanted - (workers := self.workers()).keys()):
            if time.monotonic() >= end:
                raise DeadlineError(
                    f"of {len(wanted)} slots {missing} have no worker in time; look at the "
                    f"workers' output, or start others"
                )
            time.sleep(HEAR / 5)
        return workers

    # -- work -------------------------------------------------------------

    def submit(
        self,
        slot: int,
        function: Callable[..., Any],
        *args: Any,
        name: str = "task",
    ) -> Future[Any]:
        """A Future of ``function(*args)``, run by the worker in ``slot`` and nowhere else.

        A slot computes one task at a time. ``name`` is the task's name and colour on the dashboard.
        While the slot has no worker the task waits.
        """
        self.check_alive()
        if not is_whole(slot, 0, self.slots - 1):
            raise ConfigError(
                f"slot {slot!r} does not exist: this cluster has slots 0..{self.slots - 1}; "
                f"workers= of td.start_cluster or td.connect sets how many"
            )
        future: Future[Any] = self.client.submit(
            enter,
            function,
            *args,
            key=f"{name}-{uuid.uuid4().hex}-{int(slot)}",
            resources={f"slot{int(slot)}": 1},
            pure=False,
        )
        vars(future)["slot"] = int(slot)
        return future

    def submit_all(
        self, function: Callable[..., Any], args: Mapping[int, Sequence[Any]], *, name: str = "task"
    ) -> list[Future[Any]]:
        """A Future for every slot of ``args``, like `submit`."""
        return [self.submit(slot, function, *mine, name=name) for slot, mine in args.items()]

    def wait(
        self,
        futures: Iterable[Future[Any]],
        what: str,
        timeout: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        cancel: bool = False,
    ) -> None:
        """Return when all ``futures`` are done; raise what the first failed one raised.

        After ``timeout`` seconds (default DEADLINE) raises DeadlineError, which says ``what``
        was awaited and from which slots. ``cancel``: if the wait ends early, by an error or an
        interrupt too, the futures are cancelled. That is for tasks that the caller has just
        submitted: of arrays that others hold, the blocks would be gone for good.
        """
        begun, end = time.monotonic(), end_of(seconds_of(timeout))
        pending = {future.key: future for future in futures}
        of = len(pending)
        self.check_alive()
        if all(future.status == "finished" for future in pending.values()):
            return
        done = as_completed(pending.values(), loop=self.client.loop, raise_errors=False)
        with self._cancelling([*pending.values()] if cancel else ()):
            while pending:
                while not done.has_ready():
                    self.check_alive()
                    if (now := time.monotonic()) >= end:
                        found = ", ".join(states(self, {slot_of(f) for f in pending.values()}))
                        raise DeadlineError(
                            f"{what}: {len(pending)} of {of} tasks not done after "
                            f"{now - begun:.3g} s; waiting for {found}. Give it longer with "
                            f"timeout=, or look at {self.client.dashboard_link}"
                        )
                    with done.thread_condition:
                        done.thread_condition.wait(HEAR)
                future = next(done)
                if future.status in ("pending", "lost"):  # its worker died since; it is made again
                    done.add(future)
                    continue
                if future.status != "finished":
                    raise failure(self, future, what)
                del pending[future.key]
                if progress:
                    progress(of - len(pending), of)

    @contextlib.contextmanager
    def _cancelling(self, futures: Sequence[Future[Any]]) -> Iterator[None]:
        """Cancels ``futures`` if the block ends early."""
        try:
            yield
        except BaseException:
            if futures:
                with contextlib.suppress(Exception):  # of a closed client: nothing is left to stop
                    self.client.cancel(futures, force=True)
            self.check_alive()  # if it was closed meanwhile, say that
            raise

    def gather(
        self,
        futures: Iterable[Future[Any]],
        what: str,
        timeout: float | None = None,
        *,
        cancel: bool = False,
    ) -> list[Any]:
        """The results of ``futures`` on this machine, waited for like ``wait``."""
        futures, end = list(futures), end_of(seconds_of(timeout))
        self.wait(futures, what, timeout, cancel=cancel)
        with self._cancelling(futures if cancel else ()):
            gather = partial(self.client._gather, futures, direct=self.started_here)
            slots, seconds = {slot_of(future) for future in futures}, end - time.monotonic()
            who = lambda: f"{what}: {' or '.join(states(self, slots))}"  # noqa: E731
            try:
                return list(asked(self.client, gather, max(0.5, seconds), who))
            except Exception as error:
                # the client keeps the error of a future, and that its frames with the futures
                traceback.clear_frames(error.__traceback__)
                failed = [future for future in futures if future.status == "error"]
                if not failed:
                    raise
            raise failure(self, failed[0], what)  # it was lost since, and could not be made again

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float | None = 60.0
    ) -> list[Any]:
        """``function(*args)`` on every worker at once, outside the task graph; results by slot.

        A parameter called ``dask_worker`` receives the worker. If a worker dies meanwhile, its
        slot is asked again when it has another.
        """
        self.check_alive()
        end, found = end_of(seconds_of(timeout)), dict[int, Any]()
        while missing := set(range(self.slots)) - found.keys():
            run = partial(self.client._run, _in_slot, missing, function, args, on_error="return")
            who = lambda: " or ".join(states(self, missing)[:8])  # noqa: E731
            answers = asked(self.client, run, max(0.1, end - time.monotonic()), who)
            for address, answer in answers.items():
                if isinstance(answer, tuple):
                    found.update([answer])
                elif isinstance(answer, BaseException):
                    # of a worker that died meanwhile, or the function's own
                    died = isinstance(answer, CommClosedError) or address in str(answer)
                    if not (isinstance(answer, OSError) and died):
                        raise answer
            if missing := missing - found.keys():
                time.sleep(HEAR / 5)
                self.wait_for_slots(missing, end - time.monotonic())
        return [found[slot] for slot in range(self.slots)]

    def keep(self, array: np.ndarray) -> Callable[[int, Region], str | np.ndarray]:
        """A function of (slot, region) of ``array``: from what a task there makes the block, and a
        lost one again: the path of a copy in the spool, where the worker sees that, or a copy."""
        self.check_alive()
        near, saved = [True] * self.slots, dict[Region, Path]()
        if not self.started_here:
            near = self.run(os.path.isdir, str(self.spool))

        def part(slot: int, region: Region) -> str | np.ndarray:
            if near[slot] and region in saved:
                return str(saved[region])
            block = np.array(array[slices(region)], order="C")
            if not near[slot]:
                return block
            path = saved[region] = self.spool / f"{uuid.uuid4().hex}.npy"
            with on_disk(path):
                try:
                    np.save(path, block, allow_pickle=False)
                except OSError:
                    for each in saved.values():
                        each.unlink(missing_ok=True)
                    raise
            return str(path)

        return part

    # -- end --------------------------------------------------------------

    def close(self) -> None:
        """Stop workers that were started here, remove what was spooled; safe to call twice."""
        if self._ended:
            return
        RUNNING.remove(self)
        self._ended = "closed" if self.status == "running" else "lost"
        if self.backend == "cupy" and not RUNNING:  # CuPy's arrays are CuPy's again
            device_arrays.register(on_host=False)
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self._end(20.0 if self._ended == "closed" else 1.0)
        self._remove_spool()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Cluster({self.slots} {self.kind} workers, {self.status}, dashboard "
            f"{self.client.dashboard_link})"
        )

    def _repr_html_(self) -> str:
        """Where its dashboard is, and a button for its page, which JupyterLab's panels then show.

        They follow the cluster that was started last of those that answer. Elsewhere the link
        stays, and no button.
        """
        words = html.words(f"{self.slots} {self.kind} workers")
        if self.status != "running":
            return f"<b>{words}</b>, {html.words(self.status)}"
        address = html.words(self.client.dashboard_link.removesuffix("/status"))
        return (
            f"<div data-dashboard='{address}' data-started='{self.started!r}'><b>{words}</b>, "
            f"dashboard: <a href='{address}/tiledask' target='_blank'>{address}/tiledask</a> "
            f"<button hidden>Show the dashboard page</button><br>"
            f"<small>{html.words(self.why)}</small></div>{SCRIPT}"
        )


async def _in_slot(
    slots: set[int], function: Callable[..., Any], args: tuple[Any, ...], dask_worker: Any
) -> tuple[int, Any] | None:
    """(slot, what ``function`` returns); None on a worker in none of ``slots``."""
    if (slot := slot_on(dask_worker)) not in slots:
        return None
    worker = {"dask_worker": dask_worker} if has_arg(function, "dask_worker") else {}
    made = function(*args, **worker)
    return slot, await made if isawaitable(made) else made
