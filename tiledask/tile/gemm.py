"""C = alpha A B + beta C in place: what neither NumPy nor CuPy has a name for, straight from BLAS.

    NumPy   gemm of the BLAS in SciPy, called where SciPy publishes it
    CuPy    cublasGemmEx, which multiplies halves too, also into a float32 C

BLAS reads a matrix by columns: each contiguous, ``ld`` elements from one to the next. A matrix
whose rows are contiguous it takes as such a one transposed; a C like that is computed as

    C^T = B^T A^T        with [n, m] = [n, k] @ [k, m] contiguous by columns
"""

import ctypes
import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.extras import needed_for
from tiledask.tile.backend import Array, array_namespace, on_device

__all__ = ["PANEL_ROWS", "gemm"]

PANEL_ROWS = 512
"""Rows of a C without a unit stride that `gemm` computes at a time, in a scratch of that size."""

_LARGEST = 2**31 - 1
"""Extents and strides are 32-bit ints in SciPy's BLAS and in cublasGemmEx."""


class _How(NamedTuple):
    alpha: float
    beta: float
    tf32: bool


def gemm(
    a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, tf32: bool = False
) -> None:
    """None, once c [m, n] holds alpha a @ b + beta c for a [m, k] and b [k, n].

    NumPy arrays are float32 or float64, all three of one type. CuPy arrays may also be float16
    or bfloat16, with c of their type or float32; sums are float32 for both. With a beta of 0 what
    c held does not enter, NaN neither. ``tf32`` lets cuBLAS round float32 operands to 10 bits of
    mantissa, as CUPY_TF32=1 does. The interpreter's lock is released, and on a GPU the call
    returns before the work is done.

    Any strides will do, and where every matrix has a unit stride nothing is copied: slices,
    transposes, rows and columns. An a or b without one (a stride of 0 or below in each direction,
    every second element, elements off their boundary, foreign byte order) is copied whole, and a
    c without one is computed `PANEL_ROWS` rows at a time. c must not overlap a or b.

    Shapes and types were checked before. Raises KernelError for extents of 2^31 or more.

    >>> c = np.ones((2, 2))
    >>> gemm(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), c, alpha=2.0, beta=1.0)
    >>> c.tolist()
    [[3.0, 5.0], [7.0, 9.0]]
    """
    xp = array_namespace(a, b, c)
    if max(*c.shape, a.shape[1]) > _LARGEST:
        raise KernelError(
            f"BLAS counts in 32 bits, extents up to {_LARGEST}, got {a.shape} @ {b.shape}; "
            f"multiply slices of it"
        )
    how = _How(alpha, beta, tf32)
    if 0 in (*a.shape, *b.shape):
        c[...] = beta * c if beta else 0
    elif _leading(c) is not None:
        _by_columns(a, b, c, how, xp)
    elif _leading(c.T) is not None:
        _by_columns(b.T, a.T, c.T, how, xp)
    else:
        _through_scratch(a, b, c, how, xp)


def _leading(x: Array) -> int | None:
    """Elements from one column of x to the next as BLAS wants it, None if it cannot take x.

    With a single row or column there is a stride that nobody follows, and it may be anything.
    """
    (rows, columns), (down, across) = x.shape, x.strides
    least: int = max(1, rows)
    if isinstance(x, np.ndarray) and not (x.flags.aligned and x.dtype.isnative):
        return None
    if rows > 1 and down != x.itemsize:
        return None
    if columns <= 1:
        return least
    ld: int = across // x.itemsize
    return ld if not across % x.itemsize and least <= ld <= _LARGEST else None


def _by_columns(a: Array, b: Array, c: Array, how: _How, xp: ModuleType) -> None:
    """The product into a c whose columns are contiguous."""
    a, b = _unit_stride(a, xp), _unit_stride(b, xp)
    if xp is not np:
        _gpu(a, b, c, how)
    else:
        _gemm(a, b, c, how)


def _through_scratch(a: Array, b: Array, c: Array, how: _How, xp: ModuleType) -> None:
    with on_device(c):
        scratch = xp.empty((min(PANEL_ROWS, c.shape[0]), c.shape[1]), c.dtype)
    b = _unit_stride(b, xp)
    for i in range(0, c.shape[0], PANEL_ROWS):
        panel = c[i : i + PANEL_ROWS]
        part = scratch[: len(panel)]
        if how.beta:
            part[...] = panel
        gemm(a[i : i + PANEL_ROWS], b, part, how.alpha, how.beta, tf32=how.tf32)
        panel[...] = part


def _unit_stride(x: Array, xp: ModuleType) -> Array:
    if _leading(x) is not None or _leading(x.T) is not None:
        return x
    with on_device(x):
        return xp.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _flag(x: Array) -> tuple[bool, int]:
    """Whether BLAS is to transpose x, and the leading dimension."""
    if (ld := _leading(x)) is not None:
        return False, ld
    ld = _leading(x.T)
    assert ld is not None  # else `_unit_stride` has copied it
    return True, ld


# -- NumPy ---------------------------------------------------------------------------------------


class _Function(NamedTuple):
    call: Any
    integer: type
    real: type


def _gemm(a: np.ndarray, b: np.ndarray, c: np.ndarray, how: _How) -> None:
    call, integer, real = _blas("sgemm" if c.itemsize == 4 else "dgemm")
    (turn_a, step_a), (turn_b, step_b) = _flag(a), _flag(b)
    sizes = (*c.shape, a.shape[1], step_a, step_b, _leading(c))
    m, n, k, lda, ldb, ldc = (ctypes.byref(integer(x)) for x in sizes)
    alpha, beta = (ctypes.byref(real(x)) for x in (how.alpha, how.beta))
    call(
        b"T" if turn_a else b"N",
        b"T" if turn_b else b"N",
        m,
        n,
        k,
        alpha,
        a.ctypes.data,
        lda,
        b.ctypes.data,
        ldb,
        beta,
        c.ctypes.data,
        ldc,
    )


@cache
def _blas(name: str) -> _Function:
    """sgemm or dgemm of SciPy's BLAS, to be called without the interpreter's lock.

    SciPy publishes the addresses for other compiled modules, each with its C signature, which says
    in what it counts: ``void (char *, char *, int *, ...)``.
    """
    with needed_for("a product that adds to what is there"):
        capsule = import_module("scipy.linalg.cython_blas").__pyx_capi__[name]
    signature = _capsule("Name", ctypes.c_char_p)(capsule)
    address = _capsule("Pointer", ctypes.c_void_p, ctypes.c_char_p)(capsule, signature)
    types = (*[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 11)
    integer = ctypes.c_int64 if b"int64_t *" in signature else ctypes.c_int
    real = ctypes.c_float if name.startswith("s") else ctypes.c_double
    return _Function(ctypes.CFUNCTYPE(None, *types)(address), integer, real)


def _capsule(what: str, result: type, *arguments: type) -> Any:
    """PyCapsule_Get... of Python's C interface."""
    prototype = ctypes.PYFUNCTYPE(result, ctypes.py_object, *arguments)
    return prototype((f"PyCapsule_Get{what}", ctypes.pythonapi))


# -- CuPy ----------------------------------------------------------------------------------------

_CUDA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType_t, by the names of the element types (CUDA's library_types.h)."""


def _gpu(a: Array, b: Array, c: Array, how: _How) -> None:
    """The product; c's columns are contiguous."""
    cuda = array_namespace(c).cuda
    factors = _factors(c, how)  # kept until the call has read them
    alpha, beta = (factor.ctypes.data for factor in factors)
    (turn_a, lda), (turn_b, ldb) = _flag(a), _flag(b)
    x, y, z = (
        (array.data.ptr, _CUDA_TYPES[array.dtype.name], leading)
        for array, leading in ((a, lda), (b, ldb), (c, _leading(c)))
    )
    with on_device(c):
        cuda.cublas.gemmEx(
            cuda.device.get_cublas_handle(),
            int(turn_a),
            int(turn_b),
            *(*c.shape, a.shape[1], alpha, *x, *y, beta, *z),
            _compute_type(a.dtype.name, cuda.cublas, how.tf32),
            cuda.cublas.CUBLAS_GEMM_DEFAULT,
        )


def _factors(c: Array, how: _How) -> tuple[np.ndarray, np.ndarray]:
    """alpha and beta in the type that is summed in; read on the host before a call returns."""
    dtype = np.float64 if c.dtype.name == "float64" else np.float32
    return np.array(how.alpha, dtype), np.array(how.beta, dtype)


def _compute_type(name: str, cublas: Any, tf32: bool = False) -> int:
    found: int = cublas.CUBLAS_COMPUTE_32F
    if name == "float64":
        found = cublas.CUBLAS_COMPUTE_64F
    # the variable as cupy.matmul reads it
    elif name == "float32" and (tf32 or os.environ.get("CUPY_TF32") == "1"):
        found = cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    return found
