"""`tiledask.connect`: a Cluster on whatever Dask runs already; `start_cluster` ends with the same.

    dask scheduler                        td.connect("tcp://10.0.0.1:8786")
    dask worker  (host 1)    slots 0, 1       |
    dask worker  (host 2)    slots 2, 3       '--> Cluster(4 CPU workers)

    processes    each worker is one of its own, with so much memory, on a GPU or not
    slots        numbered by host (slots.py)
    limits       bytes of each slot: its cap, its share of a GPU, or of its machine

Nothing of the user's changes: neither the default client nor workers, other clients and their
tasks. What was put there stays, in nobody's way, and the next that connects uses it again.
"""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from dask.system import CPU_COUNT
from distributed import Client
from distributed.comm.addressing import get_address_host_port
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster.cluster import RUNNING, Cluster
from tiledask.distributed.cluster.gpus import check_device, own_gpu, share_of
from tiledask.distributed.cluster.slots import Equip, join
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import asked, check_status
from tiledask.distributed.deadlines import GRACE, seconds_of, until
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["attach", "connect"]


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
    Closing it leaves workers and scheduler running.

    client
        A Dask client, which stays open; a scheduler's address; or a cluster of Dask's, such as
        LocalCluster, SSHCluster, SLURMCluster, KubeCluster. One that is connected to already is
        given back; close it first to have slots for workers that came since.
    workers
        Slots to wait for. Default: as many as there are workers now, at least 1.
    device
        "auto" takes GPUs where every worker was given one of its own, as LocalCUDACluster and
        ``dask cuda worker`` do (CUDA_VISIBLE_DEVICES), and else computes with NumPy; "cuda" and
        "cpu" insist. No two workers may have the same GPU.
    security
        Of TLS, as Dask's Client takes it; for an address.
    timeout
        Seconds until there are enough workers and all is in place.

    Slots are numbered by host, so that neighbours share one. A worker that is restarted comes back
    to the lowest free slot. Raises ConfigError for workers that have another version of tiledask
    (of Python, Dask and NumPy Dask warns); DeadlineError with both numbers if there are fewer
    workers than asked, ClusterLostError if no scheduler answers, TypeError for an asynchronous
    client.
    """
    seconds = seconds_of(timeout)
    wanted = None if workers is None else whole_number("workers", workers, 1)
    check_device(device)
    if isinstance(client, Cluster):
        return client
    if not isinstance(client, Client | str) and not hasattr(client, "scheduler_address"):
        raise TypeError(
            f"work needs a cluster, got {type(client).__name__}; cluster = td.start_cluster(), or "
            f"td.connect(client) where Dask runs already"
        )
    if getattr(client, "asynchronous", False):
        raise TypeError(
            f"{client!r} is asynchronous, and calls of tiledask wait; connect by its scheduler's "
            f"address, in a thread of its own: asyncio.to_thread(td.connect, address)"
        )
    for known in RUNNING[::-1]:
        its = known.client, known.given, known.scheduler_address
        if client in its and known.status == "running":
            on = "cuda" if known.backend == "cupy" else "cpu"
            if device not in ("auto", on) or (wanted or 0) > known.slots:
                raise ConfigError(
                    f"{known} is connected to already, with device={on!r}; close it first to have "
                    f"another device, or more slots"
                )
            return known
    made = _client(client, security, seconds)
    scheduler: Any = made.scheduler
    address, least = scheduler.address, wanted or 1

    def end(seconds: float) -> None:
        if made is not client:
            made.close(seconds)

    try:
        with until(seconds, GRACE):
            try:
                there = partial(made._wait_for_workers, least, seconds)
                asked(made, there, seconds + GRACE)
            except TimeoutError as error:
                raise DeadlineError(
                    f"{error}; start more with 'dask worker {address}', or ask for fewer with "
                    f"workers="
                ) from None
            why = f"workers of {address} were connected to"
            return attach(made, client, end, Equip(), device, why, wanted, seconds)
    except BaseException:
        with suppress(Exception):
            end(5.0)
        raise


def _client(given: Any, security: Any, seconds: float) -> Client:
    """``given``, or a new client of it."""
    if isinstance(given, Client):
        check_status(given.status)
        return given
    where, made = str(getattr(given, "scheduler_address", given)), Client.__new__(Client)
    try:
        # Dask's client waits without end for what is none; one without TLS speaks first
        if where.rpartition("://")[0] in ("", "tcp", "tls"):
            with socket.create_connection(get_address_host_port(where), seconds) as there:
                if not where.startswith("tls") and not there.recv(1):
                    raise ConnectionError("the connection was closed")
        made.__init__(given, security=security, set_as_default=False, timeout=seconds)  # type: ignore[misc]
        return made
    except Exception as error:  # of what is no scheduler, or one that encrypts, too
        # else it would close when it is collected, and if another starts just then wait for it
        with suppress(Exception):
            made.close(timeout=5)
        raise ClusterLostError(
            f"no scheduler answers at {where} within {seconds:g} s ({error}); start one "
            f"with 'dask scheduler', and give the address that it prints, as tcp://10.0.0.1:8786; "
            f"if it encrypts, with security=distributed.Security(tls_ca_file=..., ...)"
        ) from None


# -- a Cluster on the workers that a client reaches, whoever started them --------------------------


def _process(version: str, device: str, dask_worker: Any) -> tuple[tuple[str, int], int, int | str]:
    """(host and process of this worker; bytes of its limit, or if it has none, of its machine, by
    its share of the cores; bytes of its GPU, or why it has none). Raises ConfigError if it has
    another ``version`` of tiledask than the client, or no GPU where ``device`` insists on one."""
    if (its := sys.modules["tiledask"].__version__) != version:
        raise ConfigError(
            f"the worker at {dask_worker.address} has tiledask {its}, here is {version}: run both "
            f"from equal environments"
        )
    if isinstance(gpu := own_gpu(device), str) and device == "cuda":
        raise ConfigError(
            f"device='cuda' needs workers with usable GPUs, and {dask_worker.address}: {gpu}"
        )
    threads = min(dask_worker.state.nthreads, CPU_COUNT)
    memory = dask_worker.memory_manager.memory_limit or MEMORY_LIMIT * threads // CPU_COUNT
    return (this_host(), os.getpid()), memory, gpu


def attach(
    client: Client,
    given: Any,
    end: Callable[[float], None],
    equip: Equip,
    device: str,
    why: str,
    workers: int | None,
    seconds: float,
    *,
    page: bool = True,
    per_gpu: int = 1,
    started_here: bool = False,
) -> Cluster:
    """A Cluster of so many ``workers`` (None: of those that there are), each of which gets what
    ``equip`` has for it, unless another client has slots there. ``end``: within so many seconds,
    when it is closed."""
    call: Any = partial(client._run, _process, sys.modules["tiledask"].__version__, device)
    found: dict[str, Any] = asked(client, call, seconds, what=lambda: "some worker")
    own = {process for process, *_ in found.values()} - {(this_host(), os.getpid())}
    if len(own) < len(found):
        raise ConfigError(
            f"{len(found)} workers have {len(own)} processes of their own, and each needs one: "
            f"LocalCluster(processes=True), or 'dask worker --nworkers {len(found)}'"
        )
    limits = {at: memory for at, (_, memory, _) in found.items()}
    gpus = [gpu for *_, gpu in found.values()]
    without = [f"{at}: {gpu}" for at, gpu in zip(found, gpus, strict=True) if type(gpu) is str]
    if device == "auto":
        why += f": {without[0] if without else 'each has a GPU'}"
    if not without:
        limits = {at: share_of(gpu, per_gpu) for at, gpu in zip(found, gpus, strict=True)}
        equip.pool = int(0.95 * min(gpus) / per_gpu) if per_gpu > 1 else None, per_gpu
        why += f"; a worker has {format_bytes(min(limits.values()))} of its GPU"
    call = partial(client._run_on_scheduler, join, client.id, page)
    at, unequipped, there = asked(client, call, seconds)
    if unequipped:
        call = partial(client._register_worker_plugin, equip, equip.name, idempotent=False)
        asked(client, call, seconds, what=lambda: "some worker")
    slots = {at[a]: (found[a][0][0], equip.cap or limits[a]) for a in found if a in at}
    # of a slot whose worker is just being restarted: on some host, the least
    least = next(iter(slots.values()))[0], min(limit for _, limit in slots.values())
    held = [slots.get(slot, least) for slot in range(workers or max(slots) + 1)]
    on_hosts, most = zip(*held, strict=True)
    backend = "numpy" if without else "cupy"
    return Cluster(
        client, given, end, most, equip.hosts or on_hosts, backend, why, there, started_here
    )
