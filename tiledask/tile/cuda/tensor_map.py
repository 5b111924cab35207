"""What Hopper's copy engine is told of a matrix: where it lies, and the box that a copy takes."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tiledask.errors import KernelError

__all__ = ["MOST", "encode"]

MOST = 2**32
"""Elements in a dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

_TYPES = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}


def encode(
    dtype: Any, address: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> np.ndarray:
    """A CUtensorMap, as an array of one element that a launch passes by value.

    ``sizes`` and ``box`` count elements from the innermost dimension on, ``strides`` bytes from one
    to the next in each further dimension. The box is 128 bytes wide and swizzled (hopper.cuh);
    what lies outside the matrix reads as 0. Raises KernelError for what the driver refuses: an
    address or stride that is no multiple of 16 bytes, a box of more than 256 in a dimension.
    """
    driver = import_module("cuda.bindings.driver")
    kinds = driver.CUtensorMapDataType
    result, made = driver.cuTensorMapEncodeTiled(
        getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[np.dtype(dtype).name]}"),
        len(sizes),
        address,
        [driver.cuuint64_t(x) for x in sizes],
        [driver.cuuint64_t(x) for x in strides],
        [driver.cuuint32_t(x) for x in box],
        [driver.cuuint32_t(1) for _ in sizes],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if result != driver.CUresult.CUDA_SUCCESS:
        raise KernelError(
            f"the driver refuses a tensor map of {tuple(sizes)} elements, strides {tuple(strides)} "
            f"bytes, box {tuple(box)}, at an address that is {address % 16} beyond a multiple of "
            f"16: {result}"
        )
    words = np.array([int(word) for word in made.opaque], np.uint64)
    return words.view(np.dtype([("opaque", "<u8", 16)]))
