"""cupyx: arrays in pinned host memory."""

import numpy as np
from cupy.cuda import alloc_pinned_memory

__all__ = ["empty_pinned", "zeros_pinned"]


def empty_pinned(shape, dtype=float, order="C"):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory = alloc_pinned_memory(count * dtype.itemsize)
    return np.frombuffer(memory, dtype, count).reshape(shape, order=order)


def zeros_pinned(shape, dtype=float, order="C"):
    made = empty_pinned(shape, dtype, order)
    made[...] = 0
    return made
