"""Matrices as a kernel sees them: strides, boundaries, and copies of those that it cannot read."""

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from tiledask.tile.backend import Array, array_namespace, name_of, on_device

__all__ = ["MatrixLayout", "address_of", "bits", "layout", "padded"]


class MatrixLayout(NamedTuple):
    """How a matrix [rows, columns] lies in memory."""

    dtype: str
    itemsize: int
    rows: int
    columns: int
    row: int  # Elements from one row to the next
    column: int  # Elements from one column to the next
    boundary: int
    """The largest power of two of bytes, up to 16, on which every line of elements starts."""

    @property
    def by_rows(self) -> bool:
        """Whether the elements of a row are neighbours."""
        return self.column == 1

    @property
    def by_columns(self) -> bool:
        """Whether the elements of a column are."""
        return self.row == 1


def layout(x: Array) -> MatrixLayout:
    """How ``x`` [rows, columns] lies.

    >>> lies = layout(np.zeros((5, 7), np.float32)[:, ::2])
    >>> lies.row, lies.column, lies.by_rows
    (7, 2, False)
    """
    return _layout(x.dtype, x.shape, x.strides, address_of(x) % 16)


@lru_cache(4096)
def _layout(
    dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...], address: int
) -> MatrixLayout:
    size = dtype.itemsize
    (rows, columns), (row, column) = shape, (stride // size for stride in strides)
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
    return MatrixLayout(
        name_of(dtype), size, rows, columns, row, column, gcd(address, 16, across * size)
    )


def padded(x: Array) -> Array:
    """``x`` with neighbours along its rows or columns, and every such line on a boundary of 16
    bytes, as copies by 16 bytes need it: itself, or a copy with up to 15 bytes more a line."""
    lies = layout(x)
    turned = lies.by_columns and not lies.by_rows
    if lies.boundary == 16 and (lies.by_rows or turned):
        return x
    (lines, length), each = x.T.shape if turned else x.shape, 16 // lies.itemsize
    with on_device(x):
        wide = array_namespace(x).empty((lines, -(-length // each) * each), x.dtype)
        copied = wide[:, :length].T if turned else wide[:, :length]
        bits(copied)[...] = bits(x)
    return copied


def bits(x: Array) -> Array:
    """The elements of ``x`` as integers of their size: halves are not copied, assigned, compared
    or broadcast as numbers by every array library."""
    return x.view(f"u{x.itemsize}")


def address_of(x: Array) -> int:
    """Where the first element of ``x`` lies, in the host's memory or the device's."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
