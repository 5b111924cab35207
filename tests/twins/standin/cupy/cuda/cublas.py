"""cuBLAS's products, from pointers and leading dimensions."""

import ctypes

import numpy as np

from cupy import _machine
from cupy.cuda import stream

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 = 64, 68, 77
CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_COMPUTE_32F_FAST_16BF, CUBLAS_COMPUTE_64F = 74, 75, 70
CUBLAS_GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT_TENSOR_OP = -1, 99
CUBLAS_POINTER_MODE_HOST = 0
CUBLAS_DEFAULT_MATH = CUBLAS_TF32_TENSOR_OP_MATH = 0
_TYPES = {0: "float", 1: "float64", 2: "f16", 14: "bf16"}


class CUBLASError(RuntimeError):
    pass


def getVersion(handle):
    return 130000


def setMathMode(handle, mode):
    pass


def getMathMode(handle):
    return 0


def setStream(handle, number):
    pass


def setPointerMode(handle, mode):
    pass


def gemmEx(
    handle,
    turn_a,
    turn_b,
    m,
    n,
    k,
    alpha,
    a,
    kind_a,
    lda,
    b,
    kind_b,
    ldb,
    beta,
    c,
    kind_c,
    ldc,
    compute,
    algorithm,
):
    gemmStridedBatchedEx(
        handle,
        turn_a,
        turn_b,
        m,
        n,
        k,
        alpha,
        a,
        kind_a,
        lda,
        0,
        b,
        kind_b,
        ldb,
        0,
        beta,
        c,
        kind_c,
        ldc,
        0,
        1,
        compute,
        algorithm,
    )


def gemmStridedBatchedEx(
    handle,
    turn_a,
    turn_b,
    m,
    n,
    k,
    alpha,
    a,
    kind_a,
    lda,
    step_a,
    b,
    kind_b,
    ldb,
    step_b,
    beta,
    c,
    kind_c,
    ldc,
    step_c,
    batch,
    compute,
    algorithm,
):
    from cupy.cuda.function import _tf32, dtype_of, lies

    if handle != 0xB1A5_0000 + _machine.device().index:
        raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED: a handle of another device")
    if lda < max(1, k if turn_a else m) or ldb < max(1, n if turn_b else k) or ldc < max(1, m):
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE: a leading dimension is too small")
    if kind_a != kind_b or (kind_c != kind_a and not (kind_a in (2, 14) and kind_c == 0)):
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED: these types do not go together")
    if (compute == CUBLAS_COMPUTE_64F) != (kind_c == 1):
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED: the type of the sums")
    stream.settle()
    wide = np.float64 if compute == CUBLAS_COMPUTE_64F else np.float32
    real = ctypes.c_double if wide is np.float64 else ctypes.c_float
    alpha, beta = (wide(real.from_address(x).value) for x in (alpha, beta))

    def operand(pointer, kind, rows, columns, ld, step, turn):
        shape, strides = ((columns, rows), (ld, 1)) if not turn else ((rows, columns), (ld, 1))
        found = lies(pointer, dtype_of(_TYPES[kind]), (batch, *shape), (step, *strides))
        return found if turn else found.swapaxes(-1, -2)

    a = operand(a, kind_a, m, k, lda, step_a, turn_a)
    b = operand(b, kind_b, k, n, ldb, step_b, turn_b)
    c = operand(c, kind_c, m, n, ldc, step_c, 0)
    with np.errstate(all="ignore"):
        for z in range(batch):
            x, y = a[z].astype(wide), b[z].astype(wide)
            if compute == CUBLAS_COMPUTE_32F_FAST_TF32:
                x, y = _tf32(x), _tf32(y)
            total = alpha * (x @ y)
            c[z] = total + beta * c[z].astype(wide) if beta else total
