"""A GPU without a GPU, as far as a launch goes: CuPy's arrays, devices, kernels, NVIDIA's driver.

Arrays lie in host memory and kernels compute nothing. What is counted and checked is what the host
does: which variant is loaded, how often its memory is allowed, what it is launched with. Attributes
of an array cost about what CuPy's cost, so that the host's time can be told.
"""

import subprocess
import threading
from ast import literal_eval
from collections import Counter, deque
from functools import cache, cached_property
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from tiledask.tile import backend
from tiledask.tile.cuda import build, launch, tensor_map

__all__ = ["DRIVER", "Machine", "driver_library"]


class ndarray:
    """An array on a device."""

    __slots__ = ("data", "device", "dtype", "host", "itemsize", "ndim", "shape", "strides")

    def __init__(self, host, device):
        self.host, self.device, self.dtype = host, device, host.dtype
        self.shape, self.strides = host.shape, host.strides
        self.ndim, self.itemsize = host.ndim, host.itemsize
        self.data = SimpleNamespace(ptr=host.__array_interface__["data"][0])

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, at):
        return ndarray(self.host[at], self.device)

    def __setitem__(self, at, value):
        assert self.dtype.kind in "ufi", f"who says that CuPy copies {self.dtype} with strides?"
        self.host[at] = value.host if isinstance(value, ndarray) else value

    def view(self, dtype):
        return ndarray(self.host.view(dtype), self.device)

    def swapaxes(self, *axes):
        return ndarray(self.host.swapaxes(*axes), self.device)

    def reshape(self, *shape):
        return ndarray(self.host.reshape(*shape), self.device)

    def astype(self, dtype, copy=True):
        if not copy and dtype == self.dtype:
            return self
        return ndarray(self.host.astype(dtype), self.device)

    def sum(self, axis, out=None):
        self.host.sum(axis, out=out.host)


ndarray.__module__ = "cupy"


class Device:
    """One of the machine's, as `cupy.cuda.Device` says it."""

    def __init__(self, machine, index):
        self.machine, self.id = machine, index
        self.compute_capability = "90"
        self.attributes = {"MultiProcessorCount": 132}

    def __enter__(self):
        local = self.machine.local
        local.entered.append(local.device)
        local.device = self
        return self

    def __exit__(self, *_):
        self.machine.local.device = self.machine.local.entered.pop()


class Local(threading.local):
    """A thread's current device, and its latest launch."""

    def __init__(self, device):
        self.device, self.entered, self.last = device, [], None


class RawKernel:
    """A function of one module; CuPy keeps one of the driver's for each device."""

    def __init__(self, machine, path, name):
        self.machine, self.path, self.name = machine, path, name
        self.allowed = Counter()

    @cached_property
    def macros(self):
        return dict(literal_eval(Path(self.path).read_bytes()[4:].decode())[1])

    def _set(self, size):
        self.machine.asked["funcSetAttribute"] += 1
        self.allowed[self.machine.local.device.id] = size

    max_dynamic_shared_size_bytes = property(fset=_set)

    def __call__(self, grid, block, arguments, shared_mem=0):
        assert shared_mem <= max(48 * 1024, self.allowed[self.machine.local.device.id]), (
            "allow it first"
        )
        local = self.machine.local
        local.last = Launched(self, local.device, grid, block, arguments, shared_mem)
        self.machine.launched.append(local.last)


class Launched(NamedTuple):
    kernel: RawKernel
    device: Device
    grid: tuple
    block: tuple
    arguments: tuple
    shared: int


class Machine:
    """Devices, and what was asked of them; ``use`` makes it this process's CuPy."""

    __name__ = "cupy"
    ndarray = ndarray

    def __init__(self, devices=1):
        self.devices = [Device(self, i) for i in range(devices)]
        self.local = Local(self.devices[0])
        self.launched, self.asked = deque(maxlen=100), Counter()
        self.cuda = SimpleNamespace(Device=lambda: self.local.device)

    def empty(self, shape, dtype=float):
        """On a boundary of 256 bytes, as CuPy's memory."""
        size = prod(shape) * np.dtype(dtype).itemsize
        room = np.empty(size + 256, np.uint8)
        begin = -room.ctypes.data % 256
        return ndarray(room[begin : begin + size].view(dtype).reshape(shape), self.local.device)

    def zeros(self, shape, dtype=float):
        found = self.empty(shape, dtype)
        found.host[...] = 0
        return found

    def array(self, x, order="K"):
        assert x.dtype.kind in "ufi", f"who says that CuPy copies {x.dtype} with strides?"
        return ndarray(np.array(x.host, order=order), x.device)

    def ascontiguousarray(self, x):
        return x if x.host.flags.c_contiguous else self.array(x, "C")

    def broadcast_to(self, x, shape):
        return ndarray(np.broadcast_to(x.host, shape), x.device)

    def may_share_memory(self, x, y):
        return np.may_share_memory(x.host, y.host)

    def sum(self, x, axis, out):
        x.sum(axis, out=out)

    def RawModule(self, path):
        self.asked["moduleLoad"] += 1
        return SimpleNamespace(get_function=lambda name: RawKernel(self, path, name))

    def use(self, monkeypatch, folder, kept):
        found = tuple(
            backend.GpuInfo(d.id, "NVIDIA H200", "9.0", 141 * 10**9) for d in self.devices
        )
        monkeypatch.setenv("TILEDASK_CACHE", str(kept))
        monkeypatch.setattr(backend, "_import_cupy", lambda: self)
        said = backend.Backend(True, "", devices=found)
        monkeypatch.setattr(backend, "probe", lambda: said)
        for module in (build, launch):
            monkeypatch.setattr(module, "namespace", lambda _: self)
        from tiledask.tile import table

        monkeypatch.setattr(table, "probe", backend.probe)
        monkeypatch.setattr(build, "compile_for", self._compiled)
        monkeypatch.setattr(tensor_map, "_LIBRARY", str(driver_library(folder)))
        tensor_map._driver.cache_clear()
        tensor_map.encode.cache_clear()
        build._loaded.cache_clear()
        launch._ready.cache_clear()

    def _compiled(self, name, macros, arch):
        self.asked["compile"] += 1
        return b"\x7fELF" + repr((name, sorted(macros.items()), arch)).encode(), ""


DRIVER = r"""
#include <stdint.h>
#include <string.h>
int made = 0;
extern "C" int cuTensorMapEncodeTiled(
    void* map, int type, uint32_t rank, void* address, const uint64_t* size, const uint64_t* stride,
    const uint32_t* box, const uint32_t* step, int interleave, int swizzle, int promotion, int fill
) {
    const int bytes = type == 7 ? 4 : 2;
    if ((uintptr_t)map % 64) return 999;
    if (type != 6 && type != 7 && type != 9) return 1;
    if (rank < 1 || rank > 5 || (uintptr_t)address % 16) return 1;
    if (interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0) return 1;
    if (box[0] * bytes > 128 || box[0] * bytes % 16) return 1;
    for (uint32_t i = 0; i < rank; ++i) {
        if (!size[i] || size[i] > (1ull << 32) || !box[i] || box[i] > 256 || step[i] != 1) return 1;
    }
    for (uint32_t i = 0; i + 1 < rank; ++i) {
        if (!stride[i] || stride[i] % 16 || stride[i] >= (1ull << 40)) return 1;
    }
    uint64_t* words = (uint64_t*)map;
    memset(map, 0, 128);
    words[0] = (uint64_t)address; words[1] = type; words[2] = rank;
    for (uint32_t i = 0; i < rank; ++i) { words[3 + i] = size[i]; words[8 + i] = box[i]; }
    for (uint32_t i = 0; i + 1 < rank; ++i) words[12 + i] = stride[i];
    ++made;
    return 0;
}
extern "C" int cuGetErrorName(int error, const char** name) {
    *name = error == 1 ? "CUDA_ERROR_INVALID_VALUE" : 0;
    return *name ? 0 : 1;
}
"""
"""cuTensorMapEncodeTiled with the rules of the CUDA Driver API's manual, section "Tensor Map Object
Management"; a map on no boundary of 64 bytes is error 999."""


@cache
def driver_library(folder):
    """The compiled stand-in for libcuda.so.1."""
    text = folder / "driver.cpp"
    text.write_text(DRIVER)
    made = folder / "libcuda.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", text, "-o", made], check=True)
    return made
