"""Sizes of what is measured, by the memory of this device."""

import psutil

from tiledask.plan.units import format_bytes
from tiledask.tile.backend import namespace

__all__ = ["memory_of_device", "shown", "shrink"]

_WHOLE = 12 * 10**9
"""Bytes of memory from which on nothing is made smaller."""


def memory_of_device(arrays: str = "cupy") -> int:
    """Bytes of the GPU in use; of this machine for "numpy"."""
    if arrays == "numpy":
        return psutil.virtual_memory().total
    return int(namespace("cupy").cuda.runtime.memGetInfo()[1])


def shown(nbytes: float | None) -> str:
    """Bytes for a table; "-" where nothing is known."""
    return "-" if nbytes is None else format_bytes(nbytes)


def shrink(arrays: str = "cupy") -> int:
    """The number by which extents are divided: 1 on a GPU of 12 GB or more, else a power of two;
    16 on a CPU.

    >>> shrink("numpy")
    16
    """
    if arrays == "numpy":
        return 16
    less = 1
    while memory_of_device() * less < _WHOLE:
        less *= 2
    return less
