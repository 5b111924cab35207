"""Where a lent block lies, and how a part of it is read from there.

On one host a part is read from the memory of the owner's process: process_vm_readv(2), one copy. A
read takes the token of the block along, after the data: if the owner took the block back or died
and another process has its number now, the token differs, and what was read is thrown away.
"""

import ctypes
import errno
import os
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ClusterLostError
from tiledask.plan.products.regions import Region
from tiledask.tile import as_dtype, ipc

__all__ = [
    *("CancelledError", "LoanLostError", "MovedError", "Ticket", "check_lent", "laid_out"),
    *("let_siblings_read", "part_of", "read_memory"),
]

_MOST_PIECES = 1024  # IOV_MAX of Linux: pieces of memory in one call
_PIECE = 2**20  # most bytes of one, so that a call stays below Linux's 2 GiB - 4 KiB


class CancelledError(RuntimeError):
    """The run or the exchange was ended while a device still worked for it."""


class LoanLostError(ClusterLostError):
    """The owner of a block is gone or has taken it back."""


class MovedError(LoanLostError):
    """The owner is there, and the block not where it was."""


class Ticket(NamedTuple):
    """Where a lent block lies."""

    key: Any
    """Dask's name of it, or its name within the exchange."""
    slot: int
    """Whose worker has it."""
    address: str
    """Address of the owner, as Dask knows it."""
    host: str
    """The machine, and which numbers its processes have: see `this_host`."""
    pid: int
    pointer: int
    """Address of its first element in the owner's memory; 0 if it is not in host memory."""
    shared: ipc.Shared | None
    """Where it lies on a GPU, as other processes find it; None if they cannot."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    token_at: int
    token: bytes


def _order(strides: tuple[int, ...]) -> list[int]:
    """Dimensions from the one of the longest stride to the one of the shortest."""
    return sorted(range(len(strides)), key=lambda d: -strides[d])  # stable: C order stays


def part_of(ends: Region, strides: tuple[int, ...], itemsize: int) -> ipc.Stretches:
    """Where the bytes of the part from start to stop in each dimension lie, in the order in which
    its owner has them."""
    shape = [stop - start for start, stop in ends]
    base = sum(start * step for (start, _), step in zip(ends, strides, strict=True))
    length, rest = itemsize, _order(strides)
    while rest and (strides[rest[-1]] == length or shape[rest[-1]] == 1):
        length *= shape[rest.pop()]
    rows, pitch = (shape[rest[-1]], strides[rest.pop()]) if rest else (1, length)
    starts = np.array([base], np.int64)
    for d in rest:
        starts = (starts[:, None] + np.arange(shape[d]) * strides[d]).ravel()
    return ipc.Stretches(starts, rows, pitch, length)


def laid_out(ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part whose bytes were copied into the start of ``buffer``."""
    dtype, order = as_dtype(ticket.dtype), _order(ticket.strides)
    shape = [ends[d][1] - ends[d][0] for d in order]
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    flat = buffer[:nbytes].view(dtype).reshape(shape)
    return flat.transpose([order.index(d) for d in range(len(order))])


# -- from the memory of another process ------------------------------------------------------------


def read_memory(ticket: Ticket, ends: Region, buffer: np.ndarray) -> np.ndarray:
    """The part, by process_vm_readv into the start of ``buffer`` (uint8)."""
    lies, to = part_of(ends, ticket.strides, as_dtype(ticket.dtype).itemsize), buffer.ctypes.data
    rows = (lies.starts[:, None] + np.arange(lies.rows) * lies.pitch).ravel() + ticket.pointer
    cuts = np.arange(0, lies.width, _PIECE)
    starts = (rows[:, None] + cuts).ravel()
    lengths = np.tile(np.minimum(lies.width - cuts, _PIECE), len(rows))
    for first in range(0, len(starts), _MOST_PIECES - 1):
        some = slice(first, first + _MOST_PIECES - 1)
        _take(ticket, starts[some], lengths[some], to)
        to += int(lengths[some].sum())
    part: np.ndarray = laid_out(ticket, ends, buffer)
    return part


def check_lent(ticket: Ticket) -> None:
    """Raise LoanLostError if the owner is gone or has taken the block back."""
    nothing = np.empty(0, np.int64)
    _take(ticket, nothing, nothing, 0)


def _take(ticket: Ticket, starts: np.ndarray, lengths: np.ndarray, to: int) -> None:
    """Copy ``lengths`` bytes from ``starts``, in one call that brings the token last."""
    token, nbytes = np.empty(16, np.uint8), int(lengths.sum())
    remote = np.empty((len(starts) + 1, 2), np.uint64)
    remote[:-1, 0], remote[:-1, 1] = starts, lengths
    remote[-1] = ticket.token_at, token.nbytes
    local = np.array([[to, nbytes], [token.ctypes.data, token.nbytes]], np.uint64)
    wanted = nbytes + token.nbytes
    got = _readv()(ticket.pid, local.ctypes.data, 2, remote.ctypes.data, len(remote), 0)
    if got != wanted or token.tobytes() != ticket.token:
        code = ctypes.get_errno() if got < 0 else 0
        if code in (errno.EPERM, errno.ENOSYS):
            raise PermissionError(code, os.strerror(code))
        why = os.strerror(code) if code else f"{got} of {wanted} bytes, or another's memory"
        raise (LoanLostError if code == errno.ESRCH else MovedError)(
            f"the worker at {ticket.address} does not lend {ticket.key} any more: {why}"
        )


@cache
def _readv() -> Any:
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    call.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return call


def let_siblings_read() -> None:
    """Where the kernel lets only ancestors look into a process (Yama), the client's processes may.

    PR_SET_PTRACER of prctl(2) names the parent, which is the client, and so its other children.
    """
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(os.getppid()), 0, 0, 0)
