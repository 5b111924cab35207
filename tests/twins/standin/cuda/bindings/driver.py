"""The driver's calls for tensor maps."""

from enum import IntEnum
from types import SimpleNamespace


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


cuuint64_t = cuuint32_t = int
CUtensorMapDataType = SimpleNamespace(
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16=6,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32=7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16=9,
)
CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_128B=3)
CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=3)
CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0)


def cuTensorMapEncodeTiled(kind, rank, address, sizes, strides, box, steps, *how):
    import numpy as np
    from cupy.cuda import tensor_maps

    result, made = tensor_maps.packed(kind, rank, address, sizes, strides, box, steps, *how)
    return CUresult(result), SimpleNamespace(opaque=np.frombuffer(made, np.uint64).tolist())
