"""The memory of a worker's GPU: one pool that everything comes from, what it holds, and its cap.

    an array, a kernel's workspace, a message --> allocate ----> CuPy's memory pool ----> cudaMalloc
                                                  counts, and refuses beyond the cap

What CUDA's libraries take for themselves (the context, cuBLAS's workspaces) is the device's
runtime and not the model's: no pool sees it.
"""

import threading
from collections.abc import Callable
from typing import Any

from distributed import WorkerPlugin

from tiledask.plan.units import format_bytes
from tiledask.tile.backend import namespace
from tiledask.tile.memory import Refused

__all__ = ["OnePool", "allocate", "cap", "held", "peak_bytes", "problem", "reachable", "reset_peak"]

UNIT = 512
"""Bytes that CuPy's pool rounds sizes up to a multiple of."""

_lock = threading.RLock()
_pool: Any = None
"""CuPy's memory pool, once it is the one of this worker."""
_problem = ""
_peak = 0
"""The most bytes held since ``reset_peak``."""


class OnePool(WorkerPlugin):
    """Makes a worker take all memory of its GPU from one pool, before its first task.

    A nanny that replaces the worker does so again.
    """

    name = "tiledask-one-pool"

    def __init__(self, cap: int | None = None, most: int | None = None, sharers: int = 1) -> None:
        self.cap = cap
        """Bytes of arrays beyond which allocations raise MemoryError; None for the device's."""
        self.most = most
        """Bytes that the pool may keep from others, what it holds for later included."""
        self.sharers = sharers
        """Workers of this GPU."""

    def setup(self, worker: Any = None) -> None:
        # an error here would reach nobody: Dask says only that the worker failed to start
        global _pool, _rules, _problem
        self.before: list[tuple[Callable[[Any], None], Any]] = []
        try:
            cupy = namespace("cupy")
            _pool, _rules = cupy.get_default_memory_pool(), self
            self.before.append((_pool.set_limit, _pool.get_limit()))
            if self.most is not None:  # CUPY_GPU_MEMORY_LIMIT may say another
                _pool.set_limit(size=self.most)
            self.before.append((cupy.cuda.set_allocator, cupy.cuda.get_allocator()))
            cupy.cuda.set_allocator(allocate)
            allocate(UNIT)
        except Exception as error:
            _problem = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def teardown(self, worker: Any = None) -> None:
        """Have CuPy take memory as it did before; what is free goes to the driver."""
        global _pool, _problem
        while self.before:
            restore, was = self.before.pop()
            restore(was)
        if _pool is not None:
            _pool.free_all_blocks()
        _pool, _problem = None, ""


_rules = OnePool()
"""Those of this worker, once it has its pool."""


def problem() -> str:
    """Why this worker cannot use its GPU, in a sentence; empty if it can."""
    return _problem


def allocate(nbytes: int) -> Any:
    """CuPy's pointer to new memory of the pool; raises Refused, a MemoryError, beyond the cap."""
    global _peak
    with _lock:  # or two threads would share what is left
        before, cap, why = _pool.used_bytes(), _rules.cap, ""
        beyond = before + -(-nbytes // UNIT) * UNIT - (cap or 0)
        if cap is not None and beyond > 0:
            why = (
                f"{format_bytes(beyond)} more than memory_cap={format_bytes(cap)}; ask "
                f"start_cluster for a higher one, or use more workers"
            )
        else:
            try:
                pointer = _pool.malloc(nbytes)
            except MemoryError as error:
                free, total = map(format_bytes, namespace("cupy").cuda.runtime.memGetInfo())
                why = (
                    f"which the GPU refused: {free} of its {total} are free; close what else runs "
                    f"there, or use more GPUs ({error})"
                )
        if why:
            refused = Refused(
                f"{format_bytes(nbytes)} of the GPU beside {format_bytes(before)} that this worker "
                f"holds make {format_bytes(before + nbytes)}, {why}"
            )
            refused.needed = before + nbytes
            raise refused
        _peak = max(_peak, _pool.used_bytes())
    return pointer


def cap() -> int | None:
    """Bytes of arrays beyond which allocations raise MemoryError; None without a cap."""
    return _rules.cap


def held() -> int:
    """Bytes of this worker's arrays and messages on its GPU."""
    used: int = _pool.used_bytes()
    return used


def reset_peak() -> int:
    """Bytes held now; ``peak_bytes`` counts from here on."""
    global _peak
    with _lock:
        _peak = held()
        return _peak


def peak_bytes() -> int:
    """The most bytes that were held at once since ``reset_peak``, whatever the streams."""
    return _peak


def reachable() -> int:
    """Bytes that the pool could hold now: what it has, and its share of what the GPU has free."""
    free, _ = namespace("cupy").cuda.runtime.memGetInfo()
    bytes_: int = _pool.total_bytes() + free // _rules.sharers
    return bytes_
