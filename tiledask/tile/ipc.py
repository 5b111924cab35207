"""Memory of a GPU that other processes of this machine copy from: CUDA's interprocess handles.

    owner    cudaMalloc [.......xxxxxx...]         borrower [.......xxxxxx...]  the same memory
                        base    block                       where it was opened
             handle of the base, offset of the block  --->  open, copy, wait, close

The rules (CUDA Runtime API, cudaIpcGetMemHandle and cudaIpcOpenMemHandle):

- A handle is of a whole allocation of cudaMalloc; memory pools give out pieces of those, so a
  block has an offset. Memory of cudaMallocAsync and managed memory have no handle.
- A process cannot open its own. Opened twice there is one mapping, counted: it is closed twice.
- Nothing orders one process's kernels and copies before another's: the owner waits for its
  kernels before it says where a block lies, the borrower for its copy before it says it is done.
- An allocation must not be freed while another process has it open. Memory that another process
  gets at the same address later has another handle.
"""

import contextlib
import threading
from collections import OrderedDict
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, namespace

__all__ = ["Opened", "Shared", "Stretches", "Unreachable", "failures", "from_host", "lost", "share"]
__all__ += ["to_host"]

MOST_OPEN = 64
"""Allocations of others that are open at a time; each takes a part of the address space."""
_PITCH = 2**31 - 1
"""Bytes from row to row that a copy of rows takes at most (cudaDevAttrMaxPitch)."""


class Shared(NamedTuple):
    """Where another process finds an array's memory."""

    handle: bytes  # Of the allocation that it lies in
    offset: int  # Bytes from there to the array's first element


class Unreachable(KernelError):
    """Memory of another process that cannot be opened here."""


def failures() -> tuple[type[Exception], ...]:
    """The errors that CUDA's calls raise."""
    return (namespace("cupy").cuda.runtime.CUDARuntimeError,)


def lost() -> bool:
    """Whether no call reaches this process's GPU any more: after some errors none ever does."""
    try:
        namespace("cupy").cuda.runtime.deviceSynchronize()
    except failures():
        return True
    return False


# -- the owner -----------------------------------------------------------------------------------


def share(x: Array) -> Shared:
    """Where other processes find ``x``, once all that was begun on its GPU is done.

    Raises KernelError, with CUDA's reason, for memory that has no handle.
    """
    x.device.synchronize()
    pointer = x.data.ptr
    try:
        base = _base(pointer)
        return Shared(namespace("cupy").cuda.runtime.ipcGetMemHandle(base), pointer - base)
    except failures() as error:
        raise KernelError(
            f"memory of this GPU cannot be shared with other processes ({error}); memory of "
            f"cudaMalloc can, that of cudaMallocAsync and managed memory cannot"
        ) from None


def _base(pointer: int) -> int:
    """Where the allocation begins that ``pointer`` points into."""
    status, base, _ = import_module("cuda.bindings.driver").cuMemGetAddressRange(pointer)
    if status:
        raise KernelError(f"{pointer:#x} lies in no allocation of this GPU ({status})")
    return int(base)


# -- copies --------------------------------------------------------------------------------------


class Stretches(NamedTuple):
    """The bytes of a part of an array, in the order in which they are copied."""

    starts: np.ndarray  # Bytes from the array's first element to each stretch
    rows: int  # Of a stretch
    pitch: int  # Bytes from row to row
    width: int  # Bytes of a row

    @property
    def nbytes(self) -> int:
        """All that is copied."""
        return len(self.starts) * self.rows * self.width


def to_host(x: Array, part: Stretches) -> np.ndarray:
    """``part`` of ``x``, which nothing writes, as bytes; other work on the GPU goes on."""
    found = np.empty(part.nbytes, np.uint8)
    with x.device:
        _copy(x.data.ptr, part, found.ctypes.data, "DeviceToHost")
    return found


def from_host(flat: np.ndarray, into: Array) -> None:
    """Fill the start of ``into`` (uint8) with the bytes ``flat``; returns when that is done."""
    whole = Stretches(np.zeros(1, np.int64), 1, flat.nbytes, flat.nbytes)
    with into.device:
        _copy(flat.ctypes.data, whole, into.data.ptr, "HostToDevice")


def _copy(first: int, part: Stretches, to: int, way: str, stream: Any = None) -> None:
    """Copy ``part`` of what begins at ``first``; returns when that is done, or has failed.

    By default on a stream that does not wait for the kernels of others.
    """
    if not part.nbytes:
        return
    cuda, (starts, rows, pitch, width) = namespace("cupy").cuda, part
    stream, runtime = stream or cuda.Stream(non_blocking=True), cuda.runtime
    kind = getattr(runtime, f"memcpy{way}")
    if rows > 1 and not width <= pitch <= _PITCH:
        starts, rows = (starts[:, None] + np.arange(rows) * pitch).ravel(), 1
    try:
        for start in starts.tolist():
            if rows == 1:
                runtime.memcpyAsync(to, first + start, width, kind, stream.ptr)
            else:
                lies = width, first + start, pitch, width, rows
                runtime.memcpy2DAsync(to, *lies, kind, stream.ptr)
            to += rows * width
    finally:
        stream.synchronize()


# -- the borrower --------------------------------------------------------------------------------


class Opened:
    """Allocations of other processes that this one has open, and a stream to copy from them.

    One copy at a time; the least lately used allocation makes room for the next.
    """

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._lock = threading.Lock()
        self._stream: Any = None
        self._over = False

    def copy(self, pid: int, shared: Shared, part: Stretches, into: Array) -> None:
        """Fill the start of ``into`` (uint8) with ``part`` of what process ``pid`` shares.

        Returns when that is done; nothing else may use ``into`` meanwhile. Raises Unreachable if
        the memory cannot be opened, one of `failures` if the copy fails, and InterruptedError if
        `close` came first.
        """
        with self._lock, into.device:
            if self._over:
                raise InterruptedError("what other processes shared was closed")
            first = self._open(pid, shared) + shared.offset
            self._stream = self._stream or namespace("cupy").cuda.Stream(non_blocking=True)
            _copy(first, part, into.data.ptr, "DeviceToDevice", self._stream)

    def close(self, timeout: float = 10.0) -> None:
        """Close all, after the copy that is under way; nothing is opened any more."""
        self._over = True
        if self._lock.acquire(timeout=timeout):
            try:
                self._close_all_but(0)
            finally:
                self._lock.release()

    def _open(self, pid: int, shared: Shared) -> int:
        key = pid, shared.handle
        if key not in self._at:
            self._close_all_but(MOST_OPEN - 1)
            try:
                at = namespace("cupy").cuda.runtime.ipcOpenMemHandle(shared.handle)
            except failures() as error:
                said = f"GPU memory of process {pid} cannot be opened here ({error})"
                raise Unreachable(said) from None
            self._at[key] = at
        self._at.move_to_end(key)
        return self._at[key]

    def _close_all_but(self, count: int) -> None:
        while len(self._at) > count:
            _, at = self._at.popitem(last=False)
            with contextlib.suppress(*failures()):  # of a GPU that no call reaches any more
                namespace("cupy").cuda.runtime.ipcCloseMemHandle(at)
