"""What every worker process loads before its first task (a Dask preload), and what it can report.

Interrupting a notebook sends SIGINT to the whole process group: the kernel shall stop,
its workers shall not.
"""

import asyncio
import ctypes
import gc
import os
import resource
import signal
import sys
import threading

import numpy as np
import psutil
from distributed.utils import offload

from tiledask.tile import matmul
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
    "warm_up",
]


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What BLAS libraries read to learn how many threads they may use."""

RESERVE = 8 * 2**20
"""Bytes that a capped worker sets aside for its own messages: its event loop must not be
refused memory because a task took the last of it."""

LARGE = 2 * 2**20
"""Bytes from which an allocation of a capped worker is a mapping of its own: tensors are,
messages and Python's objects are not."""


def dask_setup(worker) -> None:
    """Called by Dask in the new worker process."""
    from tiledask.dist import lending

    worker.handlers["tiledask_read"] = lending.serve
    lending.let_siblings_read()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()


def warm_up() -> None:
    """None, with everything loaded that a product needs: libraries and BLAS's buffers are the
    worker's own memory, and not what a product is seen to take."""
    import tiledask.dist.matmul
    import tiledask.dist.pipeline
    import tiledask.dist.stages  # noqa: F401

    np.random.default_rng(0).standard_normal((256, 256), np.float32).astype(np.float16).sum()
    for dtype in (np.float32, np.float64, np.float16):
        a = np.ones((256, 256), dtype)
        matmul(a, a, out=np.zeros((256, 256), np.result_type(dtype, np.float32)), accumulate=True)
        a @ a


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

    From now on an allocation that takes the process more than ``limit`` bytes above that raises
    MemoryError: the kernel refuses it (RLIMIT_DATA), nothing is killed.
    What any work needs was loaded when the worker started, BLAS's buffers too: that is the
    device's runtime and not the model's. To be called in the thread of the event loop.
    Linux only.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # what is free now would be room that nobody counted
    _set_aside(libc, RESERVE)
    held = _status("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (held + limit, resource.RLIM_INFINITY))
    return held


def _set_aside(libc: ctypes.CDLL, nbytes: int) -> None:
    """Leave this many free bytes on the heap of the main thread, where the event loop runs.

    They lie in pieces a little under LARGE, so that no tensor fits, not even when malloc tries
    this heap for a thread whose own is full; and what is LARGE never comes from a heap first.
    See mallopt(3).
    """
    mmap_threshold, piece, fence = -3, LARGE - 2**12, 64
    libc.mallopt(mmap_threshold, LARGE)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.realloc.restype, libc.realloc.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t],
    )
    for address in [libc.malloc(piece) for _ in range(-(-nbytes // piece))]:
        libc.realloc(address, fence)  # shrinks in place: what is kept parts two free pieces


def machine() -> dict:
    """Process id and thread limits of this worker, for reports."""
    return {"pid": os.getpid(), **{name: os.environ.get(name) for name in BLAS_THREADS}}
