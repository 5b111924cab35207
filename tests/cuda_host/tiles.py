"""The kernels whose panels come by cp.async, on the host; and what they ask of shared memory."""

import ctypes
from functools import partial
from unittest.mock import patch

import numpy as np

from cuda_host import HostFault, HostKernel
from cuda_host.products import is_right
from tiledask.tile.cuda import launch

__all__ = ["COPY", "LDMATRIX", "READ", "WRITE", "TileKernels"]

READ, WRITE, COPY, LDMATRIX = range(4)
"""Kinds of instructions on shared memory, as gpu.cuh beside this file numbers them."""

SHARED = 227 * 1024
"""Bytes of shared memory that a block of sm_90 can have."""


class TileKernels:
    """Variants of one kernel, each built when a product first needs it."""

    def __init__(self, folder, name, faults=(), **macros):
        self.folder, self.name, self.faults, self.macros = folder, name, faults, macros
        self.tile = tuple(macros[x] for x in ("TILE_M", "TILE_N", "TILE_K"))
        self.built = {}

    def run(self, a, b, out, epilogue, seed=1):
        """Launches it as on a GPU, but told what it may read."""

        def kernel(name, macros, shared):
            macros = {k: v for k, v in macros.items() if not k.startswith("HAS_")} | self.macros
            key = tuple(sorted(macros.items()))
            if key not in self.built:
                folder = self.folder / str(len(self.built))
                self.built[key] = HostKernel(folder, name, macros, self.faults)
                self.built[key].max_dynamic_shared_size_bytes = SHARED
            found = self.built[key]
            found.seed = seed
            found.library.may_read_anything()
            for x in (a, b):
                starts, size = _lines(x)
                found.library.may_read(starts.ctypes.data_as(ctypes.c_void_p), len(starts), size)
            return found

        with patch.object(launch, "_kernel", kernel):
            tf32 = self.name == "mma_multistage" and a.dtype == np.float32
            run = launch.mma_tf32 if tf32 else getattr(launch, self.name)
            run(a, b, out, self.tile, epilogue)

    def is_right(self, case, seed=1):
        return is_right(partial(self.run, seed=seed), case)

    def turns(self, kind, size):
        """How often shared memory was asked at most for one instruction with ``size`` bytes a lane.

        1: no two lanes that are served together wanted different words of one bank.
        """
        worst = [kernel.library.worst_conflict(kind, size) for kernel in self.built.values()]
        return max(worst)

    def unpaired(self, kind, size):
        """Instructions in which lanes neither go in pairs (i, i ^ 1) nor in pairs (i, i ^ 2)."""
        return sum(kernel.library.unpaired(kind, size) for kernel in self.built.values())

    def catches(self, tries):
        """Whether one of (case, seed) comes out wrong, or never."""
        try:
            return not all(self.is_right(*one) for one in tries)
        except HostFault:
            return True


def _lines(x):
    """(addresses of the lines of neighbours, bytes of one)."""
    axis = -1 if x.strides[-1] == x.itemsize else -2
    assert x.strides[axis] == x.itemsize, "one stride is 1"
    offsets = np.zeros((), np.int64)
    for dim in range(-x.ndim, 0):
        if dim - axis:
            offsets = np.add.outer(offsets, np.arange(x.shape[dim]) * x.strides[dim])
    return x.ctypes.data + np.unique(offsets), ctypes.c_long(x.shape[axis] * x.itemsize)
