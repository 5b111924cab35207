"""What every worker process loads before its first task (a Dask preload), and what it can report.

Interrupting a notebook sends SIGINT to the whole process group: the kernel shall stop,
its workers shall not.
"""

import asyncio
import os
import signal
import threading

import numpy as np
from distributed.utils import offload

from tiledask.dist import host_memory
from tiledask.tile import matmul

__all__ = [
    "BLAS_THREADS",
    "dask_setup",
    "machine",
    "start_threads",
    "warm_up",
]


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What BLAS libraries read to learn how many threads they may use."""


def dask_setup(worker) -> None:
    """Called by Dask in the new worker process."""
    from tiledask.dist import lending

    worker.handlers["tiledask_read"] = lending.serve
    lending.let_siblings_read()
    host_memory.keep(worker)
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
        matmul(a, a, out=np.zeros((256, 256), np.result_type(dtype, np.float32)), beta=1.0)
        a @ a


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


def machine() -> dict:
    """Process id and thread limits of this worker, for reports."""
    return {"pid": os.getpid(), **{name: os.environ.get(name) for name in BLAS_THREADS}}
