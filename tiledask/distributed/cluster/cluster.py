"""Workers in numbered slots: give a slot work, wait for it with a deadline.

One worker process per slot. Each carries a Dask *resource* named after its slot and each task
asks for its slot's resource. Addresses and names will not do for pinning: a worker that dies
comes back with another address, and Dask turns names into addresses at submit time, so work
pinned by either waits for ever (dask/distributed issues 8600 and 7346). A resource follows the
slot through a restart.
"""

import asyncio
import contextlib
import copy
import math
import os
import pickle
import signal
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

import dask
import numpy as np
from dask._expr import LLGExpr
from dask._task_spec import Task, parse_input
from distributed import (
    Client,
    Future,
    KilledWorker,
    SpecCluster,
    Status,
    as_completed,
    default_client,
)
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps
from distributed.scheduler import NoValidWorkerError, NoWorkerError
from distributed.spans import SpanMetadata
from distributed.utils import has_arg

from tiledask.distributed.cluster import device_arrays
from tiledask.distributed.cluster.spool import KeptArray, open_spool
from tiledask.distributed.cluster.web import panel
from tiledask.distributed.deadlines import DEADLINE, HEAR, Left, heard, left_of, seconds_of
from tiledask.distributed.out_of_core.disk import free, writing
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
from tiledask.plan import html
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile import matmul
from tiledask.tile.backend import namespace, synchronize

__all__ = [
    "PAGE",
    "PAGE_MODULE",
    "RUNNING",
    "BlockKeys",
    "Cluster",
    "StartedCluster",
    "asked",
    "check_client",
    "slot_named",
    "slot_of",
    "slot_on",
    "workers_of",
]

T = TypeVar("T")
_SILENT = 1.0  # seconds without a heartbeat after which a worker is named
_EVENT = 30.0  # seconds that the scheduler may take to say which events there were
PAGE = "tiledask-page"
"""Dask's name of what collects for the dashboard's page, on the scheduler."""
PAGE_MODULE = "tiledask.lab.dashboard"
"""What people look at: loaded on the scheduler by this name, and imported nowhere below it."""
_LOOK = 0.02
"""Seconds between two looks at who is there."""
_LARGE_GRAPHS = {"distributed.admin.large-graph-warning-threshold": 2**60}
"""Blocks go as arguments to workers that do not see the spool: Dask need not warn of them."""
_CUBE, _TRIES = 768, 0.5
"""Extents of the products by which slots are compared, and seconds of them."""
_ENDED = (Status.closing, Status.closing_gracefully, Status.closed, Status.failed)
"""States of a nanny that starts no worker any more."""
RUNNING: list["Cluster"] = []
"""The clusters of this process that are not closed, the newest last."""


def _aligned(value: Any) -> Any:
    """``value``, and if it is a NumPy array then aligned and contiguous in C or Fortran order.

    Blocks that were sent or spilled come back unaligned, and then sums round differently.
    """
    if not isinstance(value, np.ndarray):
        return value
    by_columns = value.flags.f_contiguous and not value.flags.c_contiguous
    return np.require(value, requirements=["F" if by_columns else "C", "A"])


def _enter(function: Callable[..., Any], *args: Any) -> Any:
    """Every task starts here, on its worker."""
    try:
        return function(*map(_aligned, args))
    except (SystemExit, KeyboardInterrupt) as error:
        # these would end the worker's thread, and the task would never be heard of again
        raise RuntimeError(f"the task raised {type(error).__name__}: {error}") from None


async def _in_slot(
    slots: Container[int], function: Callable[..., Any], args: tuple[Any, ...], dask_worker: Any
) -> bytes | None:
    """(slot, what ``function`` returns) in one piece, which nobody on its way has to look into;
    None on a worker in none of ``slots``."""
    if (slot := slot_on(dask_worker)) not in slots:
        return None
    worker = {"dask_worker": dask_worker} if has_arg(function, "dask_worker") else {}
    made = function(*args, **worker)
    found: bytes = dumps((slot, await made if isawaitable(made) else made))
    return found


def _speed(backend: str) -> float:
    """FLOP/s of this worker: the best of a few products."""
    a = namespace(backend).ones((_CUBE, _CUBE), np.float32)
    out, seconds, end = a.copy(), [0.0], time.perf_counter() + _TRIES
    while len(seconds) < 4 or time.perf_counter() < end:
        begun = time.perf_counter()
        matmul(a, a, out=out)
        synchronize(out)
        seconds.append(time.perf_counter() - begun)
    return 2 * _CUBE**3 / min(seconds[1:])


def slot_named(resources: Iterable[str]) -> int:
    """The slot of a worker that has these resources; -1 if it is in none.

    >>> slot_named(["GPU", "slot12", "beside12"]), slot_named(["slots"])
    (12, -1)
    """
    named = (name[4:] for name in resources if name.startswith("slot"))
    return next((int(number) for number in named if number.isdigit()), -1)


def slot_on(worker: Any) -> int:
    """The slot that a worker is in, on itself; -1 if it is in none."""
    return slot_named(worker.state.total_resources)


def slot_of(future: Future[Any]) -> int:
    """The slot that `Cluster.submit` gave ``future``; -1 for a future from elsewhere."""
    slot: int = vars(future).get("slot", -1)
    return slot


def _users_client_is_default() -> bool:
    """Whether a client that is none of these clusters' is Dask's default."""
    try:
        found = default_client()
    except ValueError:
        return False
    return all(cluster.client is not found for cluster in RUNNING)


def asked(
    client: Client,
    call: Callable[[], Awaitable[T]],
    seconds: float,
    check: Callable[[], object] | None = None,
) -> T:
    """What ``call()``, of the client's loop, returns; TimeoutError after ``seconds``. Before,
    in between, and if it fails ``check()`` may raise instead: by default that the client has lost
    its scheduler, ClusterLostError."""
    check = check or partial(check_client, client)
    check()
    try:
        found: T = client.sync(lambda: heard(call(), seconds, check))
    except (Exception, asyncio.CancelledError):
        check()
        raise
    return found


def check_client(client: Client) -> None:
    """None if ``client`` speaks to its scheduler; else ClusterLostError."""
    loop: Any = client.loop
    thread = getattr(loop.asyncio_loop, "_thread_id", None)
    if thread is not None and all(each.ident != thread for each in threading.enumerate()):
        raise ClusterLostError(
            f"the client is of another process than {os.getpid()}, which was forked from it: the "
            f"thread that speaks to the scheduler is not here; make a new one from its address"
        )
    if client.status != "running":
        raise ClusterLostError(
            f"the client is {client.status!r}, needed 'running': its scheduler is gone, or it was "
            f"closed; make a new one"
        )


def workers_of(
    client: Client, check: Callable[[], object] | None = None
) -> dict[str, dict[str, Any]]:
    """Address -> what the scheduler knows of each worker now; nothing of an asynchronous client's.

    `Client.scheduler_info` reads what its own look every two seconds may have replaced meanwhile,
    by totals without workers. Raises ClusterLostError if the scheduler is gone (``check``: as of
    `asked`).
    """
    if client.asynchronous:
        return {}
    with contextlib.suppress(OSError):  # whoever needs a worker waits for it, and says so
        scheduler: Any = client.scheduler
        call = partial(scheduler.identity, n_workers=-1)
        found: dict[str, Any] = asked(client, call, left_of(DEADLINE).seconds, check)
        return dict(found["workers"])
    return {}


class BlockKeys(NamedTuple):
    """Dask's keys of the blocks of an array by slot, in few bytes: every worker is sent all.

    >>> BlockKeys.spelled({0: "sum-7f-0", 3: "sum-7f-3"}), BlockKeys.spelled({1: "y"}).at(1)
    (BlockKeys(stem='sum-7f', each={}), 'y')
    """

    stem: str
    """What all have before their slot, if `Cluster.submit_all` made them; else empty."""
    each: dict[int, str]
    """By slot, where they have no stem."""

    @classmethod
    def of(cls, blocks: Sequence[Future[Any]]) -> "BlockKeys":
        return cls.spelled({slot_of(block): str(block.key) for block in blocks})

    @classmethod
    def spelled(cls, keys: dict[int, str]) -> "BlockKeys":
        stem = next(iter(keys.values()), "").rpartition("-")[0]
        if stem and all(key == f"{stem}-{slot}" for slot, key in keys.items()):
            return cls(stem, {})
        return cls("", keys)

    def at(self, slot: int) -> str:
        """The key that a block in ``slot`` has; a slot without one has nothing of that name."""
        return f"{self.stem}-{slot}" if self.stem else self.each.get(slot, "")


class Cluster(ABC):
    """Workers in slots 0..n-1 and the client that speaks to them; a context manager.

    `StartedCluster` is one of td.start_cluster, `AttachedCluster` one of td.connect.
    """

    given: Any
    """Dask's own cluster, or what was connected to."""
    started_here: bool
    """Whether the workers are this process's, and end with the cluster."""
    _one_here: str
    """How another process gets a cluster of its own, in words."""
    _another: str
    """How another one is had when this one is closed."""
    anew: str
    """How what is lost is had again."""

    def __init__(
        self, client: Client, slots: int, backend: str, why: str, memory_limit: int
    ) -> None:
        self.client = client
        self._comm, self._ended = client.scheduler_comm, ""
        scheduler: Any = client.scheduler
        self.scheduler_address: str = scheduler.address
        """Where the scheduler listens, or did."""
        self.slots = slots
        self.backend = backend
        """"numpy" or "cupy": what the blocks on the workers are."""
        self.why = why
        """Why these devices were chosen, one sentence."""
        self.spool, self._remove_spool = open_spool(self)
        """Folder of the arrays that were distributed; workers make lost blocks again from
        it, so it grows until the cluster is closed. The folder of a client that was
        killed goes when the next cluster starts."""
        self._process = os.getpid()
        self.started = time.time()
        """Seconds since 1970."""
        self.counting = threading.Lock()
        """Held while transfers and memory are counted: one operation at a time."""
        self.transport = ""
        """How blocks are read from other workers: see `transport_of`; empty until the first is."""
        self.transport_why = ""
        self.rates: dict[str, Any] = {}
        """Element type -> its measured `tiledask.plan.products.cost.MachineRates`."""
        self.memory_limits = (memory_limit,) * slots
        """Per slot, bytes that it may hold: its cap, its share of a GPU, or of its machine."""
        self._speeds: tuple[float, ...] = ()
        RUNNING.append(self)

    # -- state ------------------------------------------------------------

    @property
    def kind(self) -> str:
        """ "GPU" or "CPU": what computes."""
        return "GPU" if self.backend == "cupy" else "CPU"

    @property
    def memory_limit(self) -> int:
        """Bytes that every slot may hold: the least of ``memory_limits``."""
        return min(self.memory_limits)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each slot, by the address under which others reach it."""
        return ("this machine",) * self.slots

    def speeds(self) -> tuple[float, ...]:
        """FLOP/s of each slot: the best of some products in single precision, all slots at once.

        Measured when it is first asked for, in half a second.
        """
        if len(self._speeds) != self.slots:
            asked = dict.fromkeys(range(self.slots), (self.backend,))
            tried = self.submit_all(_speed, asked, name="measure_speed")
            self._speeds = tuple(self.gather(tried, "measuring speeds", 60.0, cancel=True))
        return self._speeds

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it is open, and this process's."""

    @property
    def status(self) -> str:
        """ "running", or what else has become of it.

        A client that has lost its scheduler connects again, to the same or to one that took its
        place. Neither knows anything of what was there before.
        """
        found: str = self._ended or self.client.status
        if found == "running" and self.client.scheduler_comm is not self._comm:
            return "lost"
        return found

    @property
    def dashboard_link(self) -> str:
        link: str = self.client.dashboard_link
        return link

    def _workers(self) -> dict[int, dict[str, Any]]:
        """slot -> what the scheduler knows of the worker there now."""
        found = {}
        for address, facts in workers_of(self.client, self.check_alive).items():
            if (slot := slot_named(facts.get("resources", ()))) >= 0:
                found[slot] = {**facts, "address": address}
        return found

    def address(self, slot: int) -> str:
        """Where the worker of ``slot`` listens now; it changes when the worker restarts."""
        address: str = self.wait_for_slots([slot], 30.0)[slot]["address"]
        return address

    def check_alive(self) -> None:
        """Raise ClusterLostError if this cluster is closed, or another process's."""
        if os.getpid() != self._process:  # the threads that speak to the workers are not here
            raise ClusterLostError(
                f"the cluster is process {self._process}'s, and this is {os.getpid()}, forked from "
                f"it; use it there, or {self._one_here}"
            )
        if self._ended == "closed":
            raise ClusterLostError(f"the cluster is closed; {self._another}")
        if self.status != "running":
            raise ClusterLostError(
                f"the scheduler at {self.scheduler_address} is gone, or the client was closed, and "
                f"with it what lay on the workers; {self._another}. There the same call goes on "
                f"where records end: a product of files, td.matmul(a, b, out=, cluster=), or "
                f"td.train(..., folder=)"
            )

    def ask(self, call: Callable[[], Awaitable[T]], seconds: float) -> T:
        """What ``call()``, of the client's loop, returns; TimeoutError after ``seconds``, and
        ClusterLostError as soon as the scheduler is lost."""
        return asked(self.client, call, seconds, self.check_alive)

    def events(self, topic: str) -> list[Any]:
        """What was said on ``topic``, by Dask's events."""
        scheduler: Any = self.client.scheduler
        found = self.ask(partial(scheduler.events, topic=topic), left_of(_EVENT).seconds)
        return [said for _, said in found or ()]

    def wait_for_slots(self, slots: Iterable[int], timeout: float) -> dict[int, dict[str, Any]]:
        """slot -> what the scheduler knows of its worker, once all ``slots`` have one."""
        wanted, left = set(slots), left_of(timeout)
        deadline = time.monotonic() + left.seconds
        while True:
            self.check_alive()
            workers = self._workers()
            missing = sorted(wanted - workers.keys())
            if not missing:
                return workers
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"waited {left.said:.3g} s for workers in {len(wanted)} slots, slots {missing} "
                    f"have none; look at the workers' output above, or {self.anew}"
                )
            time.sleep(_LOOK)

    # -- work -------------------------------------------------------------

    def submit(
        self,
        slot: int,
        function: Callable[..., Any],
        *args: Any,
        name: str = "task",
        beside: bool = False,
        token: str = "",
    ) -> Future[Any]:
        """A Future of ``function(*args)``, run by the worker in ``slot`` and nowhere else.

        A slot computes one task at a time. Tasks that only hand data over run ``beside``, one
        at a time too, so that no other slot waits for them until a computation ends.
        ``name`` is the task's name and colour on the dashboard. Futures among ``args`` whose slot
        had lost its worker for too long are made ``again``. ``token``: of the blocks of one array
        the same, which no other has; then their keys take few bytes (see `BlockKeys`).
        """
        given = {slot: args}
        (future,) = self.submit_all(function, given, name=name, beside=beside, token=token)
        return future

    def submit_all(
        self,
        function: Callable[..., Any],
        args: Mapping[int, Sequence[Any]],
        *,
        name: str = "task",
        beside: bool = False,
        token: str = "",
    ) -> list[Future[Any]]:
        """A Future for every slot of ``args``, like `submit`; Dask is told of all at once."""
        self.check_alive()
        self.again(x for mine in args.values() for x in mine if isinstance(x, Future))
        token = token or uuid.uuid4().hex
        keys, tasks, needs = dict[int, str](), dict[str, Task](), dict[str, dict[str, int]]()
        for slot, mine in args.items():
            if not is_whole(slot, 0, self.slots - 1):
                raise ConfigError(
                    f"slot {slot!r} does not exist: this cluster has slots 0..{self.slots - 1}; "
                    f"{self.with_slots('...')} makes more"
                )
            slot = int(slot)
            keys[slot] = key = f"{name}-{token}-{slot}"
            tasks[key] = Task(key, _enter, function, *map(parse_input, mine))
            needs[key] = {f"beside{slot}" if beside else f"slot{slot}": 1}
        # as Client.submit does it, for several tasks
        with nullcontext() if self.started_here else dask.config.set(_LARGE_GRAPHS):
            made = self.client._graph_to_futures(
                LLGExpr(tasks, _determ_token=uuid.uuid4().hex),
                list(tasks),
                internal_priority={key: number for number, key in enumerate(tasks)},
                resources=needs.__getitem__,
                fifo_timeout="100 ms",
                span_metadata=SpanMetadata(collections=[{"type": "Future"}]),
            )
        for slot, key in keys.items():
            vars(made[key])["slot"] = slot
        return [made[key] for key in keys.values()]

    def again(self, futures: Iterable[Future[Any]]) -> None:
        """Have Dask try those of ``futures`` again that it gave up for want of a worker.

        A slot that is empty for a minute, or that loses its worker each time a block is made
        there, leaves the block in error. The way to make it is still known: once the slot is
        back, nothing is lost. Futures that failed by themselves stay as they are.
        """
        for_want = KilledWorker | NoValidWorkerError | NoWorkerError
        failed = [f for f in futures if f.status == "error"]
        lost = {f.key for f in failed if isinstance(f.exception(timeout=30), for_want)}
        if not lost:
            return

        async def retry() -> None:
            for key in lost:  # before the scheduler's own news of them can come
                if (state := self.client.futures.get(key)) is not None:
                    state.retry()
            if self.client.scheduler is not None:
                await self.client.scheduler.retry(keys=list(lost), client=self.client.id)

        self.ask(retry, left_of(DEADLINE).seconds)

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
        futures, seconds = list(futures), seconds_of(timeout)
        self.check_alive()
        if all(future.status == "finished" for future in futures):
            return
        with self._let_go(futures if cancel else ()):
            self._wait(futures, what, left_of(seconds), progress)

    @contextlib.contextmanager
    def _let_go(self, futures: Sequence[Future[Any]]) -> Iterator[None]:
        """Cancels ``futures`` if the block ends early."""
        try:
            yield
        except BaseException:
            if futures:
                with contextlib.suppress(Exception):  # of a closed client: nothing is left to stop
                    self.client.cancel(futures, force=True)
            self.check_alive()  # if it was closed meanwhile, say that
            raise

    def _wait(
        self,
        futures: list[Future[Any]],
        what: str,
        left: Left,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        pending, count = {f.key: f for f in futures}, 0
        deadline, loop = time.monotonic() + left.seconds, self.client.loop
        done = as_completed(futures, loop=loop, timeout=left.seconds, raise_errors=False)
        while True:
            try:
                self._until_ready(done, deadline)
                future = next(done)
            except StopIteration:
                return
            except TimeoutError:
                if not pending:
                    return
                late = self._late(pending.values(), what, left.said, len(futures))
                raise DeadlineError(late) from None
            if future.status in ("pending", "lost"):  # its worker died since; it is made again
                done.add(future)
                continue
            pending.pop(future.key, None)
            if future.status != "finished":
                raise self._failure(future, what)
            count += 1
            if progress:
                progress(count, len(futures))

    def _until_ready(self, done: as_completed, deadline: float) -> None:
        """None, when one of ``done`` is, or ``deadline`` has passed; ClusterLostError if what it
        waits for is lost."""
        while done.count() and not done.has_ready() and time.monotonic() < deadline:
            self.check_alive()
            with done.thread_condition:
                done.thread_condition.wait(HEAR)

    def _failure(self, future: Future[Any], what: str) -> BaseException:
        """What the failed ``future`` raised, and where."""
        slot = slot_of(future)
        if future.status == "cancelled":
            self.check_alive()
            return ClusterLostError(
                f"{what}: task {future.key} was cancelled, and its result is gone; the cluster "
                f"runs on: make what it belonged to again"
            )
        error = future.exception(timeout=30)
        if isinstance(error, NoValidWorkerError | NoWorkerError):
            paused = self._heard(range(self.slots), math.inf)
            return ClusterLostError(
                f"{what}: slot {slot} or one that it waits for had no worker for "
                f"{error.timeout:g} s{': ' * bool(paused)}{', '.join(paused[:2])}; "
                f"arrays are not lost by that: run it again when the slot "
                f"is back, or {self.anew}"
            )
        if isinstance(error, KilledWorker):
            last = str(error.task).rpartition("-")[2]
            where = f"slot {last}" if last.isdigit() else str(error.last_worker.address)
            named = ClusterLostError(
                f"{what}: task {str(error.task)[:200]} ended the worker of {where} "
                f"{error.allowed_failures + 1} times, whenever it ran there; other tasks go on. It "
                f"needs more memory than there is, or native code that it calls crashes: look at "
                f"the workers' output, give it less at a time, or call its function by itself"
            )
            named.__cause__ = error  # by which it is known that trying again will not do
            return named
        with contextlib.suppress(Exception):
            # the client keeps its own as long as the future lives, and so would keep the frames
            # that this one passes, or has passed, and the future and blocks in them
            error = copy.copy(error.with_traceback(None))
        error.add_note(f"raised in slot {slot} during {what}")
        raised: BaseException = error.with_traceback(future.traceback(timeout=30))
        return raised

    def _late(self, pending: Iterable[Future[Any]], what: str, timeout: float, total: int) -> str:
        pending = list(pending)
        states = self._heard(set(map(slot_of, pending)))
        return (
            f"{what}: {len(pending)} of {total} tasks not done after {timeout:.3g} s; waiting for "
            f"{', '.join(states)}. First of them: {pending[0].key}. Give it longer with timeout=, "
            f"or look at {self.dashboard_link}"
        )

    def _heard(self, slots: Iterable[int], silent: float = 0.0) -> list[str]:
        """Of each of these slots that has no worker, one that is paused, or one that is silent for
        so many seconds."""
        workers, now = self._workers(), time.time()
        said = []
        for slot in sorted(slots):
            facts = workers.get(slot)
            if facts is None:
                said.append(f"slot {slot} (it has no worker)")
            elif facts["status"] == "paused":
                said.append(f"slot {slot} ({self._paused(facts)})")
            elif (seconds := now - facts["last_seen"]) >= silent:
                said.append(f"slot {slot} (its worker was last heard of {seconds:.1f} s ago)")
        return said

    def _paused(self, facts: Mapping[str, Any]) -> str:
        """Why a worker runs nothing more, until something is let go."""
        held, limit = facts["metrics"]["memory"], facts["memory_limit"]
        folder = facts["local_directory"]
        room = f", with {format_bytes(free(folder))} free" if self.started_here else ""
        return (
            f"its worker is paused at {format_bytes(held)} of {format_bytes(limit)}: let arrays "
            f"go, or make room where it puts blocks aside, {folder}{room}"
        )

    def gather(
        self,
        futures: Iterable[Future[Any]],
        what: str,
        timeout: float | None = None,
        *,
        cancel: bool = False,
    ) -> list[Any]:
        """The results of ``futures`` on this machine, waited for like ``wait``."""
        (results,) = self.gather_parts([list(futures)], what, timeout, cancel=cancel)
        return results

    def gather_parts(
        self,
        parts: Sequence[Sequence[Future[Any]]],
        what: str,
        timeout: float | None = None,
        *,
        cancel: bool = False,
    ) -> Iterator[list[Any]]:
        """The results of one part after the other: no more of them come to this machine at a time.

        All are waited for first, like ``wait``; ``timeout`` is for everything.
        """
        seconds, said = left_of(seconds_of(timeout))
        deadline, everything = time.monotonic() + seconds, [f for part in parts for f in part]
        self.wait(everything, what, seconds, cancel=cancel)
        for part in parts:
            with self._let_go(everything if cancel else ()):
                results = self._fetch(part, what, max(0.5, deadline - time.monotonic()), said)
            yield results

    def _fetch(
        self, part: Sequence[Future[Any]], what: str, seconds: float, said: float
    ) -> list[Any]:
        try:
            fetch = partial(self.client._gather, part, direct=self.started_here)
            return self.ask(fetch, seconds)
        except Exception as error:
            self.check_alive()
            # a result was lost since, and making it again has failed
            if (erred := next((f for f in part if f.status == "error"), None)) is not None:
                failure = self._failure(erred, what)
                raise failure from failure.__cause__
            if not isinstance(error, TimeoutError):
                raise
            states = self._heard(set(map(slot_of, part)))
            raise DeadlineError(
                f"{what}: the results were ready and did not arrive within {said:.3g} s from "
                f"{', '.join(states)}. Give it longer with timeout="
            ) from None

    def run(
        self, function: Callable[..., Any], *args: Any, timeout: float | None = 60.0
    ) -> list[Any]:
        """``function(*args)`` on every worker at once, outside the task graph; results by slot.

        A parameter called ``dask_worker`` receives the worker. If a worker dies meanwhile, its
        slot is asked again when it has another.
        """
        seconds, whole = left_of(seconds_of(timeout))
        deadline = time.monotonic() + seconds
        name = getattr(function, "__name__", str(function)).strip("_").replace("_", " ")

        def late() -> str:
            silent = self._heard(range(self.slots), _SILENT)
            from_whom = ", ".join(silent[:8]) or f"all {self.slots} workers"
            return (
                f"{from_whom} did not answer within {whole:.3g} s ({name!r}, asked of every "
                f"worker): frozen, busy or gone. Give it longer with timeout="
            )

        said: dict[int, Any] = {}
        lost: OSError | None = None

        def everywhere(missing: set[int]) -> Awaitable[dict[str, Any]]:
            to = self._addresses(missing)
            # every worker is sent these: of all slots no more than how many they are
            slots = range(self.slots) if len(missing) == self.slots else missing
            call: Any = self.client._run
            found: Awaitable[dict[str, Any]] = call(
                _in_slot, slots, function, args, workers=to, on_error="return"
            )
            return found

        self.check_alive()
        while missing := set(range(self.slots)) - said.keys():
            if time.monotonic() > deadline and lost is not None:
                raise ClusterLostError(
                    f"{late()} ({lost}); arrays are not lost by that: do it again when all slots "
                    f"have workers, or {self.anew}"
                )
            left = max(0.1, deadline - time.monotonic())
            try:
                found = self.ask(partial(everywhere, missing), left)
            except TimeoutError:
                raise DeadlineError(late()) from None
            except CommClosedError as error:
                found, lost = {}, error
            for address, answer in found.items():
                if isinstance(answer, bytes):
                    said.update([pickle.loads(answer)])
                elif isinstance(answer, OSError) and (
                    address in str(answer) or isinstance(answer, CommClosedError)
                ):
                    lost = answer  # a worker died meanwhile: its slot is refilled
                elif answer is not None:
                    raise answer  # the function's own
            if missing - said.keys():
                time.sleep(_LOOK)
                self.wait_for_slots(missing - said.keys(), max(0.1, deadline - time.monotonic()))
        return [said[slot] for slot in range(self.slots)]

    def _addresses(self, slots: Iterable[int]) -> list[str] | None:
        """The workers that are asked what those in ``slots`` shall do; None for all."""
        return None

    def keep(self, array: np.ndarray) -> KeptArray:
        """``array``, for tasks that make blocks of it: a copy in the spool where they see that."""
        self.check_alive()
        near, path = self.near(), self.spool / f"{uuid.uuid4().hex}.npy"
        if near:
            with writing(path, lambda: array.nbytes):
                try:
                    np.save(path, array, allow_pickle=False)
                except OSError:
                    path.unlink(missing_ok=True)
                    raise
        return KeptArray(str(path) if near else "", array, near)

    def near(self) -> frozenset[int]:
        """The slots whose workers are on this machine and see what lies in the spool."""
        return frozenset(range(self.slots))

    @abstractmethod
    def notify_page(self, topic: str, event: dict[str, Any]) -> bool:
        """Whether the dashboard has tiledask's page, which then gets this event of Dask's."""

    def await_page(self) -> None:
        """None, once the page has all events; at once where it has them at once."""
        return

    @abstractmethod
    def with_slots(self, slots: int | str) -> str:
        """What makes a cluster of as many ``slots``, in words."""

    # -- end --------------------------------------------------------------

    def close(self) -> None:
        """Stop the workers and remove what was spooled; safe to call twice.

        Does nothing in a forked child: the cluster is its parent's.
        """
        if os.getpid() != self._process:
            return
        if self in RUNNING:
            RUNNING.remove(self)
        if self._ended:
            return
        self._ended = "closed" if self.status == "running" else "lost"
        self._end()
        self._remove_spool()

    @abstractmethod
    def _end(self) -> None:
        """None; what belongs to this cluster on the workers and the scheduler is gone."""

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Cluster({self.slots} {self.kind} workers, {self.status}, dashboard "
            f"{self.dashboard_link})"
        )

    def _repr_html_(self) -> str:
        said = f"{self.slots} {self.kind} workers"
        if self.is_running:
            return panel(said, self.why, self.dashboard_link, self.started)
        return f"<b>{html.words(said)}</b>, {html.words(self.status)}"


class StartedCluster(Cluster):
    """Workers that td.start_cluster started, and their scheduler in this process."""

    started_here = True
    _one_here = "start one here with td.start_cluster()"
    _another = "start a new one with td.start_cluster()"
    anew = "start a new cluster"

    def __init__(
        self,
        dask_cluster: SpecCluster,
        slots: int,
        backend: str,
        why: str,
        memory_limit: int,
        default: bool | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._hosts = hosts
        self.given = self.dask_cluster = dask_cluster
        device_arrays.register(on_host=True)
        try:
            if default is None:
                default = not _users_client_is_default()
            # results come from workers' host memory by UCX too, and not onto a GPU of this process
            families = ["dask", "pickle"]
            client = Client(dask_cluster, set_as_default=default, serializers=families)
            # Dask's client gathers messages for 10 ms before it sends them, which is most of the
            # time of a small product
            if client.scheduler_comm is not None:
                client.scheduler_comm.interval = 0.001
            super().__init__(client, slots, backend, why, memory_limit)
        except BaseException:
            dask_cluster.close(timeout=20)
            raise

    @property
    def hosts(self) -> tuple[str, ...]:
        """What each slot is taken to be on, if that was asked for; else this machine."""
        return self._hosts or super().hosts

    def near(self) -> frozenset[int]:
        return frozenset(slot for slot in range(self.slots) if self.hosts[slot] == self.hosts[0])

    def _workers(self) -> dict[int, dict[str, Any]]:
        nannies = list(self.dask_cluster.workers.values())
        alive = {nanny.address_safe for nanny in nannies if nanny and nanny.status not in _ENDED}
        # one that goes with its nanny is still there for a moment, and would take work with it
        return {s: facts for s, facts in super()._workers().items() if facts["nanny"] in alive}

    @property
    def is_running(self) -> bool:
        """Whether its workers run, and are this process's."""
        return os.getpid() == self._process and self.dask_cluster.status is Status.running

    def notify_page(self, topic: str, event: dict[str, Any]) -> bool:
        scheduler: Any = self.dask_cluster.scheduler  # Dask says no types of it
        there = PAGE in scheduler.plugins
        if there:
            scheduler.loop.add_callback(scheduler.log_event, topic, event)
        return there

    def with_slots(self, slots: int | str) -> str:
        return f"start_cluster(workers={slots})"

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)
        try:
            self.dask_cluster.close(timeout=10 if self._ended == "closed" else 1)
        except Exception:  # whatever kept it from ending in order: no worker outlives its cluster
            # end every worker process at once; their nannies start no others
            for nanny in self.dask_cluster.workers.values():
                nanny.auto_restart = False
                pid = getattr(getattr(nanny.process, "process", None), "pid", None)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
