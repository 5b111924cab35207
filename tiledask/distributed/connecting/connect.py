"""`tiledask.connect`: a Cluster on whatever Dask runs already.

    dask scheduler                        td.connect("tcp://10.0.0.1:8786")
    dask worker  (host 1)    slots 0, 1       |
    dask worker  (host 2)    slots 2, 3       '--> Cluster(4 CPU workers)

Nothing of the user's changes: neither the default client nor other tasks, and what was put on the
workers and the scheduler goes when the cluster is closed, or its client is gone.
"""

import asyncio
import concurrent.futures
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from distributed import Client
from distributed.comm.addressing import get_address_host, get_address_host_port

from tiledask.distributed.cluster import device_arrays
from tiledask.distributed.cluster.cluster import (
    RUNNING,
    Cluster,
    asked,
    check_client,
    workers_of,
)
from tiledask.distributed.cluster.device_memory import share_of
from tiledask.distributed.cluster.spool import machine
from tiledask.distributed.connecting.gpus import check_device
from tiledask.distributed.connecting.slots import Joined, join, leave
from tiledask.distributed.connecting.versions import check_versions, versions_of
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError, short
from tiledask.plan.whole import whole_number

__all__ = ["AttachedCluster", "cluster_of", "connect"]

T = TypeVar("T")
SAY = 2.0
"""Seconds that the scheduler has to say which workers were not ready."""
KNOCK = 1.5
"""Seconds in which a host takes a connection, or nobody listens there."""
LOOK = 0.1
"""Seconds between two looks at how many workers there are."""


def connect(
    client: Any,
    *,
    workers: int | None = None,
    device: str = "auto",
    security: Any = None,
    timeout: float = 60.0,
) -> Cluster:
    """A Cluster on workers that run already, a slot on each; use it in a ``with`` block.

    Mesh, products, schedules, trainings and claims take it as they take one of ``start_cluster``.
    Closing it takes back what was put on workers and scheduler, and leaves them running; so does
    the end of this process, however it ends.

    client
        A Dask client, which stays open; a scheduler's address; or a cluster of Dask's, such as
        LocalCluster, SSHCluster, SLURMCluster, KubeCluster. One that is connected to already is
        given back, with slots for workers that came since.
    workers
        Slots to wait for. Default: as many as there are workers now, at least 1. Workers beyond
        stand by, and take the slot of one that goes.
    device
        "auto" takes GPUs where every worker was given one of its own, as LocalCUDACluster and
        ``dask cuda worker`` do (CUDA_VISIBLE_DEVICES), and else computes with NumPy; "cuda" and
        "cpu" insist. Workers that share a GPU, which only "cuda" takes, share its memory.
    security
        Of TLS, as Dask's Client takes it; for an address.
    timeout
        Seconds until there are enough workers and all is in place.

    Slots are numbered by host, so that neighbours share one. A worker that is restarted comes back
    to the lowest free slot. Raises ConfigError for an asynchronous client, and for processes whose
    versions of tiledask, Python, Dask or NumPy do not go with this one's; DeadlineError with both
    numbers if there are fewer workers than asked, ClusterLostError if no scheduler answers.
    """
    seconds = seconds_of(timeout)
    wanted = None if workers is None else whole_number("workers", workers, 1)
    check_device(device)
    known = client if isinstance(client, Cluster) else _known(client)
    if known is not None:
        _check_known(known, device)
    if isinstance(client, Cluster):
        return client
    if isinstance(known, AttachedCluster):
        known.grow(wanted, seconds)
    if known is not None:
        return known
    deadline = time.monotonic() + seconds
    found, ours = _client(client, security, seconds)
    try:
        _wait_for(found, wanted or 1, deadline, seconds)
        check_versions(_in_time(found, versions_of, deadline, "say their versions"))
        return AttachedCluster(found, client, ours, wanted, device, deadline, seconds)
    except BaseException:
        if ours:
            found.close(timeout=5)
        raise


def cluster_of(given: Any, what: str) -> Cluster:
    """``given``, if it is a Cluster; else the one that is, or now becomes, connected to it.

    ``what`` needs it, in words. Raises TypeError if nothing can be connected to it.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, Client | str) and not hasattr(given, "scheduler_address"):
        raise TypeError(
            f"{what} is made of a cluster's slots, got {type(given).__name__}; "
            f"cluster = td.start_cluster(), or td.connect(client) where Dask runs already"
        )
    return connect(given)


def _known(given: Any) -> Cluster | None:
    """The running cluster of this process that is, or is connected to, ``given``."""
    for cluster in reversed(RUNNING):
        its = (cluster.client, cluster.given, _address(cluster.client))
        if any(each is given or (isinstance(each, str) and each == given) for each in its):
            if cluster.is_running and cluster.status == "running":
                return cluster
            if isinstance(cluster, AttachedCluster):  # its client was closed
                cluster.close()
    return None


def _check_known(cluster: Cluster, device: str) -> None:
    """None if ``cluster`` computes on what was asked for; else ConfigError."""
    has = "cuda" if cluster.backend == "cupy" else "cpu"
    if device not in ("auto", has):
        raise ConfigError(
            f"device={device!r} was asked for, and {cluster} is connected to already; it has "
            f"{cluster.kind} workers ({cluster.why}): close it first"
        )


def _client(given: Any, security: Any, seconds: float) -> tuple[Client, bool]:
    """(a client of ``given``, whether it was made here)."""
    if getattr(given, "asynchronous", False):
        raise ConfigError(
            f"{given!r} is asynchronous, and calls of tiledask wait for what they return; connect "
            f"by the scheduler's address, td.connect(client.scheduler.address), in a thread of its "
            f"own: asyncio.to_thread"
        )
    if isinstance(given, Client):
        if security is not None:
            raise ConfigError(
                "security= is for the address of a scheduler, this client has its own; leave it out"
            )
        check_client(given)
        return given, False
    where = given if isinstance(given, str) else getattr(given, "scheduler_address", given)
    _knock(str(where), seconds)
    try:
        made = Client(given, security=security, set_as_default=False, timeout=seconds)
    except TypeError as error:  # Dask's, of what it was not given
        if "ssl_context" not in str(error):
            raise
        raise ConfigError(
            f"{where} encrypts, and needs the certificates that its workers have: "
            f"td.connect(..., security=distributed.Security(tls_ca_file=..., tls_client_cert=..., "
            f"tls_client_key=...))"
        ) from None
    except (OSError, MemoryError, AssertionError) as error:  # these of what is no scheduler
        raise _nobody(where, seconds, error) from None
    return made, True


def _knock(where: str, seconds: float) -> None:
    """None if something at the address ``where`` takes connections, and without TLS says something,
    as Dask does at once and its client waits for without end; or if ``where`` is of no TCP. Else
    ClusterLostError, or ConfigError if it is no address."""
    scheme, _, _ = where.rpartition("://")
    if scheme not in ("", "tcp", "tls"):
        return
    try:
        host, port = get_address_host_port(where)
    except ValueError as error:
        raise ConfigError(
            f"{short(where)} is no address of a scheduler ({error}): 'dask scheduler' prints one, "
            f"as tcp://10.0.0.1:8786"
        ) from None
    deadline = time.monotonic() + min(seconds, KNOCK)
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            there = socket.create_connection((host, port), left)
            break
        except OSError as error:
            if time.monotonic() + 2 * LOOK > deadline:
                raise _nobody(where, min(seconds, KNOCK), error) from None
        time.sleep(LOOK)
    with there:
        there.settimeout(seconds)
        try:
            if scheme != "tls" and not there.recv(1):
                raise ConnectionError("the connection was closed")
        except OSError as error:
            raise _nobody(where, seconds, error) from None


def _nobody(where: str, seconds: float, error: Exception) -> ClusterLostError:
    return ClusterLostError(
        f"no scheduler answers at {where} within {seconds:g} s ({error}); start one with "
        f"'dask scheduler', and give the address that it prints"
    )


def _wait_for(client: Client, wanted: int, deadline: float, seconds: float) -> None:
    """None, once ``wanted`` workers run."""
    while (there := len(workers_of(client))) < wanted:
        if time.monotonic() > deadline:
            raise _too_few(client, wanted, there, seconds)
        time.sleep(LOOK)


def _in_time(client: Client, call: Callable[..., T], deadline: float, what: str) -> T:
    """What ``call(client, seconds)`` returns, in which scheduler and workers do ``what``."""
    seconds = max(1.0, deadline - time.monotonic())
    try:
        return call(client, seconds)
    except TimeoutError:
        raise DeadlineError(
            f"the workers of {_address(client)} did not all {what} within {seconds:.3g} s: "
            f"one of them is frozen or cannot be reached; look at their logs"
        ) from None


def _too_few(
    client: Client, wanted: int, there: int, seconds: float, refused: Iterable[str] = ()
) -> DeadlineError:
    why = "".join(f"; {words}" for words in refused)
    fewer = f", or ask for fewer: td.connect(..., workers={there})" if there else ""
    address = _address(client)
    return DeadlineError(
        f"{wanted} workers were asked for, {there} run on {address} after {seconds:g} s{why}. "
        f"Start more with 'dask worker {address}'{fewer}"
    )


def _address(client: Client) -> str:
    """Where its scheduler listens; empty once it was closed."""
    address: str = getattr(client.scheduler, "address", "")
    return address


class AttachedCluster(Cluster):
    """Slots on workers that somebody else started."""

    started_here = False
    _one_here = "connect here with td.connect(address)"
    _another = "connect again with td.connect(address)"
    anew = "start a worker in its place"

    def __init__(
        self,
        client: Client,
        given: Any,
        ours: bool,
        wanted: int | None,
        device: str,
        deadline: float,
        seconds: float,
    ) -> None:
        self.given = given
        self._ours, self._page = ours, False
        self._notified: concurrent.futures.Future[None] | None = None
        """Done when the page knows all that it was told."""
        self._at: dict[int, str] = {}
        """Slot -> where its worker listened when it was last looked up."""
        self._hosts: dict[int, str] = {}
        """Slot -> the host of its worker, or of the last one."""
        comm: Any = client.scheduler_comm
        self._interval = comm.interval
        super().__init__(client, 0, "numpy", "", 0)
        try:
            self._join(wanted, device, deadline, seconds)
        except BaseException:
            self._ours = False  # whoever called closes it
            self.close()
            raise
        comm.interval = 0.001  # as a client of start_cluster's has it

    def grow(self, wanted: int | None, seconds: float) -> None:
        """None, with ``wanted`` slots at least; None takes in whatever workers came since."""
        if wanted is None and len(workers_of(self.client)) <= self.slots:
            return
        if wanted is not None and wanted <= self.slots:
            return
        if not self.counting.acquire(blocking=False):
            return  # an operation counts on as many slots as it began with
        try:
            device = "cuda" if self.backend == "cupy" else "cpu"
            self._join(wanted, device, time.monotonic() + seconds, seconds)
        finally:
            self.counting.release()

    def _join(self, wanted: int | None, device: str, deadline: float, seconds: float) -> None:
        """None, once there are slots."""
        while True:
            left = max(1.0, deadline - time.monotonic())
            found = self._on_scheduler(join, wanted, device, left, seconds=left + SAY)
            slots: dict[int, tuple[str, Joined]] = found["slots"]
            refused = [f"{address} cannot: {why}" for address, why in found["refused"].items()]
            if wanted is None and not refused and slots:
                break
            if wanted is not None and set(range(wanted)) <= slots.keys():
                break
            if wanted is None and refused:
                raise ConfigError(
                    f"{len(refused)} workers cannot have a slot: {'; '.join(refused)}; mend them, "
                    f"or ask for as many as can: td.connect(..., workers={len(slots)})"
                )
            if time.monotonic() > deadline:
                raise _too_few(self.client, wanted or 1, len(slots), seconds, refused)
            time.sleep(LOOK)
        count = wanted if wanted is not None else max(slots) + 1
        mine = {slot: worker for slot, worker in slots.items() if slot < count}
        _refuse_threads([worker for _, worker in mine.values()])
        self._lie({slot: address for slot, (address, _) in mine.items()})
        self.backend = "numpy" if found["without"] else "cupy"
        self.why = f"workers of {_address(self.client)} were connected to"
        if device != "cpu":
            self.why += f": {found['without'] or 'each has a GPU'}"
        memories = _memories([w for _, w in slots.values()], self.backend)
        limits = {slot: m for slot, m in zip(slots, memories, strict=True) if slot < count}
        least = min(limits.values())  # of a slot whose worker is just being restarted
        self.memory_limits = tuple(limits.get(slot, least) for slot in range(count))
        if self.backend == "cupy":  # what comes here allocates nothing on a GPU of this process
            device_arrays.register(on_host=True)
        self._page = found["page"]
        self.slots, self.transport = count, ""
        self.rates.clear()
        self._speeds = ()

    def _on_scheduler(self, function: Any, *args: Any, seconds: float) -> Any:
        """What ``function(client, *args)`` returns on the scheduler."""
        call = partial(self.client._run_on_scheduler, function, self.client.id, *args)
        try:
            return asked(self.client, call, seconds)
        except TimeoutError:
            raise DeadlineError(
                f"{_address(self.client)} and its workers were not ready for slots within "
                f"{seconds:g} s; give them longer with timeout=, or look at their logs"
            ) from None

    @property
    def is_running(self) -> bool:
        return os.getpid() == self._process and self.status == "running"

    def _workers(self) -> dict[int, dict[str, Any]]:
        found = super()._workers()
        self._lie({slot: facts["address"] for slot, facts in found.items()})
        return found

    def _lie(self, at: dict[int, str]) -> None:
        """None; slots are where these addresses say."""
        self._at = at
        self._hosts |= {slot: get_address_host(address) for slot, address in at.items()}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._hosts.get(slot, "unknown") for slot in range(self.slots))

    def _addresses(self, slots: Iterable[int]) -> list[str] | None:
        return [self._at[slot] for slot in slots if slot in self._at]

    def near(self) -> frozenset[int]:
        token = secrets.token_hex(8)
        (self.spool / "seen").write_text(token)
        seen = self.run(_sees, str(self.spool / "seen"), token, machine())
        return frozenset(slot for slot, sees in enumerate(seen) if sees)

    def notify_page(self, topic: str, event: dict[str, Any]) -> bool:
        if self._page:  # an answer takes a small product's time, and nobody needs it
            loop: Any = self.client.loop
            sent = self._notify(self._notified, topic, event)
            self._notified = asyncio.run_coroutine_threadsafe(sent, loop.asyncio_loop)
        return self._page

    async def _notify(
        self, before: concurrent.futures.Future[None] | None, topic: str, event: dict[str, Any]
    ) -> None:
        """Send an event, once the one ``before`` has arrived."""
        if before is not None:
            with suppress(Exception):
                await asyncio.wrap_future(before)
        scheduler: Any = self.client.scheduler
        await scheduler.log_event(topic=topic, msg=event)

    def await_page(self) -> None:
        if self._notified is not None:
            with suppress(Exception):  # a page is worth no more than that
                self._notified.result(SAY)

    def with_slots(self, slots: int | str) -> str:
        return f"td.connect(client, workers={slots})"

    def _end(self) -> None:
        if self.client.status == "running":
            self.await_page()
            with suppress(Exception):  # of a scheduler that is gone: nothing is left there
                self._on_scheduler(leave, seconds=10.0)
                comm: Any = self.client.scheduler_comm
                comm.interval = self._interval
        if self.backend == "cupy" and not RUNNING:  # CuPy's arrays are CuPy's again
            device_arrays.register(on_host=False)
        if self._ours:
            with suppress(Exception):
                self.client.close(timeout=5)


def _memories(workers: list[Joined], backend: str) -> list[int]:
    """Bytes that each of ``workers`` may plan with, of its GPU or of its machine."""
    machines = [w.machine for w in workers]
    host = [w.memory // (1 if w.limited else machines.count(w.machine)) for w in workers]
    if backend == "numpy":
        return host
    gpus = [w.gpu for w in workers if w.gpu]  # each has one
    uuids = [gpu.uuid for gpu in gpus]
    return [
        share_of(gpu.memory, gpu.integrated, uuids.count(gpu.uuid), own)
        for gpu, own in zip(gpus, host, strict=True)
    ]


def _refuse_threads(workers: list[Joined]) -> None:
    """None if each of ``workers`` is a process of its own; else ConfigError."""
    processes = [(w.machine, w.process) for w in workers]
    mine = Joined.of(None)
    own = len(set(processes) - {(mine.machine, mine.process)})
    if own < len(processes):
        raise ConfigError(
            f"{len(workers)} workers have {own} processes of their own, and each needs one: "
            f"LocalCluster(processes=True), or 'dask worker --nworkers {len(workers)}'"
        )


def _sees(path: str, token: str, where: str) -> bool:
    """Whether this worker is on the machine ``where``, and reads ``token`` there."""
    try:
        return machine() == where and Path(path).read_text() == token
    except OSError:
        return False
