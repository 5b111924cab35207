"""Matrices as a kernel sees them: strides, boundaries, and copies of those that it cannot read; and
tensor maps, as Hopper's copy engine sees them."""

import ctypes
from functools import cache, lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace, name_of, on_device

__all__ = ["MAP", "MatrixLayout", "address_of", "bits", "layout", "padded", "tensor_map"]


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


def padded(x: Array, whole: bool = False) -> Array:
    """``x`` with neighbours along its rows or columns, and every such line on a boundary of 16
    bytes, as copies by 16 bytes need it: itself, or a copy with up to 15 bytes more a line.

    ``whole``: lines end on such boundaries too, or in a copy: up to there it may be written."""
    lies = layout(x)
    turned = lies.row == 1 and not lies.by_rows
    (lines, length), each = x.T.shape if turned else x.shape, 16 // lies.itemsize
    if lies.boundary == 16 and (lies.by_rows or turned) and not (whole and length % each):
        return x
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


# -- tensor maps ---------------------------------------------------------------------------------

MAP = np.dtype([("opaque", "<u8", 16)])
"""CUtensorMap of cuda.h."""

_BOUNDARY = 64
_BFLOAT16 = 9
"""Of CUtensorMapDataType of cuda.h."""
_HOW = 0, 3, 3, 0
"""Of cuda.h: not interleaved, swizzled by 128 bytes, 256 bytes promoted to L2, 0 out of bounds."""
_LIBRARY = "libcuda.so.1"


@lru_cache(1024)
def tensor_map(
    address: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> np.ndarray:
    """A CUtensorMap of bfloat16, as an array of one element that a launch passes by value.

    ``sizes`` and ``box`` count elements from the innermost dimension on, ``strides`` bytes from one
    to the next in each further dimension. The box, which a copy takes, is 128 bytes wide and
    swizzled (hopper.cuh); what lies outside the matrix reads as 0. A map holds these numbers and
    nothing of the memory there: the same arguments get the same map. The driver makes it, called
    where its library publishes the function: it wants room for the map on a boundary of 64 bytes,
    which the bindings' own object does not have.
    """
    driver, rank = _driver(), len(sizes)
    room = np.zeros(MAP.itemsize + _BOUNDARY, np.uint8)
    begin = -room.ctypes.data % _BOUNDARY
    made = room[begin : begin + MAP.itemsize].view(MAP)
    matrix = (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * (rank - 1))(*strides)
    taken = (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank)
    result = driver.cuTensorMapEncodeTiled(
        made.ctypes.data, _BFLOAT16, rank, address, *matrix, *taken, *_HOW
    )
    if result:
        raise KernelError(
            f"the driver refuses (error {result}) a tensor map of {sizes} elements, strides "
            f"{strides} bytes, box {box}, at {address:#x}: addresses and strides are multiples of "
            f"16 bytes, strides below 2^40"
        )
    made.setflags(write=False)  # others get it too
    return made


@cache
def _driver() -> ctypes.CDLL:
    """The driver's library, its functions declared as in cuda.h."""
    number, address, kind = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int
    arrays = map(ctypes.POINTER, (ctypes.c_uint64, ctypes.c_uint64, number, number))
    types: list[Any] = [address, kind, number, address, *arrays, *[kind] * 4]
    try:
        found = ctypes.CDLL(_LIBRARY)
        found.cuTensorMapEncodeTiled.argtypes = types
    except (OSError, AttributeError) as error:
        raise KernelError(
            f"the NVIDIA driver's library {_LIBRARY} does not make tensor maps ({error}); install "
            f"a driver of CUDA 12.0 (525) or later, or use kernel='mma_multistage'"
        ) from None
    return found
