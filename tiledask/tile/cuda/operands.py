"""What a kernel is told of its matrices: where elements lie, and on which boundaries."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tiledask.tile.backend import array_namespace, on_device

__all__ = ["Matrix", "address_of", "matrix", "padded", "readable"]


@dataclass(frozen=True)
class Matrix:
    """A matrix [rows, columns], or a batch of them [batch, rows, columns], as a kernel sees it."""

    array: Any
    batches: int
    rows: int
    columns: int
    row: int
    """Elements from one row to the next; so `column`, and `batch`, 0 where all share one matrix."""
    column: int
    batch: int
    boundary: int
    """The largest power of two of bytes, up to 16, on which every line of elements starts."""

    @property
    def by_rows(self) -> bool:
        """Whether the elements of a row are neighbours."""
        return self.column == 1

    @property
    def by_columns(self) -> bool:
        return self.row == 1

    @property
    def turned(self) -> "Matrix":
        """The transposed matrix; the same elements."""
        return Matrix(
            self.array.swapaxes(-1, -2), self.batches, self.columns, self.rows, self.column,
            self.row, self.batch, self.boundary,
        )  # fmt: skip

    def part(self, first: int) -> Any:
        """The array from matrix ``first`` of the batch on."""
        return self.array[first:] if self.batch else self.array

    @property
    def strides(self) -> tuple[np.int64, np.int64, np.int64]:
        """(row, column, batch) for a kernel's signature."""
        return np.int64(self.row), np.int64(self.column), np.int64(self.batch)


def matrix(x: Any) -> Matrix:
    """``x`` [rows, columns] or [batch, rows, columns] as a kernel sees it; nothing is copied.

    >>> m = matrix(np.zeros((5, 7), np.float32)[:, ::2])
    >>> m.row, m.column, m.batch, m.by_rows
    (7, 2, 0, False)
    """
    size = x.itemsize
    batches, (rows, columns) = (x.shape[0] if x.ndim == 3 else 1), x.shape[-2:]
    row, column = (stride // size for stride in x.strides[-2:])
    batch = x.strides[0] // size if x.ndim == 3 and batches > 1 else 0
    if columns == 1 and row != 1:
        column = 1
    elif rows == 1 and column != 1:
        row = 1
    # nobody follows the stride of a single line, but addresses beyond it are formed with it
    apart = -(-max(rows, columns) * size // 16) * 16 // size
    if rows == 1 and column == 1:
        row = apart
    elif columns == 1 and row == 1:
        column = apart
    across = row if column == 1 else column
    return Matrix(
        x, batches, rows, columns, row, column, batch,
        gcd(address_of(x), 16, across * size, batch * size),
    )  # fmt: skip


def readable(x: Any) -> Matrix:
    """``x`` with neighbours along its rows or its columns: itself, or else a copy."""
    found = matrix(x)
    if found.by_rows or found.by_columns:
        return found
    with on_device(x):
        return matrix(array_namespace(x).array(x, order="C"))


def padded(found: Matrix) -> Matrix:
    """The same elements with every line on a boundary of 16 bytes, as bulk copies need it.

    Itself if it is so already, else a copy with up to 15 bytes more a line.
    """
    if found.boundary == 16:
        return found
    x = found.array
    xp, each = array_namespace(x), 16 // x.itemsize
    lines, length = (found.rows, found.columns) if found.by_rows else (found.columns, found.rows)
    width = -(-length // each) * each
    shared = found.batch == 0
    with on_device(x):
        room = xp.empty((1 if shared else found.batches, lines, width), x.dtype)
        view = room[..., :length] if found.by_rows else room[..., :length].swapaxes(-1, -2)
        view[...] = x[:1] if shared and x.ndim == 3 else x
    copied = matrix(view[0] if shared else view)
    return Matrix(
        copied.array, found.batches, found.rows, found.columns,
        width if found.by_rows else 1, 1 if found.by_rows else width, copied.batch, 16,
    )  # fmt: skip


def address_of(x: Any) -> int:
    """Where the first element of ``x`` lies, in the host's memory or the device's."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
