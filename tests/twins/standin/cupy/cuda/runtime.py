"""cupy.cuda.runtime, as far as it can be answered without a driver."""

import os

import numpy as np

from cupy import _ipc, _machine
from cupy._machine import CUDARuntimeError

__all__ = ["CUDARuntimeError"]

INTEGRATED = int(os.environ.get("STANDIN_GPU_INTEGRATED", "0"))
is_hip = False
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost = range(3)
memcpyDeviceToDevice, memcpyDefault = 3, 4
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)
cudaIpcMemLazyEnablePeerAccess = 1
streamDefault, streamNonBlocking = 0, 1
streamLegacy, streamPerThread = 1, 2
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
hostAllocPortable, hostAllocMapped, hostAllocWriteCombined = 1, 2, 4


def runtimeGetVersion():
    return 13000


def driverGetVersion():
    return 13000


def getDeviceCount():
    return len(_machine.devices())


def getDevice():
    _machine.devices()
    return _machine.here.device


def setDevice(index):
    _machine.device(index)
    _machine.here.device = index


def deviceSynchronize():
    from cupy.cuda.stream import drain_device

    drain_device(getDevice())


def getDeviceProperties(index):
    found = _machine.device(index)
    return {
        "name": _machine.NAME.encode(),
        "totalGlobalMem": found.total,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "l2CacheSize": 60 * 2**20,
        "warpSize": 32,
        "regsPerMultiprocessor": 65536,
        "regsPerBlock": 65536,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiProcessor": 2048,
        "maxBlocksPerMultiProcessor": 32,
        "sharedMemPerMultiprocessor": 228 * 1024,
        "sharedMemPerBlockOptin": 227 * 1024,
        "sharedMemPerBlock": 48 * 1024,
        "memoryBusWidth": 5120,
        "ECCEnabled": 1,
        "integrated": INTEGRATED,
        "unifiedAddressing": 1,
        "managedMemory": 1,
        "canMapHostMemory": 1,
        "asyncEngineCount": 3,
        "concurrentKernels": 1,
        "pciBusID": found.physical + 1,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "uuid": _machine.uuid(found.physical).encode()[:16],
        "maxGridSize": (2**31 - 1, 65535, 65535),
        "maxThreadsDim": (1024, 1024, 64),
        "computePreemptionSupported": 1,
        "pageableMemoryAccess": 0,
    }


_ATTRIBUTES = {16: 132, 38: 60 * 2**20, 75: 9, 76: 0, 13: 1_980_000, 36: 2_619_000, 37: 5120}


def deviceGetAttribute(attribute, index):
    _machine.device(index)
    return _ATTRIBUTES.get(attribute, 1)


def deviceGetPCIBusId(index):
    return f"0000:{_machine.device(index).physical + 1:02X}:00.0"


def deviceGetByPCIBusId(bus):
    for each in _machine.devices():
        if deviceGetPCIBusId(each.index) == bus.upper():
            return each.index
    raise CUDARuntimeError(101)


def deviceCanAccessPeer(mine, theirs):
    _machine.device(mine), _machine.device(theirs)
    return int(mine != theirs)


def deviceEnablePeerAccess(peer):
    _machine.device(peer)


def deviceDisablePeerAccess(peer):
    _machine.device(peer)


def memGetInfo():
    """(bytes free on the current device, of how many)."""
    found = _machine.device()
    return found.total - found.others(), found.total


# -- memory --------------------------------------------------------------------------------------


def malloc(size):
    return _machine.device().malloc(size)


def mallocAsync(size, stream):
    return _without_handle(malloc(size))


def mallocManaged(size, flags=1):
    return _without_handle(malloc(size))


def _without_handle(pointer):
    _ipc.without_handle.add(pointer)
    return pointer


def free(pointer):
    if pointer == 0:
        return
    for each in _machine.devices():
        if each.base <= pointer < each.base + each.room:
            return each.free(pointer)
    raise CUDARuntimeError(17, f"{pointer:#x} is no device memory of this process")


def freeAsync(pointer, stream):
    free(pointer)


def hostAlloc(size, flags=0):
    data = np.empty(max(1, size), np.uint8)
    _machine.pinned[data.ctypes.data] = data.size
    _hosts[data.ctypes.data] = data
    return data.ctypes.data


_hosts = {}


def freeHost(pointer):
    del _machine.pinned[pointer], _hosts[pointer]


def hostRegister(pointer, size, flags):
    _machine.pinned[pointer] = size


def hostUnregister(pointer):
    if _machine.pinned.pop(pointer, None) is None:
        raise CUDARuntimeError(1, "this host memory was not registered")


class PointerAttributes:
    def __init__(self, device, pointer, kind):
        self.device, self.devicePointer, self.hostPointer, self.type = device, pointer, 0, kind


def pointerGetAttributes(pointer):
    found = _machine.find(pointer)
    if found is None:
        for start, size in _machine.pinned.items():
            if start <= pointer < start + size:
                return PointerAttributes(getDevice(), pointer, memoryTypeHost)
        return PointerAttributes(-2, 0, memoryTypeUnregistered)
    return PointerAttributes(found[2], pointer, memoryTypeDevice)


def _host_bytes(pointer, size):
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


def _bytes(pointer, size, device):
    """What a copy of one kind finds at ``pointer``; None: device or host, whichever it is."""
    if device is None:
        device = _machine.find(pointer) is not None
    if device:
        return _machine.at(pointer, size)
    if _machine.find(pointer) is not None:
        raise CUDARuntimeError(1, "device memory where a copy expects the host's")
    return _host_bytes(pointer, size)


_KINDS = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True), 4: (None, None)}


def memcpy(into, source, size, kind):
    from cupy.cuda.stream import settle

    settle()
    if size:
        to, of = _KINDS[kind]
        _bytes(into, size, to)[...] = _bytes(source, size, of).copy()


def memcpyAsync(into, source, size, kind, stream):
    from cupy.cuda.stream import behind

    if size:
        to, of = _KINDS[kind]
        target, given = _bytes(into, size, to), _bytes(source, size, of)
        behind(stream, lambda: target.__setitem__(..., given.copy()))


def memcpy2DAsync(into, into_pitch, source, pitch, width, height, kind, stream):
    from cupy.cuda.stream import behind

    if not width <= min(into_pitch, pitch) or max(into_pitch, pitch) >= 2**31:
        raise CUDARuntimeError(12, f"rows of {width} bytes, {into_pitch} and {pitch} apart")
    if not width * height:
        return
    to, of = _KINDS[kind]
    target = _bytes(into, into_pitch * (height - 1) + width, to)
    given = _bytes(source, pitch * (height - 1) + width, of)

    def copy():
        for row in range(height):
            target[row * into_pitch :][:width] = given[row * pitch :][:width]

    behind(stream, copy)


def memcpyPeer(into, to_device, source, of_device, size):
    for pointer, index in ((into, to_device), (source, of_device)):
        found = _machine.find(pointer)
        if size and (found is None or found[2] != index):
            raise CUDARuntimeError(1, f"{pointer:#x} is not on device {index}")
    memcpy(into, source, size, memcpyDeviceToDevice)


def memcpyPeerAsync(into, to_device, source, of_device, size, stream):
    memcpyPeer(into, to_device, source, of_device, size)


def memset(pointer, value, size):
    from cupy.cuda.stream import settle

    settle()
    _machine.at(pointer, size)[...] = value


def memsetAsync(pointer, value, size, stream):
    memset(pointer, value, size)


# -- across processes ----------------------------------------------------------------------------


def ipcGetMemHandle(pointer):
    return _ipc.get_handle(pointer)


def ipcOpenMemHandle(handle, flags=cudaIpcMemLazyEnablePeerAccess):
    return _ipc.open_handle(handle)


def ipcCloseMemHandle(pointer):
    _ipc.close_handle(pointer)


# -- streams and events, by number ---------------------------------------------------------------


def streamSynchronize(stream):
    from cupy.cuda.stream import by_number

    by_number(stream).synchronize()


def streamCreate():
    from cupy.cuda.stream import Stream, kept

    made = Stream()
    kept.append(made)
    return made.ptr


def streamCreateWithFlags(flags):
    from cupy.cuda.stream import Stream, kept

    made = Stream(non_blocking=bool(flags))
    kept.append(made)
    return made.ptr


def streamDestroy(stream):
    pass


def profilerStart():
    pass


def profilerStop():
    pass


def getLastError():
    return 0


def peekAtLastError():
    return 0
