"""Where a lent block lies, and how a part of it lies there and in the buffer it is read into."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.errors import ClusterLostError
from tiledask.plan.products.regions import Region
from tiledask.tile import as_dtype, ipc

__all__ = ["LoanLostError", "Ticket", "laid_out", "part_of"]


class LoanLostError(ClusterLostError):
    """The owner of a block is gone or has taken it back."""


@dataclass(frozen=True)
class Ticket:
    """Where a lent block lies; with no more than its key and slot, of one that is not there."""

    key: Any
    """Dask's name of it, or its name within the exchange."""
    slot: int
    """Whose worker has it."""
    address: str = ""
    """Address of the owner, as Dask knows it."""
    host: str = ""
    """The machine, and which numbers its processes have: see `this_host`."""
    pid: int = 0
    pointer: int = 0
    """Address of its first element in the owner's memory; 0 if it is not in host memory."""
    shared: ipc.Shared | None = None
    """Where it lies on a GPU, as other processes find it; None if they cannot."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: str = ""
    token_at: int = 0
    token: bytes = b""


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
