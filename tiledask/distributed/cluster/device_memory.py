"""The memory of a worker's GPU: one pool that everything comes from, what it holds, and its cap.

    an array, a kernel's workspace, a message --> allocate ----> CuPy's memory pool ----> cudaMalloc
                                                  counts, and refuses beyond the cap

What CUDA's libraries take for themselves (the context, cuBLAS's workspaces) is the device's
runtime and not the model's: no pool sees it.
"""

import threading
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import namespace
from tiledask.tile.memory import Refused

__all__ = ["allocate", "held", "peak_bytes", "reachable", "reset_peak", "take"]

UNIT = 512
"""Bytes that CuPy's pool rounds sizes up to a multiple of."""

_lock = threading.RLock()
_pool: Any = None
"""CuPy's memory pool, once it is the one of this worker."""
_cap: int | None = None
_sharers = 1
"""Workers of this GPU."""
_peak = 0
"""The most bytes held since ``reset_peak``."""


def take(cap: int | None, most: int | None, sharers: int) -> None:
    """Have this worker take all memory of its GPU from one pool, before its first task.

    ``cap``: bytes of arrays beyond which allocations raise MemoryError. ``most``: bytes that the
    pool may keep from other workers, ``sharers`` in all, what it holds for later included.
    """
    global _pool, _cap, _sharers
    _cap, _sharers = cap, sharers
    cupy = namespace("cupy")
    _pool = cupy.get_default_memory_pool()
    if most is not None:  # CUPY_GPU_MEMORY_LIMIT may say another
        _pool.set_limit(size=most)
    cupy.cuda.set_allocator(allocate)
    allocate(UNIT)


def allocate(nbytes: int) -> Any:
    """CuPy's pointer to new memory of the pool; raises Refused, a MemoryError, beyond the cap."""
    global _peak
    with _lock:  # or two threads would share what is left
        before = held()
        beyond = before + -(-nbytes // UNIT) * UNIT - (_cap or 0)
        try:
            if _cap is None or beyond <= 0:
                pointer = _pool.malloc(nbytes)
                _peak = max(_peak, held())
                return pointer
            why = f"{format_bytes(beyond)} more than memory_cap={format_bytes(_cap)}"
        except MemoryError as error:
            why = f"which the GPU refused ({error})"
    refused = Refused(
        f"{format_bytes(nbytes)} of the GPU beside {format_bytes(before)} that this worker holds "
        f"make {format_bytes(before + nbytes)}, {why}; use more workers, or GPUs"
    )
    refused.needed = before + nbytes
    raise refused


def held() -> int:
    """Bytes of this worker's arrays and messages on its GPU."""
    if _pool is None:
        raise ConfigError("another client has these workers for their CPUs: close that first")
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
    bytes_: int = _pool.total_bytes() + free // _sharers
    return bytes_
