"""What every worker process loads before its first task (a Dask preload), and what it can report.

Interrupting a notebook sends SIGINT to the whole process group: the kernel shall stop,
its workers shall not.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
from distributed import WorkerPlugin
from distributed.comm.addressing import get_address_host
from distributed.metrics import time
from distributed.utils import offload
from distributed.worker_state_machine import TaskErredMsg
from threadpoolctl import threadpool_limits

from tiledask.distributed.cluster import clocks, device_arrays, host_memory
from tiledask.tile import matmul

__all__ = [
    "BLAS_THREADS",
    "INTERVALS",
    "PROFILED",
    "TRANSFERS",
    "FailWaiting",
    "dask_setup",
    "equip",
    "machine",
    "start_threads",
    "strip",
    "warm_up",
]


BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What BLAS libraries read to learn how many threads they may use."""
INTERVALS = {
    "profile": ("distributed.worker.profile.interval", 100),
    "memory_monitor": ("distributed.worker.memory.monitor-interval", 500),
    "tick": ("distributed.admin.tick.interval", 200),
    "monitor": ("distributed.admin.system-monitor.interval", 2000),
}
"""By Dask's name of what a worker does by the clock: its setting, and the milliseconds between two.

On a worker with one core each look takes time from the product: at Dask's own intervals a product
of 0.5 TFLOP lost 8 % to them on two cores. The dashboard shows the same, a little more coarsely."""
PROFILED = sys.version_info >= (3, 12)
"""Whether workers are profiled. Reading another thread's frames, as that does, may crash Python
3.11 (python/cpython#99110; seen as a worker killed by signal 11)."""
TRANSFERS = 100_000
"""Transfers that a worker remembers: they are counted."""


def dask_setup(worker: Any) -> None:
    """Called by Dask in the new worker process."""
    equip(worker)
    if get_address_host(worker.scheduler.address).startswith("127."):
        clocks.draw_by_this_clock()  # it is the scheduler's
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(int(os.environ.get(BLAS_THREADS[0], 1)))  # a fork has its server's
    np.random.seed()
    warm_up()


def equip(worker: Any) -> None:
    """None, with what products, runs and trainings need in place on ``worker``."""
    from tiledask.distributed.transport import process_memory, remote_read

    device_arrays.register(on_host=False)
    worker.plugins[FailWaiting.name] = FailWaiting(worker)
    worker._deque_handler.addFilter(_without_frames)
    worker.handlers["tiledask_read"] = remote_read.serve
    process_memory.let_siblings_read()
    host_memory.keep(worker)
    log = worker.transfer_incoming_log
    worker.transfer_incoming_log = deque(log, max(TRANSFERS, log.maxlen or 0))


def strip(worker: Any) -> None:
    """None; what `equip` put there is gone, on a worker that goes on without."""
    from tiledask.distributed.transport import remote_read

    remote_read.end_all()
    worker.plugins.pop(FailWaiting.name, None)
    worker._deque_handler.removeFilter(_without_frames)
    for name in [name for name in worker.handlers if name.startswith("tiledask_")]:
        del worker.handlers[name]
    host_memory.keep_nothing(worker)
    clocks.draw_by_dasks_clock()


def _without_frames(record: logging.LogRecord) -> bool:
    """True; the error of ``record`` is words now. Dask keeps what was logged, the frames of each
    error with it, and the blocks in those: of one that could not be sent, for good."""
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    return True


class FailWaiting(WorkerPlugin):
    """Fails the tasks that wait for a message which this worker could not take in.

    With its own error: most often there was no memory for it. Dask tells nobody, and they would
    wait until somebody's deadline (dask/distributed#6705); whoever sent it would wait for the
    answer, too, and keep what it sent.
    """

    name = "tiledask-fail-waiting"

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **_kwargs: Any) -> None:
        if (start, finish) != ("flight", "error"):
            return
        lost = self.worker.state.tasks[key]
        for waiting in lost.waiters:
            failed = TaskErredMsg.from_task(lost, waiting.run_id, f"not-received-{time()}")
            self.worker.batched_send({**failed.to_dict(), "key": waiting.key})
        self.worker.rpc.collect()  # the connection that it came by is idle, as Dask sees it


def warm_up() -> None:
    """None, with everything loaded that a product needs: libraries and BLAS's buffers are the
    worker's own memory, and not what a product is seen to take."""

    np.random.default_rng(0).standard_normal((256, 256), np.float32).astype(np.float16).sum()
    for dtype in (np.float32, np.float64, np.float16):
        a = np.ones((256, 256), dtype)
        matmul(a, a, out=np.zeros((256, 256), np.result_type(dtype, np.float32)), beta=1.0)
        if dtype is not np.float16:  # there is no BLAS of these, and it takes 50 ms
            a @ a


async def start_threads(worker: Any) -> None:
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


def machine() -> dict[str, int | str | None]:
    """Process id and thread limits of this worker, for reports."""
    return {"pid": os.getpid(), **{name: os.environ.get(name) for name in BLAS_THREADS}}
