"""The memory of a worker's process: what it holds, its cap, and what it keeps for the next block.

The first touch of new memory is slow: the kernel clears it, and on a virtual machine the host
finds it first. So the memory of a block that nobody uses any more is kept a while:

    empty(shape) -> block -> no view of it is left -> kept KEEP_SECONDS -> the system's again
                      ^                                 |
                      '------- a block of its size -----'

CuPy's memory pool does this on a GPU (device_memory.py). What is kept is not held: the peaks leave
it out. Where Dask would step in, new memory takes the place of what is kept.
"""

import contextlib
import ctypes
import gc
import mmap
import resource
import threading
from collections import deque
from math import prod
from time import monotonic
from typing import Any

import numpy as np
from tornado.ioloop import PeriodicCallback

__all__ = ["KEEP_SECONDS", "LARGE", "RESERVE", "cap_memory", "capped", "empty", "held", "keep"]
__all__ += ["peak_bytes", "reset_peak"]

KEEP_SECONDS = 10.0
"""How long memory waits for a block."""
KEEP_SHARE = 1 / 8
"""The most of a worker's memory that is kept, as a share of its limit."""
SMALLEST = 2**20
"""Bytes of the smallest block whose memory is kept."""
RESERVE = 8 * 2**20
"""Bytes that a capped worker sets aside for its own messages: its event loop must not be
refused memory because a task took the last of it."""
LARGE = 2 * 2**20
"""Bytes from which an allocation of a capped worker is a mapping of its own: tensors are,
messages and Python's objects are not."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LIBC = ctypes.CDLL(None)

_room = 0
"""Bytes that may be kept in this process; 0 until it is a worker."""
_most = float("inf")
"""Bytes of this process from which Dask moves blocks to disk or pauses it."""
_lock = threading.RLock()
_returned: deque[np.ndarray] = deque()
"""Memory whose block is gone; whichever thread saw it go only says so here."""
_kept: list[tuple[np.ndarray, float]] = []
"""(memory to use again, since when), oldest first."""
_cap: tuple[int, int] | None = None
"""(limit, bytes of the process when it was set) of the cap; None without one."""
_peak: int | None = None
"""The most bytes held since ``reset_peak``, as far as it was looked at; None before the first."""


class _Lease:
    """What a block's array rests on: goes when the last view of the block does."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.__array_interface__ = memory, memory.__array_interface__

    def __del__(self, give_back: Any = _returned.append) -> None:
        give_back(self.memory)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new NumPy array in C order, its contents arbitrary, on kept memory if there is some."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < SMALLEST or not _room:
        return np.empty(shape, dtype)
    with _lock:
        _settle()
        fitting = [at for at, (memory, _) in enumerate(_kept) if memory.nbytes == nbytes]
        if fitting:
            memory, _ = _kept.pop(fitting[-1])
        else:
            if _kept and _status("VmRSS") + nbytes > _most:
                _settle(float("inf"))
            # not malloc's: when it goes it goes to the system, and is seen to go
            mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
            memory = np.frombuffer(mapping, np.uint8)
    return np.asarray(_Lease(memory)).view(dtype).reshape(shape)


def keep(worker: Any) -> None:
    """Keep the memory of this worker's blocks for others from now on."""
    global _room, _most
    manager = worker.memory_manager
    if not manager.memory_limit or _room:
        return
    _room = int(manager.memory_limit * KEEP_SHARE)
    shares = manager.memory_spill_fraction or 1.0, manager.memory_pause_fraction or 1.0
    _most = min(shares) * manager.memory_limit
    # small arrays come to lie where others have gone. Dask has malloc give back at once what is
    # free: then each is a mapping of its own, whose pages the kernel clears each time, more than
    # half of the time of a step of a small model
    _set_malloc(2**25, 2**26)
    settles = worker.periodic_callbacks["tiledask-kept"] = PeriodicCallback(_settle, 2000)
    settles.start()


def _set_malloc(mapped: int, free: int) -> None:
    """Have malloc map arrays from so many bytes on by themselves, and give back what is ``free``
    beyond so many."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_MMAP_THRESHOLD, mapped)
        _LIBC.mallopt(_TRIM_THRESHOLD, free)


def _settle(since: float | None = None) -> None:
    """Take in what was returned; give the system what is kept from before ``since`` (default: what
    nobody wanted for KEEP_SECONDS), and the oldest beyond the room for it."""
    with _lock:
        _look()
        since = monotonic() - KEEP_SECONDS if since is None else since
        while _returned:
            _kept.append((_returned.popleft(), monotonic()))
        while _kept and (_kept[0][1] < since or _kept_bytes() > _room):
            del _kept[0]
        _clear_peak()  # what has just gone is held no more


def _kept_bytes() -> int:
    """Bytes of what is kept: blocks were filled to the end."""
    return sum(memory.nbytes for memory, _ in _kept)


# -- how much it holds ---------------------------------------------------------------------------


def held() -> int:
    """Bytes of this process that lie in memory now, but for what is only kept.

    As Dask's nanny sees it: libraries and the pages of files that are mapped are among it.
    """
    with _lock:
        _settle()
        # malloc gives back what is free in the middle of its heaps too: arrays would come to lie
        # there, and what a product takes would not be seen to grow. Under a cap it is set aside
        if _room and hasattr(_LIBC, "malloc_trim"):
            _LIBC.malloc_trim(0)
        return _status("VmRSS") - _kept_bytes()


def reset_peak() -> int:
    """Bytes held now; ``peak_bytes`` counts from here on."""
    global _peak
    with _lock:
        _peak = held()
        _clear_peak()
        return _peak


def peak_bytes() -> int:
    """The most bytes held since ``reset_peak``."""
    with _lock:
        _look()
        return _peak or 0


def _look() -> None:
    """Take the peak since it was cleared into account: what is kept is about to change."""
    global _peak
    if _peak is not None:
        _peak = max(_peak, _status("VmHWM") - _kept_bytes())


def _clear_peak() -> None:
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # proc(5): reset the peak resident set size


def _status(field: str) -> int:
    """Bytes of one field of /proc/self/status."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


# -- a cap on it ---------------------------------------------------------------------------------


def capped() -> tuple[int, int] | None:
    """(bytes that this process's allocations may have, those that they have); None if no cap."""
    return _cap and (_cap[0], max(0, _status("VmData") - _cap[1]))


def cap_memory(limit: int) -> None:
    """From now on an allocation that takes the process more than ``limit`` bytes above what it
    holds raises MemoryError: the kernel refuses it (RLIMIT_DATA), nothing is killed.

    What any work needs was loaded when the worker started, BLAS's buffers too: that is the
    device's runtime and not the model's. To be called in the thread of the event loop.
    """
    global _room, _cap
    _room = 0  # under a cap every byte is wanted now
    gc.collect()
    _LIBC.malloc_trim(0)  # what is free now would be room that nobody counted

    # leave this many free bytes on the heap of the main thread, where the event loop runs.
    # They lie in pieces a little under LARGE, so that no tensor fits, not even when malloc
    # tries this heap for a thread whose own is full; and what is LARGE never comes from a
    # heap first. See mallopt(3).
    piece, fence, pointer = LARGE - 2**12, 64, ctypes.c_void_p
    _set_malloc(LARGE, 2**17)
    _LIBC.malloc.restype, _LIBC.malloc.argtypes = pointer, [ctypes.c_size_t]
    _LIBC.realloc.restype, _LIBC.realloc.argtypes = pointer, [pointer, ctypes.c_size_t]
    for address in [_LIBC.malloc(piece) for _ in range(-(-RESERVE // piece))]:
        _LIBC.realloc(address, fence)  # shrinks in place: what is kept parts two free pieces

    before = _status("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (before + limit, resource.RLIM_INFINITY))
    _cap = limit, before
