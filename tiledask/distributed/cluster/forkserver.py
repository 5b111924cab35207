"""Workers that start fast: Python's fork server has loaded what each of them needs.

    client ---- starts ----> fork server            loads Dask, NumPy and tiledask, once
      |                        |
      '-- what to run ---------'-- forks --> worker     has them already

A fork has the environment and the BLAS threads of its server, which a worker sets anew
(worker.py). GPU workers never come from here: CUDA does not survive a fork.
"""

import multiprocessing
import os
import sys
from contextvars import ContextVar
from multiprocessing import process
from typing import Any

import dask
import distributed.nanny
import distributed.process
from distributed import Nanny, Status
from distributed.utils import get_mp_context

from tiledask.errors import ClusterLostError, ConfigError

__all__ = ["ForkingNanny", "nanny_of_now", "refuse_here"]

_LOADED = [
    "distributed.nanny",
    "distributed.http.worker.prometheus.core",
    "scipy.linalg.cython_blas",
    "tiledask.distributed.cluster.worker",
    "tiledask.distributed.products.matmul",
    "tiledask.distributed.training.run",
]
"""What every worker loads, by itself or with its first product or training, if it is installed."""


def refuse_here() -> None:
    """Raise where this process cannot start a worker's, and say why."""
    # what multiprocessing itself looks at before it refuses to start a process of its own
    if getattr(process.current_process(), "_inheriting", False):
        raise ClusterLostError(
            "start_cluster() was called while a worker process was importing your script; "
            "put the call under  if __name__ == '__main__':"
        )
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "workers begin in this process's working directory, which was removed: go to one that "
            "exists with os.chdir(), then start the cluster"
        ) from None


def nanny_of_now() -> type[Nanny]:
    """The nanny of workers that are started with Dask's settings of now."""
    asked = dask.config.get("distributed.worker.multiprocessing-method")
    if sys.platform != "linux" or asked != "spawn":  # as shipped
        return Nanny
    multiprocessing.set_forkserver_preload(_LOADED)
    return ForkingNanny


class ForkingNanny(Nanny):
    """A nanny whose workers are forked, each one that replaces another too."""

    async def instantiate(self) -> Status:
        """Start a worker's process; returns when it is there."""
        # Dask asks for the context where it needs it, and takes none as an argument
        for module in (distributed.nanny, distributed.process):
            vars(module)["get_mp_context"] = _context_of_now
        before = _forking.set(True)
        try:
            return await super().instantiate()
        finally:
            _forking.reset(before)


_forking: ContextVar[bool] = ContextVar("tiledask-forking", default=False)


def _context_of_now() -> Any:
    return multiprocessing.get_context("forkserver") if _forking.get() else get_mp_context()
