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
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

from dask.system import CPU_COUNT
from distributed import Client
from distributed.comm.addressing import get_address_host_port
from distributed.system import MEMORY_LIMIT
from distributed.versions import get_versions

from tiledask.distributed.cluster.cluster import RUNNING, Cluster
from tiledask.distributed.cluster.gpus import OwnGpu, check_device, own_gpu, pool_of, share_of
from tiledask.distributed.cluster.slots import Equip, join, leave
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import asked, check_client, workers_of
from tiledask.distributed.deadlines import left_of, seconds_of, until
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["attach", "check_shared", "cluster_of", "connect"]

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
        given back; close it first to have slots for workers that came since.
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
    for known in RUNNING[::-1]:
        if client not in (known.client, known.given, known.scheduler_address):
            continue
        if not known.is_running:
            known.close()  # its client was closed
            continue
        its = "cuda" if known.backend == "cupy" else "cpu"
        if device not in ("auto", its) or (wanted or 0) > known.slots:
            raise ConfigError(
                f"{known} is connected to already, with device={its!r}; close it first to have "
                f"another device, or more slots"
            )
        return known
    made = _client(client, security, seconds)
    scheduler: Any = made.scheduler
    address, left = scheduler.address, left_of(seconds)

    def end(seconds: float) -> None:
        with suppress(Exception):  # of a scheduler that is gone: nothing is left there
            asked(made, partial(made._run_on_scheduler, leave, made.id), seconds)
        if made is not client:
            with suppress(Exception):
                made.close(timeout=5)

    try:
        with until(seconds):
            while (there := len(workers_of(made))) < (wanted or 1):
                if not left.seconds:
                    raise DeadlineError(
                        f"{wanted or 1} workers were asked for, {there} run on {address} after "
                        f"{seconds:g} s. Start more with 'dask worker {address}', or ask for fewer "
                        f"with workers="
                    )
                time.sleep(0.1)
            _check_versions(made, seconds)
            why = f"workers of {address} were connected to"
            return attach(made, client, end, Equip(), device, why, wanted, seconds)
    except BaseException:
        end(10.0)
        raise


def cluster_of(given: Any, what: str) -> Cluster:
    """``given``, if it is a Cluster; else the one that is, or now becomes, connected to it.

    ``what`` needs it, in words. Raises TypeError if nothing can be connected to it.
    """
    if isinstance(given, Cluster | Client | str) or hasattr(given, "scheduler_address"):
        return connect(given)
    raise TypeError(
        f"{what} is made of a cluster's slots, got {type(given).__name__}; "
        f"cluster = td.start_cluster(), or td.connect(client) where Dask runs already"
    )


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
            raise ConfigError("security= is for the address of a scheduler, a client has its own")
        check_client(given)
        return given
    where = str(getattr(given, "scheduler_address", given))
    made: Any = None
    try:
        scheme, _, _ = where.rpartition("://")
        if scheme in ("", "tcp", "tls"):
            # whether anybody takes connections, and without TLS speaks first, as Dask does: its
            # client would wait for that without end
            at = get_address_host_port(where)
            with socket.create_connection(at, min(seconds, _KNOCK)) as there:
                there.settimeout(seconds)
                if scheme != "tls" and not there.recv(1):
                    raise ConnectionError("the connection was closed")
        made = Client.__new__(Client)
        made.__init__(given, security=security, set_as_default=False, timeout=seconds)
        client: Client = made
        return client
    # the last three are of what is no scheduler, or of one that encrypts
    except (OSError, ValueError, TypeError, MemoryError, AssertionError) as error:
        # else it would close when it is collected, and if another starts just then wait for it
        with suppress(Exception):
            made.close(timeout=5)
        raise ClusterLostError(
            f"no scheduler answers at {where} within {seconds:g} s ({error}); start one "
            f"with 'dask scheduler', and give the address that it prints, as tcp://10.0.0.1:8786; "
            f"if it encrypts, with security=distributed.Security(tls_ca_file=..., ...)"
        ) from None


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
    """Bytes of its limit; if it has none, of its machine, by its share of the cores."""
    gpu: OwnGpu | str
    """What it computes on; or why that is no GPU."""


def _process(device: str, dask_worker: Any) -> Process:
    threads = min(dask_worker.state.nthreads, CPU_COUNT)
    memory = dask_worker.memory_manager.memory_limit or MEMORY_LIMIT * threads // CPU_COUNT
    return Process(this_host(), os.getpid(), memory, own_gpu(device))


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
    started_here: bool = False,
) -> Cluster:
    """A Cluster of so many ``workers`` (None: of those that there are), each of which gets what
    ``equip`` has for it, unless they have slots of an earlier client. ``end``: within so many
    seconds, when it is closed."""
    call: Any = partial(client._run, _process, device)
    found: dict[str, Process] = asked(client, call, seconds, what="some worker, for what it is,")
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
    shares = {
        address: share_of(w.gpu, gpus.count(w.gpu), w.memory)
        if isinstance(w.gpu, OwnGpu) and not without
        else w.memory
        for address, w in found.items()
    }
    if not without:
        equip.pool = pool_of(gpus, sharers, min(shares.values())), sharers
        why += f"; a worker has {format_bytes(min(shares.values()))} of its GPU"
    call = partial(client._run_on_scheduler, join, client.id, page)
    at, there = asked(client, call, seconds)
    call = partial(client._register_worker_plugin, equip, equip.name, idempotent=True)
    asked(client, call, seconds, what="some worker, to be given its slot,")
    slots = {at[a]: (found[a].host, equip.cap or shares[a]) for a in found if a in at}
    # of a slot whose worker is just being restarted: on some host, the least
    least = next(iter(slots.values()))[0], min(limit for _, limit in slots.values())
    held = [slots.get(slot, least) for slot in range(workers or max(slots) + 1)]
    hosts, limits = zip(*held, strict=True)
    backend = "numpy" if without else "cupy"
    hosts = equip.hosts or hosts
    return Cluster(client, given, end, limits, hosts, backend, why, there, started_here)


# -- files -----------------------------------------------------------------------------------------


def check_shared(cluster: Cluster, read: Iterable[str] = (), write: Iterable[str] = ()) -> None:
    """Raise ConfigError where a worker does not find the files ``read``, or the folders ``write``,
    as they are here: by their sizes and times, and by a file that was just written."""
    if cluster.started_here:
        return
    with ExitStack() as stack:
        wanted = {path: path for path in read}
        for folder in write:
            probe = tempfile.NamedTemporaryFile(dir=folder, prefix=".tiledask-")  # noqa: SIM115
            wanted[stack.enter_context(probe).name] = folder
        here, there = _stats([*wanted]), cluster.run(_stats, [*wanted])
    for path, name in wanted.items():
        if others := [slot for slot, stats in enumerate(there) if stats[path] != here[path]]:
            hosts = sorted({cluster.address(slot) for slot in others})
            raise ConfigError(
                f"{name} is not what the workers of slots {others} find there "
                f"({', '.join(hosts)}): they are on other hosts or in other containers. Put it on "
                f"a file system that all of them share, or connect to workers that see it"
            )


def _stats(paths: list[str]) -> dict[str, tuple[int, int]]:
    """Size and time of each file or folder, from this worker."""
    found = dict.fromkeys(paths, (-1, -1))
    for path in filter(os.path.exists, paths):
        found[path] = os.stat(path).st_size, os.stat(path).st_mtime_ns
    return found
