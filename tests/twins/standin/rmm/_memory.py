"""Streams, resources and buffers."""

import weakref

import numpy as np
from cupy import _machine
from cupy.cuda import runtime


class Stream:
    def __init__(self, pointer=0):
        self._pointer = pointer

    def __cuda_stream__(self):
        return 0, self._pointer

    def is_default(self):
        return self._pointer == 0


DEFAULT_STREAM = Stream()


class DeviceMemoryResource:
    """Whatever gives memory: it wants back what it gave, in the size that it gave."""

    def __init__(self):
        self._given = {}

    def allocate(self, nbytes, stream=DEFAULT_STREAM):
        pointer = self._allocate(nbytes, stream)
        if not isinstance(pointer, int) or isinstance(pointer, bool):
            raise TypeError("an integer is required")
        if pointer % 256:
            raise _machine.StandInFault(f"{pointer:#x} is not a multiple of 256")
        if nbytes and self._given.setdefault(pointer, nbytes) != nbytes:
            raise _machine.StandInFault(f"{pointer:#x} was given twice")
        return pointer

    def deallocate(self, pointer, nbytes, stream=DEFAULT_STREAM):
        if self._given.pop(pointer, None) != nbytes:
            raise _machine.StandInFault(f"{nbytes} bytes at {pointer:#x} were not given so")
        self._deallocate(pointer, nbytes, stream)


class CudaMemoryResource(DeviceMemoryResource):
    def _allocate(self, nbytes, stream):
        try:
            return runtime.malloc(nbytes)
        except _machine.CUDARuntimeError as error:
            raise MemoryError(f"std::bad_alloc: out_of_memory: {error}") from None

    def _deallocate(self, pointer, nbytes, stream):
        runtime.free(pointer)


class PoolMemoryResource(DeviceMemoryResource):
    """Only so that one can be asked for by its class."""


class CallbackMemoryResource(DeviceMemoryResource):
    def __init__(self, allocate_func, deallocate_func):
        super().__init__()
        self._allocate_func, self._deallocate_func = allocate_func, deallocate_func

    def _allocate(self, nbytes, stream):
        try:
            return self._allocate_func(nbytes, Stream(stream.__cuda_stream__()[1]))
        except MemoryError as error:
            raise MemoryError(str(error)) from None
        except BaseException as error:
            raise RuntimeError(str(error)) from None

    def _deallocate(self, pointer, nbytes, stream):
        try:
            self._deallocate_func(pointer, nbytes, Stream(stream.__cuda_stream__()[1]))
        except BaseException as error:
            raise _machine.StandInFault(f"nobody hears of {error!r}") from None


resources = {}
"""Of each device."""


def get_current_device_resource():
    return resources.setdefault(runtime.getDevice(), CudaMemoryResource())


def set_current_device_resource(mr):
    if not isinstance(mr, DeviceMemoryResource):
        raise TypeError(f"Argument 'mr' has incorrect type, got {type(mr).__name__}")
    resources[runtime.getDevice()] = mr


class DeviceBuffer:
    """Bytes on the device, a copy of what lies at ``ptr`` if that is given."""

    def __init__(self, *, ptr=0, size=0, stream=DEFAULT_STREAM, mr=None):
        self._mr = get_current_device_resource() if mr is None else mr
        self.size = self.nbytes = size
        self.ptr = self._mr.allocate(size, stream) if size else 0
        if size:
            back = weakref.finalize(self, self._mr.deallocate, self.ptr, size, stream)
            back.atexit = False
        if ptr and size:
            runtime.memcpy(self.ptr, ptr, size, runtime.memcpyDefault)

    def __len__(self):
        return self.size

    @property
    def __cuda_array_interface__(self):
        return {
            "data": (self.ptr, False),
            "shape": (self.size,),
            "strides": None,
            "typestr": "|u1",
            "version": 0,
        }

    @staticmethod
    def to_device(b, stream=DEFAULT_STREAM):
        data = np.frombuffer(b, np.uint8)
        return DeviceBuffer(ptr=data.ctypes.data, size=data.size, stream=stream)

    def copy_to_host(self, ary=None, stream=DEFAULT_STREAM):
        ary = np.empty(self.size, np.uint8) if ary is None else ary
        into = np.frombuffer(ary, np.uint8)
        runtime.memcpy(into.ctypes.data, self.ptr, self.size, runtime.memcpyDeviceToHost)
        return ary
