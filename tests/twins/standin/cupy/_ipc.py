"""Memory of another process: CUDA's interprocess handles, and what breaks their rules.

A handle is of a whole allocation of cudaMalloc; one of memory that was freed opens nothing, even if
other memory lies there now. Opened twice there is one mapping, closed twice. What a GPU would
leave undefined (memory freed while another process has it open) is written to `faults` in
STANDIN_GPU_FOLDER, where processes also write what they share and what they have open.
"""

import contextlib
import itertools
import mmap
import os
import struct

import numpy as np

from cupy import _machine
from cupy._machine import CUDARuntimeError

_HANDLE = struct.Struct("<4sIIIqqQQ")
_generations = itertools.count(1)
_shared = {}
"""Pointer of an allocation -> its handle."""
_open = {}
"""Handle -> [pointer here, how often it was opened]."""
without_handle = set()
"""Pointers that are not of cudaMalloc."""


def _path(kind, *numbers):
    return os.path.join(_machine._folder(), "-".join([kind, *map(str, numbers)]))


def address_range(pointer):
    """(base, size) of the allocation here that ``pointer`` lies in, or None."""
    for each in _machine.devices():
        if each.base <= pointer < each.base + each.room:
            return each.allocation(pointer)
    return None


def get_handle(pointer):
    """64 bytes that name the whole allocation that ``pointer`` lies in."""
    found = address_range(pointer)
    if found is None:
        raise CUDARuntimeError(1, f"{pointer:#x} is no allocation of this process")
    base, size = found
    if base in without_handle:
        raise CUDARuntimeError(1, f"{pointer:#x} is not memory of cudaMalloc")
    if base not in _shared:
        device = next(d for d in _machine.devices() if d.base <= base < d.base + d.room)
        pid, number = os.getpid(), next(_generations)
        packed = _HANDLE.pack(
            b"IPCH",
            pid,
            device.file,
            device.physical,
            base - device.base,
            size,
            int(_machine._started(pid)),
            number,
        )
        _shared[base] = packed.ljust(64, b"\0")
        open(_path("shared", pid, number), "w").close()
    return _shared[base]


def freed(base):
    """None; the allocation at ``base`` goes."""
    without_handle.discard(base)
    handle = _shared.pop(base, None)
    if handle is None:
        return
    _, pid, _, _, _, _, _, number = _HANDLE.unpack(handle[: _HANDLE.size])
    with contextlib.suppress(OSError):  # the folder goes with the first process
        os.remove(_path("shared", pid, number))
    mine = f"open-{pid}-{number}-"
    for name in os.listdir(_machine._folder()):
        if name.startswith(mine) and _machine._started(name.removeprefix(mine)):
            with open(_path("faults"), "a") as faults:
                faults.write(f"{pid} freed memory that {name.removeprefix(mine)} has open\n")


def open_handle(handle):
    """The pointer here of the allocation's first byte."""
    if type(handle) is not bytes or len(handle) != 64:
        raise TypeError(f"a handle is 64 bytes, got {handle!r}")
    magic, pid, file, physical, offset, size, started, number = _HANDLE.unpack(
        handle[: _HANDLE.size]
    )
    if magic != b"IPCH":
        raise CUDARuntimeError(400, "this is no handle")
    if pid == os.getpid():
        raise CUDARuntimeError(201, "a process cannot open its own memory")
    if handle in _open:
        _open[handle][1] += 1
        return _open[handle][0]
    if _machine._started(pid) != str(started) or not os.path.exists(_path("shared", pid, number)):
        raise CUDARuntimeError(400, f"what process {pid} exported is gone")
    index = next((d.index for d in _machine.devices() if d.physical == physical), -1)
    first = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with open(f"/proc/{pid}/fd/{file}", "r+b") as shared:
        mapped = mmap.mmap(shared.fileno(), offset - first + size, offset=first)
    data = np.frombuffer(mapped, np.uint8)[offset - first :]
    _machine.opened[data.ctypes.data] = data, index
    _open[handle] = [data.ctypes.data, 1]
    open(_path("open", pid, number, os.getpid()), "w").close()
    return data.ctypes.data


def close_handle(pointer):
    handle = next((handle for handle, entry in _open.items() if entry[0] == pointer), None)
    if handle is None:
        raise CUDARuntimeError(1, f"{pointer:#x} was not opened")
    _open[handle][1] -= 1
    if not _open[handle][1]:
        del _open[handle], _machine.opened[pointer]
        _, pid, _, _, _, _, _, number = _HANDLE.unpack(handle[: _HANDLE.size])
        with contextlib.suppress(OSError):
            os.remove(_path("open", pid, number, os.getpid()))
