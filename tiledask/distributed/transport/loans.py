"""What a worker lends, and what it has read, in each operation that is under way."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiledask.tile import TileCount, ipc

__all__ = ["Facts", "Loans", "Span", "exchanges"]


@dataclass(frozen=True)
class Span:
    """Something that a rank did, on its worker's clock."""

    kind: str
    """"multiply", "read", "wait" (for a panel), or "sum"."""
    start: float
    stop: float


@dataclass(frozen=True)
class Facts:
    """What one slot did in an exchange."""

    reads: tuple[tuple[int, int], ...]
    """(source slot, bytes) of every piece that was read."""
    spans: tuple[Span, ...]
    tiles: tuple[TileCount | None, ...] = ()
    """What the kernel of every task that multiplied loaded; None where that is not counted."""


@dataclass
class Loans:
    """What this worker lends and has read for one operation."""

    lent: dict[str, tuple[Any, np.ndarray]] = field(default_factory=dict)
    """name -> the block and its token."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(source slot, bytes) of every piece that was read."""
    spans: list[Span] = field(default_factory=list)
    reported: int = 0
    """Of the spans, how many the dashboard's page has."""
    tiles: list[TileCount | None] = field(default_factory=list)
    opened: ipc.Opened = field(default_factory=ipc.Opened)
    """What this worker has open of the others' GPU memory."""
    cancelled: threading.Event = field(default_factory=threading.Event)


exchanges: dict[str, Loans] = {}
"""The operations under way in this worker, by name."""
