"""Slots on workers that somebody else started: numbered by the scheduler, taken back in the end.

    client --- join --->  scheduler: Slots         numbers workers by host, then by port
                             |  join, restart        lowest free number first
                             v
                          worker  slot3, beside3    equipped as a worker of td.start_cluster is

A worker beyond those that are asked for stands by: it takes the slot of one that goes, or whose
host cannot be reached. Nothing is registered on workers, so one that cannot import tiledask, or has
another version, joins Dask as ever and only has no slot.
"""

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from itertools import zip_longest
from typing import Any, NamedTuple

from distributed import SchedulerPlugin
from distributed.comm.addressing import get_address_host_port
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialize, Serialized, deserialize
from distributed.scheduler import heartbeat_interval
from distributed.system import MEMORY_LIMIT
from distributed.utils import offload
from tornado.ioloop import PeriodicCallback

from tiledask.distributed.cluster import device_memory
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.cluster.cluster import PAGE, PAGE_MODULE, slot_named
from tiledask.distributed.cluster.spool import machine
from tiledask.distributed.connecting.gpus import DEVICES, OwnGpu, most_of, own_gpu, shared
from tiledask.distributed.connecting.per_thread import end_processes, is_per_thread, start_processes
from tiledask.distributed.connecting.versions import VERSION
from tiledask.distributed.recovering import frozen, poison
from tiledask.distributed.recovering.forgets import RunTopics
from tiledask.distributed.transport.listener import reached
from tiledask.errors import ConfigError

__all__ = ["LOST", "Joined", "join", "leave"]

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a worker has to load what it needs."""
_NAME = "tiledask-slots"
LOST = "tiledask-lost"
"""Dask's topic of slots that cannot be reached, and of those that can be again."""
SILENT = 6.0
"""Seconds without a word from a worker after which it is looked whether it can be reached."""
EMPTY = 20.0
"""Seconds that a slot may be without a worker: a nanny has started another by then."""
_LOOK = 0.5
_REACH = 1.0
"""Seconds in which a host that is there takes a connection, whatever its worker does."""


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
    split: bool = False
    """Whether each of its threads has a process."""
    died: poison.Death | None = None
    """How the worker before it ended, if that is known."""

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
        self.split = False
        """Whether each thread of a worker is to have a process, and so a slot."""
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
        self.deaths = poison.Deaths()
        self.runs = RunTopics(scheduler)
        self.lost: set[str] = set()
        """What clients are told is lost: addresses of workers in slots, if their hosts cannot be
        reached, and names of slots that have nobody."""
        self.empty: dict[int, float] = {}
        """Slot that has no worker -> since when, in seconds since 1970."""
        self._looks = PeriodicCallback(self._look, 1000 * _LOOK)
        self._looks.start()

    # -- what Dask calls ----------------------------------------------------------------------

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """A worker answers when Dask has taken it in, which waits for this to return."""
        self._soon(self.take_in, [worker])

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        if worker in self.given:  # clients hear that nobody is at its address any more
            self.lost.add(worker)
        self._say_lost(worker, None)
        for known in (self.ready, self.given, self.refused, self.sharers):
            known.pop(worker, None)
        if self.spare():
            self._soon(self.number)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """A client that was closed or killed leaves too."""
        if client in self.wanted:
            self._soon(leave, client, scheduler)

    def log_event(self, topic: str, msg: Any) -> None:
        """A client says that a run is over."""
        self.runs.heard(topic, msg)

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the scheduler call ``function``, unless it is ending, or this is."""
        if not self.leaving and not self.scheduler._ongoing_background_tasks.closed:
            self.scheduler._ongoing_background_tasks.call_soon(function, *args)

    # -- hosts that are cut off ----------------------------------------------------------------

    async def _look(self) -> None:
        """None; slots whose workers have become silent and cannot be reached have been given to
        those that stand by. Clients are told of the others, and of those that nobody is in any
        more.

        A worker that is busy is silent too, and its host takes connections. Dask itself waits for
        the system to give a connection up, half a minute; who has no successor stays registered
        until then, so that a short cut leaves nothing behind.
        """

        given = list(self.given)
        found = await asyncio.gather(*map(self._is_away, given))
        lost = [address for address, its in zip(given, found, strict=True) if its]
        for address in {*given} - {*lost}:
            self._say_lost(address, None)
        for address, successor in zip_longest(lost, self.spare()[: len(lost)]):
            silent = self._silent(address)
            if successor is None:
                self._say_lost(address, silent)
                continue
            logger.warning(
                "the host of %s is down, or cut off, for %.1f s: %s takes slot %d",
                *(address, silent, successor, self.given[address]),
            )
            await self._remove(address)
        now, taken = time.time(), self.taken()
        for slot in range(max(self.wanted.values(), default=0)):
            if slot in taken:
                self.empty.pop(slot, None)
                self._say_lost(f"slot {slot}", None, slot)
            elif (away := now - self.empty.setdefault(slot, now)) > EMPTY:
                self._say_lost(f"slot {slot}", away, slot)

    async def _remove(self, address: str) -> None:
        why = f"tiledask-lost-{time.time()}"
        await self.scheduler.remove_worker(address, stimulus_id=why, expected=True)

    async def _is_away(self, address: str) -> bool:
        """Whether a worker is silent and its host cannot be reached."""
        if self._silent(address) < self._patience():
            return False
        return address in self.lost or not await reached(address, _REACH)

    def _patience(self) -> float:
        return max(SILENT, 3 * heartbeat_interval(len(self.scheduler.workers)))

    def _silent(self, address: str) -> float:
        """Seconds since a worker was heard of; 0 of one that is not there."""
        known = self.scheduler.workers.get(address)
        return 0.0 if known is None else time.time() - known.last_seen

    def _say_lost(self, what: str, silent: float | None, slot: int | None = None) -> None:
        """Tell clients that a slot is lost, or (None) that it is no more: by the address of the
        worker there, or, where nobody is, by its name."""
        if (what in self.lost) == (silent is not None):
            return
        self.lost.symmetric_difference_update([what])
        empty = slot is not None
        slot = self.given.get(what, -1) if slot is None else slot
        said = {"slot": slot, "what": what, "silent": silent, "empty": empty}
        self.scheduler.log_event(LOST, said)

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
                if await self._is_away(address):
                    raise ConfigError("its host is down, or cut off")
                equipped = self.on(address, _equip, VERSION, self.device, self.split)
                found = await asyncio.wait_for(equipped, patience)
                if address in known:  # it has not gone meanwhile
                    self.ready[address] = found
                    if found.died is not None:
                        self.deaths.count(self.scheduler, found.died)
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
        if each is None or self.split > each.split:
            return False
        return DEVICES.index(each.asked) >= DEVICES.index(self.device)

    def taken(self) -> dict[int, str]:
        """Slot -> the address of the worker in it now."""
        found = {slot_named(ws.resources): a for a, ws in self.scheduler.workers.items()}
        found |= {slot: address for address, slot in self.given.items()}
        found.pop(-1, None)
        return found

    def spare(self) -> list[str]:
        """Workers without a slot that are ready for one, and were heard of: first those with a GPU,
        alone if one is needed; neighbours on one host follow each other."""
        taken = set(self.taken().values())
        able = [
            (each.gpu is None, _place(address), address)
            for address, each in self.ready.items()
            if address not in taken
            and (each.gpu or not self.on_gpus)
            and self._silent(address) < self._patience()
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
        """None, once every worker is as it was before it was equipped."""
        self._looks.stop()
        workers = self.scheduler.workers.items()
        beside = [address for address, state in workers if is_per_thread(state.name)]
        if beside:  # what lies there of others' goes to other workers first
            with suppress(Exception):
                await self.scheduler.retire_workers(workers=beside, close_workers=True)
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
                if await self._is_away(address):  # who connects next shall not wait for it
                    await self._remove(address)
                else:
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
    client: str, slots: int | None, device: str, split: bool, patience: float, dask_scheduler: Any
) -> dict[str, Any]:
    """By slot the address and what is known of each worker, now that ``client`` has as many
    slots, or as there are workers; why others have none; and why not GPUs, if it has none.

    ``split``: each thread of a worker has a slot. ``patience``: seconds that a worker has to get
    ready.
    """
    while (plugin := dask_scheduler.plugins.get(_NAME)) is not None and plugin.leaving:
        await asyncio.sleep(0.02)  # what is taken back is not given meanwhile
    if plugin is None:
        plugin = Slots(dask_scheduler)
        dask_scheduler.add_plugin(plugin)
    plugin.wanted.setdefault(client, 0)
    plugin.device = max(plugin.device, device, key=DEVICES.index)
    plugin.split |= split
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


async def _equip(version: str, device: str, split: bool, dask_worker: Any) -> Joined:
    """What the worker is, now that it has what a slot needs."""
    if version != VERSION:
        raise ConfigError(f"it has tiledask {VERSION}, the scheduler {version}")
    died = None
    if "tiledask_read" not in dask_worker.handlers:
        _settle(dask_worker)
        nanny = dask_worker.name if is_per_thread(dask_worker.name) else dask_worker.nanny
        died = on_worker.equip(dask_worker, nanny)
        if nanny is not None:  # no other follows one that has none
            register = poison.name_of(nanny, os.getppid())
            _watchers[dask_worker.address] = await offload(frozen.watcher, os.getpid(), register)
        await offload(on_worker.warm_up)
    found = await offload(own_gpu, device)
    gpu, without = (None, found) if isinstance(found, str) else (found, "")
    joined = Joined.of(dask_worker.memory_manager.memory_limit)._replace(died=died)
    if split:
        shares = 1 if is_per_thread(dask_worker.name) else start_processes(dask_worker)
        joined = joined._replace(split=True, memory=joined.memory // shares)
    return joined._replace(gpu=gpu, without=without, asked=device)


def _allow(most: int | None, sharers: int) -> None:
    device_memory.allow(most, sharers)


async def _take(names: tuple[str, ...], dask_worker: Any) -> None:
    """None; the worker has these resources, one of each."""
    for name in names:
        dask_worker.state.total_resources[name] = 1
        dask_worker.state.available_resources[name] = 1
    poison.in_slot(slot_named(names))


async def _strip(names: tuple[str, ...], dask_worker: Any) -> None:
    """None; the worker has neither these resources nor what `_equip` gave it."""
    for name in names:
        dask_worker.state.total_resources.pop(name, None)
        if name not in _in_use(dask_worker):
            dask_worker.state.available_resources.pop(name, None)
    if dask_worker.address in _settled:  # one of td.start_cluster had all that before
        await end_processes(dask_worker)
        if (watcher := _watchers.pop(dask_worker.address, None)) is not None:
            await offload(watcher.communicate)
        on_worker.strip(dask_worker)
        device_memory.give_back()
        _unsettle(dask_worker)


_settled: dict[str, tuple[int | None, dict[str, float | None]]] = {}
"""Address -> what a worker of this process had: transfers remembered, and milliseconds by what
Dask does by the clock; None for what does not run."""


_watchers: dict[str, subprocess.Popen[bytes]] = {}
"""Address of a worker of this process -> the process that watches whether it is frozen."""


def _settle(worker: Any) -> None:
    """None; the worker remembers as many transfers, and looks around as seldom, as one of
    td.start_cluster."""
    log, clock = worker.transfer_incoming_log, worker.periodic_callbacks
    runs = {name: clock[name] for name in on_worker.INTERVALS if name in clock}
    before = {
        name: each.callback_time if each.is_running() else None for name, each in runs.items()
    }
    _settled[worker.address] = log.maxlen, before
    worker.transfer_incoming_log = deque(log, max(on_worker.TRANSFERS, log.maxlen or 0))
    for name, each in runs.items():
        each.callback_time = max(on_worker.INTERVALS[name][1], each.callback_time)
    if "profile" in runs and not on_worker.PROFILED:
        runs["profile"].stop()


def _unsettle(worker: Any) -> None:
    """None; it does so as before."""
    most, before = _settled.pop(worker.address)
    worker.transfer_incoming_log = deque(worker.transfer_incoming_log, most)
    for name, interval in before.items():
        each = worker.periodic_callbacks[name]
        if interval is not None:
            each.callback_time = interval
            if not each.is_running():
                each.start()


def _in_use(worker: Any) -> set[str]:
    """Names of the resources that running tasks give back when they end."""
    running = (*worker.state.executing, *worker.state.long_running)
    return {name for task in running for name in task.resource_restrictions or ()}
