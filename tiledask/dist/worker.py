"""What every worker process loads before its first task (a Dask preload), and what it can report.

Interrupting a notebook sends SIGINT to the whole process group: the kernel shall stop,
its workers shall not.
"""

import asyncio
import os
import resource
import signal
import sys
import threading

import numpy as np
import psutil
from distributed.utils import offload

from tiledask.tile.backend import namespace

__all__ = [
    "BLAS_THREADS",
    "RESERVE",
    "cap_memory",
    "dask_setup",
    "machine",
    "peak_bytes",
    "reset_peak",
    "start_threads",
]


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What BLAS libraries read to learn how many threads they may use."""

RESERVE = 4 * 2**20
"""Bytes beyond a cap for the worker's own messages: its event loop must not be refused memory
because a task took the last of it."""


def dask_setup(worker) -> None:
    """Called by Dask in the new worker process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _status(field: str) -> int:
    """Bytes of one field of /proc/self/status (Linux)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def reset_peak(backend: str) -> int:
    """Bytes held now; ``peak_bytes`` counts from here on.

    "numpy": of the process. "cupy": of the device's memory pool, which keeps what it once held.
    """
    if backend == "cupy":
        pool = namespace("cupy").get_default_memory_pool()
        pool.free_all_blocks()
        return pool.total_bytes()
    if sys.platform != "linux":
        return psutil.Process().memory_info().rss
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # proc(5): reset the peak resident set size
    return _status("VmRSS")


def peak_bytes(backend: str) -> int:
    """The most bytes held since ``reset_peak`` (on other systems than Linux: since the start)."""
    if backend == "cupy":
        return namespace("cupy").get_default_memory_pool().total_bytes()
    if sys.platform != "linux":
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    return _status("VmHWM")


async def start_threads(worker) -> None:
    """None, once the threads that the worker is known to use are alive: stacks are memory too.

    Any other that comes later gets a stack of 1 MiB instead of the system's 8.
    """
    threading.stack_size(2**20)
    loop = asyncio.get_running_loop()
    # asyncio's own pool looks up the addresses of peers
    for pool, count in ((worker.executors["default"], worker.state.nthreads), (None, 4)):
        together = threading.Barrier(count)
        await asyncio.gather(*(loop.run_in_executor(pool, together.wait) for _ in range(count)))
    await offload(int)


def cap_memory(limit: int) -> int:
    """Bytes this process held when the cap was set.

    From now on an allocation that takes the process more than ``limit`` + RESERVE bytes above
    that raises MemoryError: the kernel refuses it (RLIMIT_DATA), nothing is killed.
    What any work needs is loaded first, BLAS's buffers too: that is the device's runtime and
    not the model's. Linux only.
    """
    import tiledask.dist.matmul
    import tiledask.dist.pipeline
    import tiledask.dist.stages  # noqa: F401

    a = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    (a @ a).astype(np.float16).sum()
    held = _status("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (held + RESERVE + limit, resource.RLIM_INFINITY))
    return held


def machine() -> dict:
    """Process id and thread limits of this worker, for reports."""
    return {"pid": os.getpid(), **{name: os.environ.get(name) for name in BLAS_THREADS}}
