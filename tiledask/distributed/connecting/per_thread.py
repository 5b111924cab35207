"""A slot for each thread of a worker: one process is one slot, so processes are started beside it.

    dask worker --nthreads 4          slot 0   the worker itself
      |-- python -m ...per_thread     slot 1   a Dask worker of one thread, of the same scheduler,
      |-- python -m ...per_thread     slot 2   on the same host, in the same environment
      '-- python -m ...per_thread     slot 3

Threads of one process would share a lock, and what they give each other would be counted nowhere.
Such a process ends with its worker: it waits for the end of its standard input. One that is killed
is started again, one that Dask had end is not.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Worker
from distributed.comm.addressing import get_address_host
from distributed.protocol.pickle import dumps, loads

from tiledask.distributed.cluster.worker import BLAS_THREADS

__all__ = ["PREFIX", "end_processes", "is_per_thread", "start_processes"]

PREFIX = "tiledask-thread-"
"""Of the names of such workers."""
_AGAIN = 1.0
"""Seconds until a process that died is started again."""
_PATIENCE = 5.0
"""Seconds that one has to end."""
_LENGTH = 8
_keepers: dict[str, list[asyncio.Task[None]]] = {}
"""Address of a worker in this process -> what keeps the processes beside it alive."""


def is_per_thread(name: Any) -> bool:
    """Whether a worker of this name was started beside another."""
    return str(name).startswith(PREFIX)


def start_processes(worker: Any) -> int:
    """Processes that now run with ``worker``, itself among them: as many as it has threads."""
    threads = int(worker.state.nthreads)
    if worker.address not in _keepers and not is_per_thread(worker.name):
        _keepers[worker.address] = [
            asyncio.create_task(_keep(worker, f"{PREFIX}{worker.id}-{i}", threads))
            for i in range(1, threads)
        ]
    return threads


async def end_processes(worker: Any) -> None:
    """None, once the processes beside ``worker`` have ended."""
    keepers = _keepers.pop(worker.address, [])
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)


async def _keep(worker: Any, name: str, threads: int) -> None:
    """A process beside ``worker``, and another when it dies, until this is cancelled."""
    limit = worker.memory_manager.memory_limit
    options = {
        "scheduler_ip": worker.scheduler.address,
        "nthreads": 1,
        "name": name,
        "host": get_address_host(worker.address),
        "security": worker.security,
        "memory_limit": limit // threads if limit else 0,
        "local_directory": str(Path(worker.local_directory).parent),
        "dashboard": False,
    }
    told = dumps((dask.config.config, options))
    one_each = dict.fromkeys(BLAS_THREADS, "1")
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | one_each | {"PYTHONPATH": path}
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # no interrupt of a terminal reaches it
        )
        try:
            assert process.stdin is not None
            with suppress(ConnectionError):  # it died at once
                process.stdin.write(len(told).to_bytes(_LENGTH, "little") + told)
                await process.stdin.drain()
            await process.wait()
        finally:
            await _ended(process)
        if process.returncode == 0:
            return
        await asyncio.sleep(_AGAIN)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _work() -> None:
    """A worker, until the one beside it ends or has it end."""
    size = int.from_bytes(sys.stdin.buffer.read(_LENGTH), "little")
    config, options = loads(sys.stdin.buffer.read(size))
    dask.config.set(config)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    async with Worker(**options) as worker:
        finished = asyncio.ensure_future(worker.finished())
        await asyncio.wait([over, finished], return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
    os._exit(0)  # the thread that reads would be waited for


if __name__ == "__main__":
    asyncio.run(_work())
