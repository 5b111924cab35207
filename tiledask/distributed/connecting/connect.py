"""`tiledask.connect`: a Cluster on whatever Dask runs already; `start_cluster` ends with the same.

    dask scheduler                        td.connect("tcp://10.0.0.1:8786")
    dask worker  (host 1)    slots 0, 1       |
    dask worker  (host 2)    slots 2, 3       '--> Cluster(4 CPU workers)

    processes    each worker is one of its own, with so much memory, on a GPU or not
    slots        numbered by host (slots.py)
    limits       bytes of each slot: its cap, its share of a GPU, or of its machine

Nothing of the user's changes: neither the default client nor other tasks, and what was put on the
workers and the scheduler goes when the cluster is closed, or its client is gone.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from distributed import Client
from distributed.comm.addressing import get_address_host_port
from distributed.system import MEMORY_LIMIT
from distributed.versions import get_versions

from tiledask.distributed.cluster import device_arrays
from tiledask.distributed.cluster.cluster import RUNNING, Cluster
from tiledask.distributed.cluster.gpus import OwnGpu, check_device, own_gpu, share_of, take_pool
from tiledask.distributed.cluster.slots import Equip, give_back, take_slots
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import asked, check_client, workers_of
from tiledask.distributed.deadlines import left_of, seconds_of, until
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError, short
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["attach", "cluster_of", "connect"]

_KNOCK = 1.5
"""Seconds in which a host takes a connection, or nobody listens there."""
_ALIKE = {"tiledask": None, "python": 2, "dask": 2, "distributed": 2, "numpy": 2}
"""What must agree, in how many of its version's numbers (None: in all)."""


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
        Slots to wait for. Default: as many as there are workers now, at least 1.
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
    if isinstance(client, Cluster):
        return client
    if (known := _known(client)) is not None:
        if device not in ("auto", "cuda" if known.backend == "cupy" else "cpu"):
            raise ConfigError(
                f"device={device!r} was asked for, and {known} is connected to already, whose "
                f"{known.kind} workers are {known.why}: close it first"
            )
        if not known.started_here and known.counting.acquire(blocking=False):
            try:  # an operation under way counts on as many slots as it began with
                hold(known, wanted, seconds)
            finally:
                known.counting.release()
        return known
    made = _client(client, security, seconds)

    def end(in_order: bool) -> None:
        if in_order:
            give_back(made)
        if made is not client:
            with suppress(Exception):
                made.close(timeout=5)

    try:
        with until(seconds):
            _wait_for_workers(made, wanted or 1, seconds)
            _check_versions(made, seconds)
            why = f"workers of {_address(made)} were connected to"
            given = made, client, end, Equip()
            return attach(*given, device=device, why=why, workers=wanted, seconds=seconds)
    except BaseException:
        end(True)
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
            if cluster.is_running:
                return cluster
            cluster.close()  # its client was closed
    return None


def _client(given: Any, security: Any, seconds: float) -> Client:
    """``given``, or a new client of it."""
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
        return given
    where = str(given if isinstance(given, str) else getattr(given, "scheduler_address", given))
    try:
        _knock(where, seconds)
        return Client(given, security=security, set_as_default=False, timeout=seconds)
    except TypeError as error:  # Dask's, of what it was not given
        if "ssl_context" not in str(error):
            raise
        raise ConfigError(
            f"{where} encrypts, and needs the certificates that its workers have: "
            f"td.connect(..., security=distributed.Security(tls_ca_file=..., tls_client_cert=..., "
            f"tls_client_key=...))"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{short(where)} is no address of a scheduler ({error}): 'dask scheduler' prints one, "
            f"as tcp://10.0.0.1:8786"
        ) from None
    except (OSError, MemoryError, AssertionError) as error:  # these of what is no scheduler
        raise ClusterLostError(
            f"no scheduler answers at {where} within {seconds:g} s ({error}); start one with "
            f"'dask scheduler', and give the address that it prints"
        ) from None


def _knock(where: str, seconds: float) -> None:
    """Raise OSError if nothing at an address of TCP takes connections, or without TLS does not
    speak first, as Dask does: its client would wait for that without end."""
    scheme, _, _ = where.rpartition("://")
    if scheme in ("", "tcp", "tls"):
        with socket.create_connection(get_address_host_port(where), min(seconds, _KNOCK)) as there:
            there.settimeout(seconds)
            if scheme != "tls" and not there.recv(1):
                raise ConnectionError("the connection was closed")


def _address(client: Client) -> str:
    """Where its scheduler listens; empty once it was closed."""
    return getattr(client.scheduler, "address", "")


def _wait_for_workers(client: Client, wanted: int, seconds: float) -> None:
    deadline = time.monotonic() + left_of(seconds).seconds
    while (there := len(workers_of(client))) < wanted:
        if time.monotonic() > deadline:
            fewer = f", or ask for fewer: td.connect(..., workers={there})" if there else ""
            address = _address(client)
            raise DeadlineError(
                f"{wanted} workers were asked for, {there} run on {address} after {seconds:g} s. "
                f"Start more with 'dask worker {address}'{fewer}"
            )
        time.sleep(0.1)


def _check_versions(client: Client, seconds: float) -> None:
    """Raise ConfigError if the scheduler or a worker cannot work with this process: tasks are
    pickled here and read there, so Python, Dask and NumPy agree in their first two numbers, and
    tiledask altogether."""
    call: Any = partial(client._get_versions, packages=["tiledask"])
    found: dict[str, Any] = asked(client, call, seconds, what="some worker, for its versions,")
    here = get_versions()["packages"] | {"tiledask": sys.modules["tiledask"].__version__}
    for who, each in {"the scheduler": found["scheduler"], **found["workers"]}.items():
        for name, numbers in _ALIKE.items():
            mine, its = str(here[name]), str(each["packages"][name])
            if mine.split(".")[:numbers] != its.split(".")[:numbers]:
                raise ConfigError(
                    f"{who} has {name} {its}, here is {mine}: what is pickled here must be read "
                    f"there, so run both from equal environments "
                    f"(pip install tiledask=={here['tiledask']} there)"
                )


# -- a Cluster on the workers that a client reaches, whoever started them --------------------------


class Process(NamedTuple):
    """A worker's."""

    host: str
    number: int
    memory: int
    """Bytes of its limit, or of its machine if it has none."""
    limited: bool
    """Whether it has one."""
    gpu: OwnGpu | str
    """What it computes on; or why that is no GPU."""


def _process(device: str, dask_worker: Any) -> Process:
    limit = dask_worker.memory_manager.memory_limit
    memory = int(limit or MEMORY_LIMIT), bool(limit)
    return Process(this_host(), os.getpid(), *memory, own_gpu(device))


def _processes(client: Client, device: str) -> dict[str, Process]:
    """The worker at each address."""
    call: Any = partial(client._run, _process, device)
    found: dict[str, Process] = asked(client, call, 60.0, what="some worker, for what it is,")
    return found


def attach(
    client: Client,
    given: Any,
    end: Callable[[bool], None],
    equip: Equip,
    *,
    device: str,
    why: str,
    workers: int | None,
    seconds: float,
    cap: int | None = None,
    page: bool = True,
    started_here: bool = False,
) -> Cluster:
    """A Cluster of ``workers`` slots at least (None: as many as there are workers), each of which
    got what ``equip`` has for it, and may hold ``cap`` bytes. ``end`` is called when it is closed,
    with whether its scheduler still answers."""
    found = _processes(client, device)
    own = {each[:2] for each in found.values()} - {(this_host(), os.getpid())}
    if len(own) < len(found):
        raise ConfigError(
            f"{len(found)} workers have {len(own)} processes of their own, and each needs one: "
            f"LocalCluster(processes=True), or 'dask worker --nworkers {len(found)}'"
        )
    gpus = [each.gpu for each in found.values() if isinstance(each.gpu, OwnGpu)]
    sharers = max((gpus.count(gpu) for gpu in gpus), default=1)
    without = next((f"{a}: {w.gpu}" for a, w in found.items() if isinstance(w.gpu, str)), "")
    if not without and sharers > 1 and device == "auto":
        without = f"{sharers} workers share a GPU"
    if without and device == "cuda":
        raise ConfigError(f"device='cuda' needs workers with usable GPUs, and {without}")
    if device == "auto":
        why += f": {without or 'each has a GPU'}"
    there = take_slots(client, equip, seconds, page)
    kind: dict[str, Any] = {"backend": "numpy" if without else "cupy", "hosts": equip.hosts}
    cluster = Cluster(client, given, end, why=why, started_here=started_here, **kind)
    try:
        cluster.page = there
        hold(cluster, workers, seconds, cap)
        if not without:
            device_arrays.register(on_host=True)
            take_pool(cluster, gpus, sharers, cap, seconds)
            if cap is None:
                share = format_bytes(cluster.memory_limit)
                cluster.why += f"; a worker has {share} of its GPU"
    except BaseException:
        cluster.close()
        raise
    return cluster


def hold(cluster: Cluster, wanted: int | None, seconds: float, cap: int | None = None) -> None:
    """Have ``cluster`` hold ``wanted`` slots at least, or those of all workers that there are, with
    ``cap`` bytes for each; without one, as many as its process has."""
    workers = cluster.wait_for_slots(range(wanted or 0), seconds)
    count = wanted or max(workers, default=0) + 1
    if count <= cluster.slots:
        return
    found = _processes(cluster.client, "cuda" if cluster.backend == "cupy" else "cpu")
    hosts, gpus = [w.host for w in found.values()], [w.gpu for w in found.values()]
    limits = {}
    for address, worker in found.items():
        limits[address] = worker.memory // (1 if worker.limited else hosts.count(worker.host))
        if isinstance(gpu := worker.gpu, OwnGpu):
            limits[address] = share_of(gpu, gpus.count(gpu), limits[address])
    at = {slot: facts["address"] for slot, facts in workers.items()}
    least = min(limits.values())  # of a slot whose worker is just being restarted
    cluster.hold([cap or limits.get(at.get(slot, ""), least) for slot in range(count)])
