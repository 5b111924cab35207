"""Tensor maps: a matrix as Hopper's copy engine sees it, and the box that a copy takes.

The driver makes it, called where its library publishes the function: it wants room for the map on a
boundary of 64 bytes, which the bindings' own object does not have.
"""

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np

from tiledask.errors import KernelError

__all__ = ["MAP", "encode"]

MAP = np.dtype([("opaque", "<u8", 16)])
"""CUtensorMap of cuda.h."""

_BOUNDARY = 64
_TYPES = {"float16": 6, "bfloat16": 9}
"""CUtensorMapDataType of cuda.h."""
_HOW = 0, 3, 3, 0
"""Of cuda.h: not interleaved, swizzled by 128 bytes, 256 bytes promoted to L2, 0 out of bounds."""
_LIBRARY = "libcuda.so.1"


@lru_cache(1024)
def encode(
    dtype: str, address: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> np.ndarray:
    """A CUtensorMap, as an array of one element that a launch passes by value.

    ``sizes`` and ``box`` count elements from the innermost dimension on, ``strides`` bytes from one
    to the next in each further dimension. The box is 128 bytes wide and swizzled (hopper.cuh);
    what lies outside the matrix reads as 0. A map holds these numbers and nothing of the memory
    there: the same arguments get the same map.
    """
    driver, rank = _driver(), len(sizes)
    room = np.zeros(MAP.itemsize + _BOUNDARY, np.uint8)
    begin = -room.ctypes.data % _BOUNDARY
    made = room[begin : begin + MAP.itemsize].view(MAP)
    matrix = (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * (rank - 1))(*strides)
    taken = (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank)
    result = driver.cuTensorMapEncodeTiled(
        made.ctypes.data, _TYPES[dtype], rank, address, *matrix, *taken, *_HOW
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
