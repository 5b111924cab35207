"""Slots on workers that somebody else started: numbered by the scheduler, taken back in the end.

    client --- join --->  scheduler: Slots         numbers workers by host, then by port
                             |  join, restart        lowest free number first
                             v
                          worker  slot3, beside3    equipped as a worker of td.start_cluster is

A worker beyond those that are asked for stands by: it takes the slot of one that goes. Nothing is
registered on workers, so one that cannot import tiledask, or has another version, joins Dask as
ever and only has no slot.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from distributed import SchedulerPlugin
from distributed.comm.addressing import get_address_host_port
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialize, Serialized, deserialize
from distributed.system import MEMORY_LIMIT
from distributed.utils import offload

from tiledask.distributed.cluster import device_memory
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.cluster.cluster import PAGE, PAGE_MODULE, slot_named
from tiledask.distributed.cluster.spool import machine
from tiledask.distributed.connecting.gpus import DEVICES, OwnGpu, most_of, own_gpu, shared
from tiledask.distributed.connecting.versions import VERSION
from tiledask.errors import ConfigError

__all__ = ["Joined", "join", "leave"]

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a worker has to load what it needs."""
_NAME = "tiledask-slots"


class Joined(NamedTuple):
    """A worker that is ready for a slot."""

    machine: str
    process: str
    """Its number, and in a container whose numbers that is one of."""
    memory: int
    """Bytes of its limit, or of its machine if it has none."""
    limited: bool
    """Whether it has one."""
    gpu: OwnGpu | None = None
    """What it computes on, if that is a GPU."""
    without: str = ""
    """Why it has none, in words."""
    asked: str = "cpu"
    """The device that it was asked for."""

    @classmethod
    def of(cls, limit: int | None) -> "Joined":
        """This process, as a worker whose memory has this limit."""
        where = f"{socket.gethostname()} {machine()}"
        numbers = ""
        with suppress(OSError):
            numbers = os.readlink("/proc/self/ns/pid")
        return cls(where, f"{os.getpid()} {numbers}", int(limit or MEMORY_LIMIT), bool(limit))


class Slots(SchedulerPlugin):
    """The slots of a scheduler's workers, for as long as a client of tiledask's is there."""

    name = _NAME

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.wanted: dict[str, int] = {}
        """Client -> slots that it asked for."""
        self.device = DEVICES[0]
        """What workers are asked for: of all that clients did, what looks most for a GPU."""
        self.on_gpus: set[str] = set()
        """Clients that compute on GPUs: slots are then of workers that have one."""
        self.sharers: dict[str, int] = {}
        """Address -> workers of its GPU, if it was told."""
        self.ready: dict[str, Joined] = {}
        """Address -> a worker that was equipped here."""
        self.given: dict[str, int] = {}
        """Address -> the slot that it was given here; one of td.start_cluster has its own."""
        self.named: set[str] = set()
        """Resources that were ever given here."""
        self.waiting: dict[str, asyncio.Future[None]] = {}
        """Address -> done when that worker is equipped, or cannot be."""
        self.refused: dict[str, str] = {}
        """Address -> why a worker could not be equipped."""
        self.leaving = False
        """Whether all is being taken back."""
        self.page = False
        """Whether what collects for the dashboard's page was put there here."""

    # -- what Dask calls ----------------------------------------------------------------------

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """A worker answers when Dask has taken it in, which waits for this to return."""
        self._soon(self.take_in, [worker])

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        for known in (self.ready, self.given, self.refused, self.sharers):
            known.pop(worker, None)
        if self.spare():
            self._soon(self.number)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """A client that was closed or killed leaves too."""
        if client in self.wanted:
            self._soon(leave, client, scheduler)

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the scheduler call ``function``, unless it is ending, or this is."""
        if not self.leaving and not self.scheduler._ongoing_background_tasks.closed:
            self.scheduler._ongoing_background_tasks.call_soon(function, *args)

    # -- workers -------------------------------------------------------------------------------

    async def take_in(self, addresses: Iterable[str]) -> None:
        """None, once those of ``addresses`` that can be are in the slots that are free."""
        await self.equip(addresses)
        await self.number()

    async def equip(self, addresses: Iterable[str], patience: float = PATIENCE) -> None:
        """None, once those of ``addresses`` that can be are ready for a slot."""

        async def one(address: str) -> None:
            done = self.waiting.get(address)
            if done is not None:
                await asyncio.wait([done], timeout=patience)
                return
            self.waiting[address] = done = asyncio.get_running_loop().create_future()
            try:
                equipped = self.on(address, _equip, VERSION, self.device)
                found = await asyncio.wait_for(equipped, patience)
                if address in known:  # it has not gone meanwhile
                    self.ready[address] = found
                    self.refused.pop(address, None)
            except Exception as error:  # whatever it lacks: it works on without a slot
                logger.warning("worker %s has no slot: %s", address, error)
                if address in known:
                    self.refused[address] = f"{type(error).__name__}: {error}"
            finally:
                del self.waiting[address]
                done.set_result(None)

        known = self.scheduler.workers
        new = [a for a in addresses if a in known and not self._knows(a)]
        await asyncio.gather(*map(one, new))

    def _knows(self, address: str) -> bool:
        """Whether a worker is equipped, with all that was asked for by now."""
        each = self.ready.get(address)
        return each is not None and DEVICES.index(each.asked) >= DEVICES.index(self.device)

    def taken(self) -> dict[int, str]:
        """Slot -> the address of the worker in it now."""
        found = {slot_named(ws.resources): a for a, ws in self.scheduler.workers.items()}
        found |= {slot: address for address, slot in self.given.items()}
        found.pop(-1, None)
        return found

    def spare(self) -> list[str]:
        """Workers without a slot that are ready for one: first those with a GPU, alone if one is
        needed; neighbours on one host follow each other."""
        taken = set(self.taken().values())
        able = [
            (each.gpu is None, _place(address), address)
            for address, each in self.ready.items()
            if address not in taken and (each.gpu or not self.on_gpus)
        ]
        return [address for *_, address in sorted(able)]

    async def number(self) -> None:
        """None, once the lowest free slots have the workers that there are for them."""
        most = max(self.wanted.values(), default=0)
        taken = self.taken()
        free = [slot for slot in range(most) if slot not in taken]
        pairs = list(zip(self.spare(), free, strict=False))
        self.given.update(pairs)  # before anybody else looks
        await asyncio.gather(*(self._give(address, slot) for address, slot in pairs))
        await self._share_gpus()

    async def _share_gpus(self) -> None:
        """None, once workers in slots that share a GPU share its memory too."""
        gpus = {a: each.gpu for a in self.taken().values() if (each := self.ready.get(a))}
        count = Counter(gpu.uuid for gpu in gpus.values() if gpu)
        for address, gpu in gpus.items():
            if gpu and count[gpu.uuid] != self.sharers.get(address, 1):
                self.sharers[address] = sharers = count[gpu.uuid]
                with suppress(Exception):  # of a worker that dies
                    await self.on(address, _allow, most_of(gpu, sharers), sharers)

    async def _give(self, address: str, slot: int) -> None:
        names = _resources(slot)
        try:
            await self.on(address, _take, names)
        except Exception as error:  # it died meanwhile
            self.given.pop(address, None)
            logger.warning("worker %s did not take slot %s: %s", address, slot, error)
            return
        scheduler = self.scheduler
        if (known := scheduler.workers.get(address)) is None:
            return
        self.named.update(names)
        # not Dask's set_resources: it forgets what of the worker's other resources is in use
        for name in names:
            known.resources[name] = 1
            known.used_resources.setdefault(name, 0)
            scheduler.resources.setdefault(name, {})[address] = 1
        unrunnable = scheduler.bulk_schedule_unrunnable_after_adding_worker(known)
        scheduler.transitions(unrunnable, f"tiledask-slot-{slot}")

    async def strip(self) -> None:
        """None, once no worker has a slot, or what it was equipped with."""
        for address, slot in self.given.items():
            if (known := self.scheduler.workers.get(address)) is None:
                continue
            for name in _resources(slot):
                known.resources.pop(name, None)
                self.scheduler.resources.get(name, {}).pop(address, None)
                if not known.used_resources.get(name):  # else a task that is ending gives it back
                    known.used_resources.pop(name, None)

        async def one(address: str) -> None:
            names = _resources(self.given[address]) if address in self.given else ()
            with suppress(Exception):  # of a worker that dies
                await self.on(address, _strip, names)

        await asyncio.gather(*map(one, list(self.ready)))
        for name in self.named:  # Dask leaves those of a worker that is gone
            if not self.scheduler.resources.get(name):
                self.scheduler.resources.pop(name, None)

    async def on(self, address: str, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function(*args, dask_worker=)`` returns on a worker."""
        call = self.scheduler.broadcast(
            msg={"op": "run", "function": dumps(function), "args": dumps(args), "wait": True},
            workers=[address],
            on_error="raise",
        )
        answer = (await asyncio.wait_for(call, PATIENCE))[address]
        if answer["status"] != "OK":
            _, error, _ = clean_exception(**answer)
            raise error if error is not None else RuntimeError(str(answer))
        found = answer["result"]
        if isinstance(found, Serialized):  # a scheduler leaves it as it came
            return deserialize(found.header, found.frames)
        return found.data if isinstance(found, Serialize) else found  # it did not travel at all


def _resources(slot: int) -> tuple[str, str]:
    return f"slot{slot}", f"beside{slot}"


def _place(address: str) -> tuple[str, int]:
    """By host, then by port."""
    with suppress(ValueError):  # of a worker in the scheduler's process
        host, port = get_address_host_port(address)
        return host, port
    return address, 0


# -- run on the scheduler, for a client ------------------------------------------------------------


async def join(
    client: str, slots: int | None, device: str, patience: float, dask_scheduler: Any
) -> dict[str, Any]:
    """By slot the address and what is known of each worker, now that ``client`` has as many
    slots, or as there are workers; why others have none; and why not GPUs, if it has none.

    ``patience``: seconds that a worker has to get ready.
    """
    while (plugin := dask_scheduler.plugins.get(_NAME)) is not None and plugin.leaving:
        await asyncio.sleep(0.02)  # what is taken back is not given meanwhile
    if plugin is None:
        plugin = Slots(dask_scheduler)
        dask_scheduler.add_plugin(plugin)
    plugin.wanted.setdefault(client, 0)
    plugin.device = max(plugin.device, device, key=DEVICES.index)
    if device == "cuda":
        plugin.on_gpus.add(client)
    await plugin.equip(list(dask_scheduler.workers), patience)
    fit = {a: each for a, each in plugin.ready.items() if each.gpu or device != "cuda"}
    if client in plugin.wanted:  # it has not left meanwhile
        able = len(fit) if slots is None else slots
        plugin.wanted[client] = max(plugin.wanted[client], able)
        await plugin.number()
    if PAGE not in dask_scheduler.plugins:
        with suppress(Exception):  # a page is worth no cluster
            await import_module(PAGE_MODULE).open_page(dask_scheduler)
            plugin.page = True
    taken = sorted(plugin.taken().items())
    found = {s: (a, fit[a]) for s, a in taken if a in fit}
    without = _without(found, slots, device)
    if not without and client in plugin.wanted:
        plugin.on_gpus.add(client)
    lacking = {a: each.without for a, each in plugin.ready.items() if a not in fit}
    return {
        "slots": found,
        "refused": plugin.refused | lacking,
        "without": without,
        "page": PAGE in dask_scheduler.plugins,
    }


def _without(found: dict[int, tuple[str, Joined]], slots: int | None, device: str) -> str:
    """Why the slots asked for do not compute on GPUs, in words; empty if they do.

    "auto" takes them where each has one of its own.
    """
    if device == "cpu":
        return "CPU workers were asked for"
    mine = [each for slot, each in found.items() if slots is None or slot < slots]
    if len(mine) < (slots or 1):
        return f"there are {len(mine)} workers yet"
    for address, each in mine:
        if each.gpu is None:
            return f"{address} has none: {each.without}"
    return "" if device == "cuda" else shared([each.gpu for _, each in mine if each.gpu])


async def leave(client: str, dask_scheduler: Any) -> None:
    """None; the slots go with the last client that has asked for some."""
    plugin = dask_scheduler.plugins.get(_NAME)
    if plugin is None:
        return
    plugin.on_gpus.discard(client)
    if plugin.wanted.pop(client, None) is None or plugin.wanted:
        return
    plugin.leaving = True
    await plugin.strip()
    dask_scheduler.remove_plugin(_NAME)
    for name in [name for name in dask_scheduler.handlers if name.startswith("tiledask_")]:
        del dask_scheduler.handlers[name]
    if plugin.page and PAGE in dask_scheduler.plugins:
        dask_scheduler.remove_plugin(PAGE)


# -- run on a worker, for the scheduler ------------------------------------------------------------


async def _equip(version: str, device: str, dask_worker: Any) -> Joined:
    """What the worker is, now that it has what a slot needs."""
    if version != VERSION:
        raise ConfigError(f"it has tiledask {VERSION}, the scheduler {version}")
    if "tiledask_read" not in dask_worker.handlers:
        _equipped.add(dask_worker.address)
        on_worker.equip(dask_worker)
        await offload(on_worker.warm_up)
    found = await offload(own_gpu, device)
    gpu, without = (None, found) if isinstance(found, str) else (found, "")
    joined = Joined.of(dask_worker.memory_manager.memory_limit)
    return joined._replace(gpu=gpu, without=without, asked=device)


def _allow(most: int | None, sharers: int) -> None:
    device_memory.allow(most, sharers)


async def _take(names: tuple[str, ...], dask_worker: Any) -> None:
    """None; the worker has these resources, one of each."""
    for name in names:
        dask_worker.state.total_resources[name] = 1
        dask_worker.state.available_resources[name] = 1


async def _strip(names: tuple[str, ...], dask_worker: Any) -> None:
    """None; the worker has neither these resources nor what `_equip` gave it."""
    for name in names:
        dask_worker.state.total_resources.pop(name, None)
        if name not in _in_use(dask_worker):
            dask_worker.state.available_resources.pop(name, None)
    if dask_worker.address in _equipped:  # one of td.start_cluster had all that before
        _equipped.discard(dask_worker.address)
        on_worker.strip(dask_worker)
        device_memory.give_back()


_equipped: set[str] = set()
"""Addresses of the workers of this process that were equipped for a slot here."""


def _in_use(worker: Any) -> set[str]:
    """Names of the resources that running tasks give back when they end."""
    running = (*worker.state.executing, *worker.state.long_running)
    return {name for task in running for name in task.resource_restrictions or ()}
