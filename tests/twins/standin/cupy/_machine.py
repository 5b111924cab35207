"""The GPUs that are not there: their memory, who has how much of it, and what a GPU would refuse.

    STANDIN_GPUS         how many there are (1); CUDA_VISIBLE_DEVICES chooses among them
    STANDIN_GPU_MEMORY   bytes of each (1e9), shared by all processes
    STANDIN_GPU_NAME     what they call themselves
    STANDIN_GPU_FOLDER   where processes keep what they hold; set for its children by the first

A device's memory is a file without a name, mapped whole by each process for itself, of which pages
come to be as they are written. A pointer is an address in that mapping, so that another process's
means nothing here; other processes may map the file too (CUDA IPC).
"""

import atexit
import bisect
import fcntl
import json
import mmap
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager

import numpy as np

NONSENSE = 0xA5
"""Every byte of memory that was never written; as numbers these are small and wrong."""
NAME = os.environ.get("STANDIN_GPU_NAME", "NVIDIA H200 (stand-in)")

ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    3: ("cudaErrorInitializationError", "initialization error"),
    12: ("cudaErrorInvalidPitchValue", "invalid pitch argument"),
    17: ("cudaErrorInvalidDevicePointer", "invalid device pointer"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    201: ("cudaErrorDeviceUninitialized", "invalid device context"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
}


class CUDARuntimeError(RuntimeError):
    """As CuPy raises it."""

    def __init__(self, status, detail=""):
        self.status = status
        name, text = ERRORS[status]
        super().__init__(f"{name}: {text}" + (f" [stand-in: {detail}]" if detail else ""))

    def __reduce__(self):
        return type(self), (self.status,)


class StandInFault(AssertionError):
    """What a GPU would have answered with wrong numbers, or never."""


class Here(threading.local):
    """What belongs to a thread: its current device, by its place among the visible."""

    device = 0
    streams = None


here = Here()
lock = threading.RLock()


# -- which there are -----------------------------------------------------------------------------


def _visible():
    """The devices that this process may use, by their numbers on the machine."""
    count = int(os.environ.get("STANDIN_GPUS", "1"))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return list(range(count))
    found = []
    for name in filter(None, named.split(",")):
        index = next((i for i in range(count) if uuid(i) == name), None)
        index = int(name) if index is None and name.strip().isdigit() else index
        if index is None or not 0 <= index < count:
            break  # what follows an unknown one is not seen either
        found.append(index)
    return found


def uuid(index):
    return f"GPU-{index:08x}-5747-a17d-0000-{index:012x}"


def memory_of_each():
    return int(float(os.environ.get("STANDIN_GPU_MEMORY", 1e9)))


_devices = None
_pid = None


def devices():
    """The memory of each visible device; this process is bound to what it first sees."""
    global _devices, _pid
    if _devices is None:
        with lock:
            if _devices is None:
                _pid = os.getpid()
                _devices = [DeviceMemory(i, at) for i, at in enumerate(_visible())]
    if os.getpid() != _pid:
        raise CUDARuntimeError(3, "a forked process uses its parent's context")
    if not _devices:
        raise CUDARuntimeError(100)
    return _devices


def device(index=None):
    found = devices()
    index = here.device if index is None or index < 0 else index
    if not 0 <= index < len(found):
        raise CUDARuntimeError(101, f"device {index} of {len(found)}")
    return found[index]


# -- who has how much ----------------------------------------------------------------------------


def _folder():
    folder = os.environ.get("STANDIN_GPU_FOLDER")
    if not folder:
        folder = os.environ["STANDIN_GPU_FOLDER"] = tempfile.mkdtemp(prefix="standin-gpus-")
        mine = os.getpid()
        atexit.register(lambda: os.getpid() == mine and shutil.rmtree(folder, ignore_errors=True))
    os.makedirs(folder, exist_ok=True)
    return folder


def _started(pid):
    """When a process started, so that a number used again is not taken for it; None if it ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@contextmanager
def _ledger(physical):
    """{process: [when it started, bytes]} of a device, of processes that live; written back."""
    path = os.path.join(_folder(), f"device-{physical}.json")
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        held = {p: e for p, e in (json.loads(text) if text else {}).items() if _started(p) == e[0]}
        yield held
        file.seek(0)
        file.truncate()
        file.write(json.dumps(held))


class DeviceMemory:
    """One device's memory, as this process has it."""

    def __init__(self, index, physical):
        self.index, self.physical = index, physical
        self.total = memory_of_each()
        self.room = -(-self.total // mmap.PAGESIZE) * mmap.PAGESIZE * 2  # fragments cost no memory
        self.file = os.memfd_create(f"standin-gpu-{physical}")
        os.ftruncate(self.file, self.room)
        self.bytes = np.frombuffer(mmap.mmap(self.file, self.room), np.uint8)
        self.base = self.bytes.ctypes.data
        self.starts, self.sizes = [], {}  # of what is allocated, by offset
        self.mallocs = 0
        self.peak = 0

    def others(self):
        with _ledger(self.physical) as held:
            return sum(entry[1] for entry in held.values())

    @property
    def held(self):
        """Bytes that this process has of it."""
        return sum(self.sizes.values())

    def malloc(self, size):
        """The pointer of ``size`` bytes."""
        if size == 0:
            return 0
        size = -(-size // 512) * 512
        with lock, _ledger(self.physical) as held:
            if sum(entry[1] for entry in held.values()) + size > self.total:
                raise CUDARuntimeError(2)
            end = 512  # so that no pointer is the base of the mapping
            for start in [*self.starts, self.room]:
                if start - end >= size:
                    break
                end = start + self.sizes.get(start, 0)
            else:
                raise CUDARuntimeError(2, "fragmented")
            bisect.insort(self.starts, end)
            self.sizes[end] = size
            me = str(os.getpid())
            held[me] = [_started(me), self.held]
        self.mallocs += 1
        self.peak = max(self.peak, self.held)
        self.bytes[end : end + size] = NONSENSE
        return self.base + end

    def free(self, pointer):
        from cupy import _ipc

        if pointer == 0:
            return
        offset = pointer - self.base
        with lock, _ledger(self.physical) as held:
            if offset not in self.sizes:
                raise CUDARuntimeError(17, f"{pointer:#x} was not allocated, or freed before")
            _ipc.freed(pointer)
            size = self.sizes.pop(offset)
            self.starts.remove(offset)
            me = str(os.getpid())
            held[me] = [_started(me), self.held]
        self.bytes[offset : offset + size] = 0xDD
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            _punch(self.file, first, last - first)

    def allocation(self, pointer):
        """(pointer, size) of the allocation that ``pointer`` lies in; None if there is none."""
        offset = pointer - self.base
        at = bisect.bisect_right(self.starts, offset) - 1
        if at < 0:
            return None
        start = self.starts[at]
        size = self.sizes.get(start, 0)
        return (self.base + start, size) if offset < start + size else None


def _punch(file, offset, size):
    import ctypes

    keep_size, punch_hole = 1, 2
    ctypes.CDLL(None).fallocate(
        file, punch_hole | keep_size, ctypes.c_long(offset), ctypes.c_long(size)
    )


# -- what lies at a pointer ----------------------------------------------------------------------

opened = {}
"""Other processes' allocations that were opened here: pointer -> (bytes, device)."""
pinned = {}
"""Pinned host memory: address -> bytes."""


def find(pointer):
    """(pointer, size, device, bytes) of the allocation that ``pointer`` lies in, or None."""
    for each in devices():
        if each.base <= pointer < each.base + each.room:
            found = each.allocation(pointer)
            if found is None:
                return None
            start = found[0] - each.base
            return *found, each.index, each.bytes[start : start + found[1]]
    for start, (data, index) in opened.items():
        if start <= pointer < start + data.size:
            return start, data.size, index, data
    return None


def at(pointer, size):
    """``size`` bytes at ``pointer`` as NumPy has them; an illegal address is told."""
    if size == 0:
        return np.empty(0, np.uint8)
    found = find(pointer)
    if found is None:
        raise CUDARuntimeError(700, f"{pointer:#x} is nobody's memory in this process")
    start, length, _, data = found
    if pointer + size > start + length:
        raise CUDARuntimeError(
            700, f"{size} bytes at {pointer:#x} end beyond their allocation of {length}"
        )
    return data[pointer - start : pointer - start + size]


def is_pinned(array):
    address = array.ctypes.data
    return any(a <= address < a + size for a, size in list(pinned.items()))
