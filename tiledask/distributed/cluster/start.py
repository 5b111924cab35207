"""Start a cluster on this machine: GPU workers if a GPU is usable, otherwise CPU workers.

slot        0         1         2         3        one worker process per slot,
resource  slot0     slot1     slot2     slot3      everything on 127.0.0.1
device    GPU 0     GPU 0     GPU 1     GPU 1      (per_gpu=2), or one BLAS thread each

CPU workers are forked from Python's fork server, which has loaded what each of them needs. A fork
has the environment and the BLAS threads of its server, which a worker sets anew (slots.py). GPU
workers are spawned: CUDA does not survive a fork.
"""

import asyncio
import copy
import logging
import multiprocessing
import os
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import process
from string import ascii_uppercase
from typing import Any

import dask
import distributed.utils
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, Nanny, SpecCluster, Status
from distributed.deploy.cluster import Cluster as BaseCluster
from distributed.system import MEMORY_LIMIT

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.gpus import choose_device, gpu_options
from tiledask.distributed.cluster.slots import BLAS_THREADS, Equip
from tiledask.distributed.cluster.tasks import asked
from tiledask.distributed.connecting.connect import attach
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import ClusterLostError
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.backend import probe
from tiledask.tile.progress import in_notebook, show

__all__ = ["start_cluster"]

_HOST = "127.0.0.1"
_LOADED = [
    "distributed.nanny",
    "distributed.http.worker.prometheus.core",
    "scipy.linalg.cython_blas",
    "tiledask.distributed.cluster.slots",
    "tiledask.distributed.products.matmul",
    "tiledask.distributed.training.run",
]
"""What every worker loads, by itself or with its first product or training, if it is installed."""
_ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
"""Pages that may open the dashboard's websocket: itself, and JupyterLab on this machine."""
_SETTINGS = {
    # pinned work stays where it was put
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    # deaths of workers while a task ran, before it is to blame: somebody may kill many
    "distributed.scheduler.allowed-failures": 6,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "15s",
    # what a worker does by the clock takes time from the product on its core: at Dask's own
    # intervals one of 0.5 TFLOP lost 8 % on two cores
    "distributed.worker.profile.interval": "100ms",
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "2000ms",
    # reading another thread's frames may crash Python 3.11 (python/cpython#99110; seen as a worker
    # killed by signal 11)
    "distributed.worker.profile.enabled": sys.version_info >= (3, 12),
}


def start_cluster(
    workers: int | None = None,
    *,
    device: str = "auto",
    per_gpu: int | None = None,
    threads: int = 1,
    hosts: int = 1,
    memory_limit: int | str | None = None,
    memory_cap: int | str | None = None,
    tls: bool = False,
    timeout: float = 60.0,
    quiet: bool = False,
) -> Cluster:
    """A Cluster of one worker per slot, ready to work; use it in a ``with`` block.

    One message says what was started and why.

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
        CPU workers as if on so many hosts, neighbours on one, to see on one machine what is
        otherwise seen on several. Those of different hosts do not read each other's memory: blocks
        and messages go between them by Dask, and are counted apart (``traffic.between_hosts``).
        They still share cores, memory and disk.
    memory_limit
        Bytes of host memory per worker at which Dask's nanny restarts it. Default: an even share.
    memory_cap
        Bytes that a worker's own allocations may take, at least 8 MB: beyond, they raise
        MemoryError, as on a device of that size. Enforced by the kernel, after the worker
        has set 8 MiB aside for Dask's messages, and on a GPU, messages included, by its pool.
    tls
        Encrypt and authenticate connections with certificates made for this cluster; not the
        dashboard, which listens on this machine alone.
    quiet
        Show and print nothing.

    The environment variable TILEDASK_DASHBOARD_PORT names the dashboard's port, any free one if
    another process has it; "none" saves two seconds of a core at the start. Pages of other servers
    than JupyterLab on this machine may show it if TILEDASK_DASHBOARD_ORIGINS names them ("host:port
    host:port"). Raises ConfigError for impossible requests, DeadlineError if the workers are not
    all there after ``timeout`` seconds.
    """
    # what multiprocessing itself looks at before it refuses to start a process of its own
    if getattr(process.current_process(), "_inheriting", False):
        raise ClusterLostError(
            "start_cluster() was called while a worker process was importing your script; "
            "put the call under  if __name__ == '__main__':"
        )
    (backend, why), seconds = choose_device(device), seconds_of(timeout)
    gpus = len(probe().devices) if backend == "cupy" else 0
    if per_gpu is None:
        per_gpu = max(1, -(-workers // gpus)) if gpus and is_whole(workers) else 1
    slots = _slots(workers, gpus, per_gpu, threads)
    host = MEMORY_LIMIT // slots if memory_limit is None else parse_bytes(memory_limit)
    port = _port()
    whole_number("hosts", hosts, 1, 1 if gpus else min(slots, len(ascii_uppercase)))
    on_hosts = tuple(ascii_uppercase[slot * hosts // slots] for slot in range(slots) if hosts > 1)
    cap = None
    if memory_cap is not None:
        cap = whole_number("memory_cap", parse_bytes(memory_cap), 8_000_000)
    equip = Equip(threads, cap, on_hosts)
    options: dict[str, Any] = {
        "n_workers": 0,
        "host": _HOST,
        "threads_per_worker": 1,
        "memory_limit": host,
        "dashboard_address": f"{_HOST}:{port or 0}",
        "scheduler_kwargs": {"dashboard": port is not None},
        "security": tls or None,
        "silence_logs": logging.CRITICAL,
        "death_timeout": max(60.0, seconds),
        # a nanny that replaces its worker later would give it the settings and variables of then,
        # and a fork server has those of its start
        "env": {**os.environ, **dict.fromkeys(BLAS_THREADS, str(threads))},
    }
    # Bokeh takes no wildcard for a port alone, and Dask's default takes every page of the web
    origins = [f"{h}:{p}" for p in (port, *range(8888, 8900)) for h in (_HOST, "localhost")]
    origins += os.environ.get("TILEDASK_DASHBOARD_ORIGINS", "").split()
    with dask.config.set({**_SETTINGS, _ORIGINS: origins}):
        options["config"] = copy.deepcopy(dask.config.config)
        owned: Any = LocalCluster(worker_class=Nanny if gpus else _ForkingNanny, **options)
        client = Client(owned)
        for slot in range(slots):
            own = gpu_options(slot, per_gpu, options["env"], host) if gpus else {}
            given = {**owned.new_spec["options"], **own}
            owned.worker_spec[slot] = {**owned.new_spec, "options": given}
        # SpecCluster's own would close the nanny of a worker that is away 15 s after an earlier
        # death (distributed.deploy.lost-worker-timeout), and nothing would ever refill the slot
        owned._update_worker_status = partial(BaseCluster._update_worker_status, owned)
        try:
            # they go on if they are late: a nanny that is stopped half way leaves its worker behind
            start = lambda: asyncio.shield(owned._correct_state())  # noqa: E731
            asked(client, start, seconds, lambda: f"the start of {slots} workers")
            its = client, owned, partial(_end, client, owned), equip, "cuda" if gpus else "cpu"
            options = {"page": port is not None, "per_gpu": per_gpu, "started_here": True}
            cluster = attach(*its, why, slots, seconds, **options)
        except BaseException:  # they end by themselves: the call keeps its deadline
            threading.Thread(target=_end, args=(client, owned, 120.0), daemon=True).start()
            raise
    if not quiet and in_notebook():
        show(cluster)
    elif not quiet:
        print(f"{slots} {cluster.kind} workers, {threads} BLAS thread each: {cluster.why}")
        print(f"dashboard: {'none' if port is None else cluster.client.dashboard_link}")
    return cluster


def _end(client: Client, owned: SpecCluster, seconds: float) -> None:
    """Stop the workers, within so many seconds; safe to call twice."""
    with suppress(Exception):
        client.close(timeout=5)
    try:
        owned.close(timeout=seconds)
    except Exception:  # whatever kept it from ending in order: no worker outlives its cluster
        for nanny in owned.workers.values():
            nanny.auto_restart = False
            with suppress(Exception):
                nanny.process.process._process.kill()


class _ForkingNanny(Nanny):
    """A nanny whose workers are forked, each one that replaces another too."""

    async def instantiate(self) -> Status:
        """Start a worker's process; returns when it is there."""
        multiprocessing.set_forkserver_preload(_LOADED)
        distributed.utils._forkserver_preload_set = True  # or Dask has it load what is installed
        with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
            return await super().instantiate()


# -- what is asked for ---------------------------------------------------------------------------


def _slots(workers: int | None, gpus: int, per_gpu: int, threads: int) -> int:
    """How many workers there are to be, of which ``gpus`` take ``per_gpu`` each, if any."""
    whole_number("per_gpu", per_gpu, 1)
    whole_number("threads", threads, 1)
    if workers is None:
        return gpus * per_gpu or max(2, CPU_COUNT)
    most = gpus * per_gpu or MEMORY_LIMIT // 150_000_000  # bytes of an idle one, rounded up
    return whole_number("workers", workers, 1, most, way_out="take fewer, or on GPUs raise per_gpu")


def _port() -> int | None:
    """A free port for the dashboard: that of the environment if it is free, else any; None for no
    dashboard ("none")."""
    text = os.environ.get("TILEDASK_DASHBOARD_PORT", "0")
    if text == "none":
        return None
    for wanted in (int(text), 0):
        with suppress(OSError), socket.create_server((_HOST, wanted)) as free:
            return int(free.getsockname()[1])
    return 0
