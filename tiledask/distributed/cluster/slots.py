"""Slots: the scheduler numbers its workers, and each worker gets what tiledask needs.

    scheduler   Slots     worker -> slot; one that comes takes the lowest number that is free
    worker      Equip     asks for its slot, and has the resource slot3 from then on

Both are plugins of Dask's, so a worker that replaces another comes back to its slot. On workers
that somebody else started they stay, in nobody's way: whoever connects when no other client has
slots numbers the workers anew, and equips them again.
"""

import asyncio
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from distributed import SchedulerPlugin, WorkerPlugin
from distributed.metrics import time
from distributed.utils import offload
from threadpoolctl import threadpool_limits

from tiledask.distributed.cluster import device_arrays, device_memory, host_memory
from tiledask.distributed.cluster.cluster import PAGE
from tiledask.distributed.cluster.spool import AS_HOST, this_host
from tiledask.distributed.cluster.tasks import slot_named, slot_on
from tiledask.tile import matmul

__all__ = ["BLAS_THREADS", "Equip", "Slots", "join", "warm_up"]

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What BLAS libraries read to learn how many threads they may use."""
_PAGE_MODULE = "tiledask.lab.dashboard"
"""What people look at: loaded on the scheduler by this name, and imported nowhere below it."""


class Slots(SchedulerPlugin):
    """Which worker of a scheduler is in which slot."""

    name = "tiledask-slots"

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.slots: dict[str, int] = {}
        """Of a worker's address."""
        self.clients: set[str] = set()
        """That have slots."""
        scheduler.handlers["tiledask_slot"] = lambda address: self.slots[address]
        scheduler.handlers["tiledask_ready"] = self.ready
        scheduler.handlers["tiledask_clock"] = lambda: time()

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Give a worker that has come its slot, for which it will ask."""
        taken = set(self.slots.values())
        self.slots[worker] = next(number for number in count() if number not in taken)

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        """Free the slot of a worker that has gone."""
        self.slots.pop(worker, None)

    def ready(self, address: str) -> None:
        """Let a worker that is equipped have the tasks of its slot."""
        scheduler = self.scheduler
        if known := scheduler.workers.get(address):
            # not Dask's set_resources: it forgets what of the worker's other resources is in use
            if (former := slot_named(known.resources)) >= 0:
                del known.resources[f"slot{former}"], scheduler.resources[f"slot{former}"][address]
            name = f"slot{self.slots[address]}"
            known.resources[name] = 1
            known.used_resources.setdefault(name, 0)
            scheduler.resources.setdefault(name, {})[address] = 1
            unrunnable = scheduler.bulk_schedule_unrunnable_after_adding_worker(known)
            scheduler.transitions(unrunnable, f"tiledask-ready-{time()}")


async def join(client: str, page: bool, dask_scheduler: Any) -> tuple[dict[str, int], bool, bool]:
    """Number the workers for ``client``, on the scheduler, anew if no other has slots: (the slot at
    each address, whether the workers are to be equipped, whether the dashboard has the page)."""
    if (plugin := dask_scheduler.plugins.get(Slots.name)) is None:
        plugin = Slots(dask_scheduler)
        dask_scheduler.add_plugin(plugin)
        if page and PAGE not in dask_scheduler.plugins:
            with suppress(Exception):  # a page is worth no cluster
                await import_module(_PAGE_MODULE).open_page(dask_scheduler)
    plugin.clients = {client, *(plugin.clients & dask_scheduler.clients.keys())}
    if alone := len(plugin.clients) == 1:  # neighbours on one host come after each other
        workers = dask_scheduler.workers.values()
        places = [(w.host, w.name if isinstance(w.name, int) else 0, w.address) for w in workers]
        plugin.slots = {address: slot for slot, (*_, address) in enumerate(sorted(places))}
    return plugin.slots, alone, PAGE in dask_scheduler.plugins


# -- on a worker -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Equip(WorkerPlugin):
    """What products, runs and trainings need on a worker, and its slot."""

    name = "tiledask-equip"
    threads: int | None = None
    """BLAS threads of a worker that is all ours; None for somebody else's."""
    cap: int | None = None
    """Bytes that its allocations may take."""
    hosts: tuple[str, ...] = ()
    """By slot, the host that a worker is taken to be on."""
    pool: tuple[int | None, int] | None = None
    """Of a GPU worker: the bytes that its pool may keep from others, and who shares its GPU."""

    async def setup(self, worker: Any) -> None:
        """Equip ``worker``, and let it have the tasks of its slot."""
        from tiledask.distributed.transport import blocks, tickets

        slot = await worker.scheduler.tiledask_slot(address=worker.address)
        if self.threads is not None:  # it is ours alone
            # interrupting a notebook sends SIGINT to the whole process group: the kernel shall
            # stop, its workers shall not
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.environ.update(dict.fromkeys(BLAS_THREADS, str(self.threads)))
            threadpool_limits(self.threads)  # a fork has its server's
            np.random.seed()
        if self.hosts:
            os.environ[AS_HOST] = self.hosts[slot]
            this_host.cache_clear()
        for name in [*blocks.exchanges]:  # of clients that were killed
            blocks.end_exchange(name)
        device_arrays.register(on_host=False)
        worker.handlers["tiledask_read"] = blocks.server(worker.data)
        tickets.let_siblings_read()
        host_memory.keep(worker)
        await offload(warm_up)
        if self.pool is not None:
            device_memory.take(self.cap, *self.pool)
        elif self.cap is not None:
            # stacks are memory too: all threads that the worker is known to use start now, any
            # other gets a stack of 1 MiB instead of the system's 8
            threading.stack_size(2**20)
            start = asyncio.get_running_loop().run_in_executor
            # asyncio's own pool looks up the addresses of peers
            for pool, size in ((worker.executors["default"], worker.state.nthreads), (None, 4)):
                together = threading.Barrier(size).wait
                await asyncio.gather(*(start(pool, together) for _ in range(size)))
            host_memory.cap_memory(self.cap)
        state = worker.state
        state.total_resources.pop(f"slot{slot_on(worker)}", None)
        state.total_resources[f"slot{slot}"] = 1
        # 0: a task of an earlier client ends yet
        state.available_resources.setdefault(f"slot{slot}", 1)
        await worker.scheduler.tiledask_ready(address=worker.address)


def warm_up() -> None:
    """Load what a product needs: libraries and BLAS's buffers are the worker's own memory, and not
    what a product is seen to take."""
    np.random.default_rng(0).standard_normal((256, 256), np.float32).astype(np.float16).sum()
    for dtype in (np.float32, np.float64, np.float16):
        a = np.ones((256, 256), dtype)
        matmul(a, a, out=np.zeros((256, 256), np.result_type(dtype, np.float32)), beta=1.0)
        if dtype is not np.float16:  # there is no BLAS of these, and it takes 50 ms
            a @ a
