"""Matrices as a kernel sees them: strides, boundaries, and copies of those that it cannot read."""

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from tiledask.tile.backend import Array, array_namespace, name_of, on_device

__all__ = [
    "Matrix",
    "MatrixLayout",
    "address_of",
    "bits",
    "matrix",
    "padded",
    "readable",
]


class MatrixLayout(NamedTuple):
    """How a matrix [rows, columns] lies in memory."""

    dtype: str
    itemsize: int
    rows: int
    columns: int
    row: int
    """Elements from one row to the next; so `column`."""
    column: int
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
    def turned(self) -> "MatrixLayout":
        """The layout of the transposed matrix."""
        return self._replace(rows=self.columns, columns=self.rows, row=self.column, column=self.row)

    @property
    def strides(self) -> tuple[np.int64, np.int64]:
        """(row, column) for a kernel's signature."""
        return np.int64(self.row), np.int64(self.column)


class Matrix(NamedTuple):
    """An array as a kernel sees it."""

    array: Array
    layout: MatrixLayout

    @property
    def turned(self) -> "Matrix":
        """The transposed matrix; the same elements."""
        return Matrix(self.array.T, self.layout.turned)


def matrix(x: Array) -> Matrix:
    """``x`` [rows, columns] as a kernel sees it; nothing is copied.

    >>> lies = matrix(np.zeros((5, 7), np.float32)[:, ::2]).layout
    >>> lies.row, lies.column, lies.by_rows
    (7, 2, False)
    """
    return Matrix(x, _layout(x.dtype, x.shape, x.strides, address_of(x) % 16))


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
    boundary = gcd(address, 16, across * size)
    return MatrixLayout(name_of(dtype), size, rows, columns, row, column, boundary)


def readable(x: Array) -> Matrix:
    """``x`` with neighbours along its rows or its columns: itself, or else a copy."""
    found = matrix(x)
    if found.layout.by_rows or found.layout.by_columns:
        return found
    with on_device(x):
        return matrix(array_namespace(x).array(bits(x), order="C").view(x.dtype))


def padded(found: Matrix) -> Matrix:
    """``found`` with every line on a boundary of 16 bytes, as bulk copies need it.

    Itself if it is so already, else a copy with up to 15 bytes more a line.
    """
    x, lies = found
    if lies.boundary == 16:
        return found
    xp, each = array_namespace(x), 16 // lies.itemsize
    lines, length = (lies.rows, lies.columns) if lies.by_rows else (lies.columns, lies.rows)
    width = -(-length // each) * each
    with on_device(x):
        room = xp.empty((lines, width), x.dtype)
        view = room[:, :length] if lies.by_rows else room[:, :length].T
        bits(view)[...] = bits(x)
    row, column = (width, 1) if lies.by_rows else (1, width)
    return Matrix(view, lies._replace(row=row, column=column, boundary=16))


def bits(x: Array) -> Array:
    """The elements of ``x`` as integers of their size: halves are not copied, assigned, compared
    or broadcast as numbers by every array library."""
    return x.view(f"u{x.itemsize}")


def address_of(x: Array) -> int:
    """Where the first element of ``x`` lies, in the host's memory or the device's."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
