"""cupy.cuda without a driver."""

from types import SimpleNamespace

from cupy import _machine
from cupy.cuda import cublas, device, function, memory, nvrtc, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.function import Function, Module
from cupy.cuda.memory import (
    BaseMemory,
    ManagedMemory,
    Memory,
    MemoryAsync,
    MemoryAsyncPool,
    MemoryPointer,
    MemoryPool,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    UnownedMemory,
    alloc,
    alloc_pinned_memory,
    get_allocator,
    malloc_async,
    malloc_managed,
    set_allocator,
    set_pinned_memory_allocator,
)
from cupy.cuda.stream import Event, ExternalStream, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "ExternalStream",
    "Function",
    "ManagedMemory",
    "Memory",
    "MemoryAsync",
    "MemoryAsyncPool",
    "MemoryPointer",
    "MemoryPool",
    "Module",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "cublas",
    "device",
    "driver",
    "function",
    "get_allocator",
    "get_current_stream",
    "get_elapsed_time",
    "malloc_async",
    "malloc_managed",
    "memory",
    "nvrtc",
    "pinned_memory",
    "runtime",
    "set_allocator",
    "set_pinned_memory_allocator",
    "stream",
]

pinned_memory = SimpleNamespace(
    PinnedMemoryPointer=PinnedMemoryPointer,
    PinnedMemoryPool=PinnedMemoryPool,
    alloc_pinned_memory=alloc_pinned_memory,
    is_memory_pinned=lambda p: p in _machine.pinned,
)
driver = SimpleNamespace(get_build_version=lambda: 13000, driverGetVersion=lambda: 13000)


def is_available():
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False


def get_local_runtime_version():
    return 13000


def using_allocator(allocator):
    return _Using(allocator)


class _Using:
    def __init__(self, allocator):
        self.allocator = allocator

    def __enter__(self):
        self.before = get_allocator()
        set_allocator(self.allocator)

    def __exit__(self, *_):
        set_allocator(self.before)
