"""Where a lent block lies, and how a part of it lies there and in the buffer it is read into."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ClusterLostError
from tiledask.plan.products.regions import Region
from tiledask.tile import as_dtype, ipc

__all__ = ["LoanLostError", "PartLayout", "Ticket", "laid_out", "layout_of"]


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


class PartLayout(NamedTuple):
    """How a part of a block lies in its owner's memory, and so in a buffer once it was copied."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions from the one of the longest stride to the one of the shortest."""
    part: ipc.Stretches


def layout_of(ends: Region, strides: tuple[int, ...], itemsize: int) -> PartLayout:
    shape = tuple(stop - start for start, stop in ends)
    base = sum(start * step for (start, _), step in zip(ends, strides, strict=True))
    order = sorted(range(len(shape)), key=lambda d: -strides[d])  # stable: C order stays
    length, rest = itemsize, list(order)
    while rest and (strides[rest[-1]] == length or shape[rest[-1]] == 1):
        length *= shape[rest.pop()]
    rows, pitch = (shape[rest[-1]], strides[rest.pop()]) if rest else (1, length)
    starts = np.array([base], np.int64)
    for d in rest:
        starts = (starts[:, None] + np.arange(shape[d]) * strides[d]).ravel()
    return PartLayout(shape, tuple(order), ipc.Stretches(starts, rows, pitch, length))


def laid_out(ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part whose bytes were copied into the start of ``buffer``."""
    dtype = as_dtype(ticket.dtype)
    shape, order, part = layout_of(ends, ticket.strides, dtype.itemsize)
    flat = buffer[: part.nbytes].view(dtype).reshape([shape[d] for d in order])
    return flat.transpose([order.index(d) for d in range(len(order))])
