"""Start a cluster on this machine: GPU workers if a GPU is usable, otherwise CPU workers.

slot        0         1         2         3        one worker process per slot,
resource  slot0     slot1     slot2     slot3      everything on 127.0.0.1
device    GPU 0     GPU 0     GPU 1     GPU 1      (per_gpu=2), or one BLAS thread each
"""

import asyncio
import contextlib
import copy
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from string import ascii_uppercase
from typing import Any

import dask
from dask.system import CPU_COUNT
from distributed import Scheduler, SpecCluster, WorkerPlugin
from distributed.deploy.cluster import Cluster as BaseCluster
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.cluster.cluster import (
    PAGE_MODULE,
    RUNNING,
    Cluster,
    StartedCluster,
)
from tiledask.distributed.cluster.device_memory import OnePool
from tiledask.distributed.cluster.forkserver import nanny_of_now, refuse_here
from tiledask.distributed.cluster.spool import AS_HOST
from tiledask.distributed.cluster.web import (
    HOST,
    asked_port,
    free_port,
    origins,
)
from tiledask.distributed.cluster.worker import BLAS_THREADS, INTERVALS, PROFILED
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
from tiledask.extras import install
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.backend import GpuInfo, probe
from tiledask.tile.progress import in_notebook, is_watched, show, showing

__all__ = ["choose_device", "start_cluster"]

_PRELOAD = ["tiledask.distributed.cluster.worker"]
_INNOCENT = 6  # deaths of workers while a task ran, before it is to blame: somebody may kill many
_THREADS = 2  # of a worker: one computes, one hands data over beside it
_IDLE_WORKER = 150_000_000  # bytes of a worker process that does nothing, rounded up
_LEAST_CAP = 8_000_000  # bytes
_UUID = len("GPU-00000000-0000-0000-0000-000000000000")


def start_cluster(
    workers: int | None = None,
    *,
    device: str = "auto",
    per_gpu: int | None = None,
    threads: int = 1,
    hosts: int = 1,
    memory_limit: int | str | None = None,
    memory_cap: int | str | None = None,
    dashboard_port: int | None = None,
    tls: bool = False,
    timeout: float = 60.0,
    quiet: bool = False,
    replace: bool = False,
    default: bool | None = None,
) -> Cluster:
    """A Cluster of one worker per slot, ready to work; use it in a ``with`` block.

    While the workers start, a terminal or a notebook shows how many there are; then one message
    says what was started and why, and where other clusters of this process still run. In
    JupyterLab as `make lab` starts it, the Dask panels then show this cluster.

    workers
        Number of slots. Default: one per GPU (times ``per_gpu``), or one per CPU core, at least 2.
    device
        "auto" probes a GPU with a real allocation and falls back to the CPU; "cuda" and "cpu"
        insist.
    per_gpu
        Workers that share one GPU and its memory. Default: as few as make room for ``workers``.
    threads
        BLAS threads per worker.
    hosts
        CPU workers as if on so many hosts, neighbours on one: to learn and to test on one machine
        what is otherwise seen on several. Those of different hosts do not read each other's memory,
        blocks and messages go between them by Dask, and what goes is counted apart
        (``traffic.between_hosts``). They still share cores, memory and disk.
    memory_limit
        Bytes of host memory per worker at which Dask's nanny restarts it (default: an even
        share of this machine's memory).
    memory_cap
        Bytes that a worker's own allocations may take: beyond, they raise MemoryError. Stands in
        for a device of that size, at least 8 MB. Enforced by the kernel on Linux, after the
        worker has set 8 MiB aside for Dask's messages, and on a GPU, messages included, by the
        pool that all its memory comes from.
    dashboard_port
        Default: the environment variable TILEDASK_DASHBOARD_PORT, else any free port; any free one
        where an older cluster or another process has it. Pages of other servers than JupyterLab on
        this machine may show the dashboard if TILEDASK_DASHBOARD_ORIGINS names them ("host:port
        host:port").
    tls
        Encrypt and authenticate connections with certificates made for this cluster; not the
        dashboard, which listens on this machine alone, and not those of UCX, which GPU workers use
        if Dask's setting distributed.comm.default-scheme is "ucx" (extra ucx): it listens on all of
        this machine's networks, everything else on none.
    quiet
        Show and print nothing.
    replace
        Close the clusters that this process still runs, and what lies on them, first.
    default
        Whether ``cluster.client`` becomes Dask's default client, which computes dask.arrays that
        name none, until it is closed. Default: unless a client of your own is that already.

    Raises ConfigError for impossible requests, DeadlineError if the workers are not all there
    after ``timeout`` seconds.
    """
    refuse_here()
    backend, why = choose_device(device)
    per_gpu = _sharing(workers, backend) if per_gpu is None else per_gpu
    slots = _slots(workers, backend, per_gpu, threads)
    names = _hosts(hosts, slots, backend)
    cap = _cap(memory_cap, backend)
    host = MEMORY_LIMIT // slots if memory_limit is None else parse_bytes(memory_limit)
    security, port, seconds = _security(tls), asked_port(dashboard_port), seconds_of(timeout)
    others = [each for each in RUNNING if isinstance(each, StartedCluster) and each.is_running]
    for other in others if replace else ():
        other.close()
    options: dict[str, Any] = {
        "memory_limit": host,
        "dashboard_port": free_port(port),
        "security": security,
    }
    born: list[SpecCluster] = []
    if backend == "numpy":
        start, room = partial(_start_cpu, born=born, hosts=names), host
    else:
        room, words = _gpu_share(probe().devices, per_gpu, host)
        why = f"{why}; {words}" if cap is None else why
        start = partial(_start_gpu, born=born, per_gpu=per_gpu, room=room, cap=cap)
    settings = _settings(threads, options["dashboard_port"])
    what = f"starting {slots} {'GPU' if backend == 'cupy' else 'CPU'} workers"
    with (
        nullcontext()
        if quiet or not is_watched()
        else showing(what, _counting(born, slots), after=0.5)
    ):
        with dask.config.set(settings), _blas_threads(threads):
            running = _launch(start, slots, seconds, options)
        limit = room if cap is None else cap
        cluster = StartedCluster(running, slots, backend, why, limit, default, names)
        try:
            cluster.wait_for_slots(range(slots), timeout)
            if backend == "cupy":
                _refuse_broken(cluster.run(device_memory.problem, timeout=timeout))
            if cap is not None and backend == "numpy":
                cluster.client.register_plugin(_CapMemory(cap))
        except BaseException:
            cluster.close()
            raise
    if not quiet:
        if in_notebook():
            show(cluster)
        else:
            print(f"{slots} {cluster.kind} workers, {threads} BLAS thread each: {why}")
            print(f"dashboard: {cluster.dashboard_link}")
        if port not in (0, options["dashboard_port"]):
            print(
                f"port {port} belongs to an earlier cluster or another process; this one's "
                f"dashboard is at the address above"
            )
        for other in [] if replace else others:
            print(
                f"{other.slots} {other.kind} workers of an earlier cluster still run, dashboard: "
                f"{other.dashboard_link}; start_cluster(..., replace=True) closes them first"
            )
    return cluster


def _counting(born: list[Any], slots: int) -> Callable[[], tuple[int, int | None, str]]:
    """How many workers there are, for a bar; nobody knows before their cluster does."""
    return lambda: (len(born[0].scheduler.workers), slots, "") if born else (0, None, "")


def _launch(
    start: Callable[..., SpecCluster], slots: int, seconds: float, options: dict[str, Any]
) -> SpecCluster:
    """The running Dask cluster, or an error within ``seconds`` that says what to look at."""
    try:
        return start(slots, seconds, **options)
    except TimeoutError:
        raise DeadlineError(
            f"{slots} workers were asked for and did not start within {seconds:g} s; give them "
            f"longer with timeout=, or ask for fewer"
        ) from None
    except RuntimeError as error:
        raise ClusterLostError(
            f"{slots} workers were asked for and could not start ({error}); their own words are "
            f"above. In a script, put start_cluster() under  if __name__ == '__main__':"
        ) from error


def choose_device(device: str) -> tuple[str, str]:
    """("numpy" or "cupy", the reason in words), for "auto", "cuda" or "cpu"."""
    if device not in ("auto", "cuda", "cpu"):
        raise ConfigError(f"device is 'auto', 'cuda' or 'cpu', got {device!r}")
    if device == "cpu":
        return "numpy", "CPU workers were asked for"
    found = probe()
    reason = found.reason or _without_dask_cuda()
    if not reason:
        names = ", ".join(device.name for device in found.devices)
        return "cupy", f"{names} took a real allocation"
    if device == "cuda":
        raise ConfigError(f"device='cuda' needs a usable GPU: {reason}; or device='cpu'")
    return "numpy", f"no usable GPU ({reason})"


def _without_dask_cuda() -> str:
    """Why Dask-CUDA cannot be imported here, in a sentence; empty if it can."""
    try:
        importlib.import_module("dask_cuda")
    except Exception as error:  # of a package that it needs and that is too old, too
        said = " ".join(str(error).split())
        return f"dask-cuda cannot be imported ({said}): {install('gpu')}"
    return ""


def _sharing(workers: int | None, backend: str) -> int:
    """Workers per GPU: as few as make room for ``workers`` of them."""
    gpus = len(probe().devices) if backend == "cupy" else 0
    return max(1, -(-workers // gpus)) if gpus and is_whole(workers) else 1


def _slots(workers: int | None, backend: str, per_gpu: int, threads: int) -> int:
    for name, value in (("workers", workers), ("per_gpu", per_gpu), ("threads", threads)):
        if value is not None or name != "workers":
            whole_number(name, value, 1)
    if backend == "cupy":
        gpus = len(probe().devices)
        available = gpus * per_gpu
        if workers is not None and workers > available:
            raise ConfigError(
                f"{workers} GPU workers need {workers} places, {gpus} GPUs with "
                f"per_gpu={per_gpu} have {available}; raise per_gpu or take device='cpu'"
            )
        return workers or available
    slots = workers or max(2, CPU_COUNT)
    if slots * _IDLE_WORKER > MEMORY_LIMIT:
        raise ConfigError(
            f"{slots} workers hold {format_bytes(slots * _IDLE_WORKER)} before they do anything, "
            f"this machine has {format_bytes(MEMORY_LIMIT)}; at most "
            f"{MEMORY_LIMIT // _IDLE_WORKER} workers fit"
        )
    return slots


def _hosts(hosts: int, slots: int, backend: str) -> tuple[str, ...]:
    """The host that each slot is taken to be on; none if there is one."""
    count = whole_number("hosts", hosts, 1)
    if count > 1 and backend == "cupy":
        raise ConfigError(f"hosts={hosts} is for CPU workers: device='cpu', or leave it out")
    if slots % count or count > len(ascii_uppercase):
        raise ConfigError(
            f"hosts={hosts} is 1 to {len(ascii_uppercase)}, and {slots} workers go evenly onto "
            f"them: take workers={count * max(1, slots // count)}, or other hosts"
        )
    return tuple(ascii_uppercase[slot * count // slots] for slot in range(slots) if count > 1)


def _cap(memory_cap: int | str | None, backend: str) -> int | None:
    if memory_cap is not None and backend == "numpy" and sys.platform != "linux":
        raise ConfigError(
            f"memory_cap={memory_cap!r} needs Linux, where the kernel enforces it; this is "
            f"{sys.platform}: leave it out"
        )
    cap = None if memory_cap is None else parse_bytes(memory_cap)
    if cap is not None and cap < _LEAST_CAP:
        raise ConfigError(
            f"memory_cap={memory_cap!r} is {format_bytes(cap)}; below {format_bytes(_LEAST_CAP)} a "
            f"worker could not even hold its own messages. Cap it higher"
        )
    return cap


def _security(tls: bool) -> Any:
    if not tls:
        return None
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError:
        raise ConfigError(f"tls=True needs the package 'cryptography': {install('tls')}") from None


def _settings(threads: int, dashboard_port: int) -> dict[str, Any]:
    """Dask settings under which pinned work stays where it was put."""
    websockets = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    environ, preload = "distributed.nanny.pre-spawn-environ", "distributed.scheduler.preload"
    routes = "distributed.scheduler.http.routes"
    # for what Dask does by the clock in every process, where nobody chose others
    intervals: dict[str, Any] = {
        "distributed.worker.profile.enabled": PROFILED,
        **{name: f"{milliseconds}ms" for name, milliseconds in INTERVALS.values()},
    }
    as_shipped = dask.config.merge(*dask.config.defaults)
    return {
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.no-workers-timeout": "60s",
        "distributed.scheduler.allowed-failures": _INNOCENT,
        "distributed.comm.timeouts.connect": "10s",
        "distributed.comm.timeouts.tcp": "15s",
        preload: [*dask.config.get(preload), PAGE_MODULE],
        websockets: origins(dashboard_port),
        # workers have no pages of their own to pass on, and what would do it takes long to load
        routes: [each for each in dask.config.get(routes) if each != "distributed.http.proxy"],
        environ: {**dask.config.get(environ), **dict.fromkeys(BLAS_THREADS, str(threads))},
        **{
            name: interval
            for name, interval in intervals.items()
            if dask.config.get(name) == dask.config.get(name, config=as_shipped)
        },
    }


@contextlib.contextmanager
def _blas_threads(threads: int) -> Iterator[None]:
    """This process's own variables say ``threads``: a nanny prefers them to any setting.

    BLAS reads them when a worker's process begins, long before any code of ours runs there.
    """
    before = {name: os.environ.get(name) for name in BLAS_THREADS}
    os.environ.update(dict.fromkeys(BLAS_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _slot_options(slot: int) -> dict[str, Any]:
    """What makes a worker the worker of ``slot``, on CPUs and GPUs alike."""
    resources = {f"slot{slot}": 1, f"beside{slot}": 1}
    return {"name": slot, "nthreads": _THREADS, "resources": resources}


class _Slots:
    """Keeps the slots: a worker that is away for a while is one that its nanny restarts."""

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster would close the nanny of a worker that is away 15 s after an earlier death
        # (distributed.deploy.lost-worker-timeout), and nothing would ever refill the slot
        update: Any = BaseCluster._update_worker_status
        update(self, op, msg)


class _SlotCluster(_Slots, SpecCluster):
    pass


def _start_cpu(
    slots: int,
    seconds: float,
    memory_limit: int,
    dashboard_port: int,
    security: Any,
    born: list[SpecCluster],
    hosts: Sequence[str],
) -> SpecCluster:
    protocol = "tls://" if security else "tcp://"
    nanny = nanny_of_now()
    common = {
        "host": HOST,
        "protocol": protocol,
        "security": security,
        "memory_limit": memory_limit,
        "preload": _PRELOAD,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
        "death_timeout": max(60.0, seconds),
        "config": _config_of_now(),
    }
    make: Any = _SlotCluster  # which takes what Dask's own takes
    cluster: SpecCluster = make(
        workers={},
        scheduler={
            "cls": Scheduler,
            "options": {
                "host": HOST,
                "protocol": protocol,
                "port": 0,
                "security": security,
                "dashboard": True,
                "dashboard_address": f"{HOST}:{dashboard_port}",
            },
        },
        security=security,
        silence_logs=logging.CRITICAL,
    )
    cluster.worker_spec.update(
        {s: {"cls": nanny, "options": {**common, **_slot_options(s)}} for s in range(slots)}
    )
    environ = {**os.environ}  # a fork server has that of its start
    for slot in range(slots):
        as_host = {AS_HOST: hosts[slot] if hosts else ""}
        cluster.worker_spec[slot]["options"]["env"] = environ | as_host
    born.append(cluster)
    _start_workers(cluster, seconds)
    return cluster


def _config_of_now() -> dict[str, Any]:
    """Dask's settings, for a nanny to keep: one that replaces its worker later would otherwise
    give it what holds then."""
    return copy.deepcopy(dask.config.config)


def _start_workers(cluster: SpecCluster, seconds: float) -> None:
    """None once the nannies of ``cluster`` have started their workers; TimeoutError if that takes
    longer. Then the cluster is closed in the background, when they have: a nanny that is stopped
    half way leaves its worker behind."""

    loop: Any = cluster.loop

    async def all_of_them() -> None:
        await cluster._correct_state()

    started = asyncio.run_coroutine_threadsafe(all_of_them(), loop.asyncio_loop)

    def close(patience: float) -> None:
        with contextlib.suppress(Exception):
            started.result(patience)
        with contextlib.suppress(Exception):  # nannies that failed fail again at their end
            cluster.close(timeout=20)

    try:
        started.result(seconds)
    except TimeoutError:
        threading.Thread(target=close, args=(120.0,), daemon=True).start()
        raise
    except BaseException:
        close(0.0)
        raise


def _start_gpu(
    slots: int,
    seconds: float,
    memory_limit: int,
    dashboard_port: int,
    security: Any,
    born: list[SpecCluster],
    per_gpu: int,
    room: int,
    cap: int | None,
) -> SpecCluster:
    from dask_cuda import LocalCUDACluster
    from dask_cuda.device_host_file import DeviceHostFile

    class SlotCUDACluster(_Slots, LocalCUDACluster):  # type: ignore[misc]  # it has no types
        """LocalCUDACluster whose workers are given to it: it knows one per GPU, and no deadline."""

        def scale(self, *_args: Any, **_options: Any) -> None:
            pass

    gpus, devices = _visible_gpus(), probe().devices
    cluster = SlotCUDACluster(
        CUDA_VISIBLE_DEVICES=gpus,
        protocol=_gpu_protocol(security),
        n_workers=slots,
        threads_per_worker=_THREADS,
        memory_limit=memory_limit,
        device_memory_limit=None,
        dashboard_address=f"{HOST}:{dashboard_port}",
        host=HOST,
        security=security,
        preload=_PRELOAD,
        death_timeout=max(60.0, seconds),
        silence_logs=logging.CRITICAL,
    )
    born.append(cluster)
    common = cluster.new_spec["options"]
    config = dask.config.merge(_config_of_now(), common.get("config") or {})
    for slot in range(slots):
        gpu = slot // per_gpu
        own, shared = devices[gpu].memory, devices[gpu].integrated
        levels = {"device_memory_limit": room, "memory_limit": cluster.memory_limit}
        most = room if shared else int(0.95 * own / per_gpu) if per_gpu > 1 else None
        options = {
            **common,
            **_slot_options(slot),
            "config": config,
            # all of them, its own first: memory of another one can be mapped only where that is
            # visible (cudaIpcOpenMemHandle)
            "env": {"CUDA_VISIBLE_DEVICES": ",".join(gpus[gpu:] + gpus[:gpu])},
            # where both memories are one, Dask alone moves blocks, from memory to disk
            "data": None if shared else (DeviceHostFile, levels),
            "plugins": (*_near(gpus[gpu]), OnePool(cap, most, per_gpu)),
        }
        cluster.worker_spec[slot] = {"cls": cluster.new_spec["cls"], "options": options}
    _start_workers(cluster, seconds)
    return cluster


def _gpu_share(devices: Sequence[GpuInfo], per_gpu: int, host: int) -> tuple[int, str]:
    """(bytes of its GPU that each worker may plan with, whose they are in words).

    All workers have what the least of them has. ``host``: bytes of host memory per worker.
    """
    shares = [device_memory.share_of(d.memory, d.integrated, per_gpu, host) for d in devices]
    least = min(range(len(devices)), key=shares.__getitem__)
    words = f"a worker has {format_bytes(shares[least])} of "
    if devices[least].integrated:
        words += "the memory that its GPU shares with the host"
    elif len(set(shares)) > 1:
        words += f"its GPU, as much as GPU {least} gives ({devices[least].name}, the smallest)"
    else:
        words += "its GPU"
    return shares[least], words


def _refuse_broken(problems: Sequence[str]) -> None:
    for slot, problem in enumerate(problems):
        if problem:
            raise ConfigError(
                f"the worker of slot {slot} cannot use its GPU ({problem}), though this process "
                f"can: it may be full, or let one process use it at a time (nvidia-smi -c 0 lifts "
                f"that); or take device='cpu'"
            )


def _near(gpu: str) -> tuple[WorkerPlugin, ...]:
    """What keeps a worker on the cores beside ``gpu``; nothing where the driver doesn't say."""
    from dask_cuda.plugins import CPUAffinity
    from dask_cuda.utils import get_cpu_affinity, parse_cuda_visible_device

    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("error")  # what it warns of is that it does not know
        return (CPUAffinity(get_cpu_affinity(parse_cuda_visible_device(gpu))),)
    return ()


def _gpu_protocol(security: Any) -> str | None:
    """ "ucx" where Dask's own setting asks for it; None: TCP on this machine's loopback.

    Never by itself: UCX listens on all of a machine's networks, for whoever comes, and starts
    CUDA in this process too. Blocks that workers read of each other do without (remote_read.py).
    """
    asked = dask.config.get("distributed.comm.default-scheme")
    if not asked.startswith("ucx"):
        return None
    if security is not None or not importlib.util.find_spec("distributed_ucxx"):
        reason = "tls=True and UCX do not go together" if security else "UCX is not installed"
        raise ConfigError(
            f"Dask's setting distributed.comm.default-scheme is {asked!r}, and {reason}; "
            f"{install('ucx')}, or set it to 'tcp'"
        )
    return "ucx"


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES gives them.

    CUDA takes the names up to the first one that it does not know: as many as it found.
    """
    devices, named = probe().devices, os.environ.get("CUDA_VISIBLE_DEVICES")
    if not named:
        return [str(device.index) for device in devices]
    names = [name.strip() for name in named.split(",")][: len(devices)]
    for name in names:
        if name.startswith("GPU-") and len(name) < _UUID:
            raise ConfigError(
                f"CUDA_VISIBLE_DEVICES has the beginning of a name, {name!r}, and Dask asks the "
                f"driver for whole ones, of {_UUID} characters: see nvidia-smi -L, or use numbers"
            )
    return names


class _CapMemory(WorkerPlugin):
    """Caps a worker's memory when it starts, and again when it restarts."""

    name = "tiledask-cap-memory"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    async def setup(self, worker: Any) -> None:
        await on_worker.start_threads(worker)
        host_memory.cap_memory(self.limit)
