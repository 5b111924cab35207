"""C = A B + beta C in place: what neither NumPy nor CuPy has a name for, straight from BLAS.

    NumPy   gemm of the BLAS in SciPy, called where SciPy publishes it
    CuPy    cublasGemmEx, which multiplies halves too, also into a float32 C; of many matrices
            cublasGemmStridedBatchedEx

BLAS reads a matrix by columns: each contiguous, ``ld`` elements from one to the next. A matrix
whose rows are contiguous it takes as such a one transposed; a C like that is computed as

    C^T = B^T A^T        with [n, m] = [n, k] @ [k, m] contiguous by columns
"""

import ctypes
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.extras import needed_for
from tiledask.tile.backend import Array, array_namespace, on_device

__all__ = ["batched", "gemm"]

_LARGEST = 2**31 - 1
"""Extents and strides are 32-bit ints in SciPy's BLAS and in cublasGemmEx."""


def gemm(a: Array, b: Array, c: Array, beta: float = 0.0) -> None:
    """None, once c [m, n] holds a @ b + beta c for a [m, k] and b [k, n].

    NumPy arrays are float32 or float64, all three of one type. CuPy arrays may also be float16
    or bfloat16, with c of their type or float32; sums are float32 for both. With a beta of 0 what
    c held does not enter, NaN neither. The interpreter's lock is released, and on a GPU the call
    returns before the work is done.

    Where every matrix has a unit stride nothing is copied: slices, transposes, rows and columns.
    An a or b without one (strides of 0 or below, every second element, elements off their boundary,
    foreign byte order) is copied, and a c without one is computed beside it. Shapes, types and
    overlap were checked before; extents of 2^31 are refused.

    >>> c = np.ones((2, 2))
    >>> gemm(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), c, beta=1.0)
    >>> c.tolist()
    [[2.0, 3.0], [4.0, 5.0]]
    """
    xp = array_namespace(a, b, c)
    if max(*c.shape, a.shape[1]) > _LARGEST:
        raise KernelError(
            f"BLAS counts in 32 bits, extents up to {_LARGEST}, got {a.shape} @ {b.shape}; "
            f"multiply slices of it"
        )
    if _leading(c) is None and _leading(c.T) is not None:
        a, b, c = b.T, a.T, c.T
    if _leading(c) is not None:
        run = _on_cpu if xp is np else _on_gpu
        run(_unit_stride(a, xp), _unit_stride(b, xp), c, 1.0, beta)
        return
    beside = _unit_stride(c, xp)
    gemm(a, b, beside, beta)
    c[...] = beside


def batched(a: Array, b: Array, alpha: float = 1.0) -> Array:
    """alpha a @ b [batch, heads, m, n] in float32, of CuPy's halves [batch, heads, m, k] and
    [batch, heads, k, n] whose matrices have a unit stride: on tensor cores, all heads at a time."""
    xp = array_namespace(a, b)
    with on_device(a):
        c = (xp.empty if a.size else xp.zeros)((*a.shape[:3], b.shape[3]), np.float32)
    for x, y, z in zip(b, a, c, strict=True) if c.size and a.size else ():
        _on_gpu(x.swapaxes(1, 2), y.swapaxes(1, 2), z.swapaxes(1, 2), alpha, 0.0)
    return c


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


def _unit_stride(x: Array, xp: ModuleType) -> Array:
    if _leading(x) is not None or _leading(x.T) is not None:
        return x
    with on_device(x):
        return xp.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _lies(x: Array) -> tuple[bool, int | None]:
    """(whether BLAS takes x transposed, elements from one column of that to the next)."""
    turned = _leading(x) is None
    return turned, _leading(x.T if turned else x)


# -- the libraries: c's columns are contiguous -----------------------------------------------------


def _on_cpu(a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
    call, integer, real = _blas("sgemm" if c.itemsize == 4 else "dgemm")
    (turn_a, lda), (turn_b, ldb), ldc = _lies(a), _lies(b), _leading(c)
    turns = (b"T" if turned else b"N" for turned in (turn_a, turn_b))
    m, n, k, *steps = (
        ctypes.byref(integer(each)) for each in (*c.shape, b.shape[0], lda, ldb, ldc)
    )
    by, plus = (ctypes.byref(real(each)) for each in (alpha, beta))
    x, y, z = (each.ctypes.data for each in (a, b, c))
    call(*turns, m, n, k, by, x, steps[0], y, steps[1], plus, z, steps[2])


@cache
def _blas(name: str) -> tuple[Any, type, type]:
    """sgemm or dgemm of SciPy's BLAS, to be called without the interpreter's lock; its types.

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
    return ctypes.CFUNCTYPE(None, *types)(address), integer, real


def _capsule(what: str, result: type, *arguments: type) -> Any:
    """PyCapsule_Get... of Python's C interface."""
    prototype = ctypes.PYFUNCTYPE(result, ctypes.py_object, *arguments)
    return prototype((f"PyCapsule_Get{what}", ctypes.pythonapi))


_CUDA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType_t, by the names of the element types (CUDA's library_types.h)."""


def _on_gpu(a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
    """A product, or as many as there are heads: [heads, m, k] by [heads, k, n]."""
    cuda, double, heads = array_namespace(c).cuda, c.dtype.name == "float64", c.shape[:-2]
    # in the type that is summed in; the call reads them on the host before it returns
    scalars = np.array([alpha, beta], np.float64 if double else np.float32)
    lies = [_lies(each[0] if heads else each) for each in (a, b, c)]
    x, y, z = (
        (each.data.ptr, _CUDA_TYPES[each.dtype.name], step)
        + ((each.strides[0] // each.itemsize,) if heads else ())
        for each, (_, step) in zip((a, b, c), lies, strict=True)
    )
    by, plus = (scalars[i:].ctypes.data for i in (0, 1))
    with on_device(c):
        (cuda.cublas.gemmStridedBatchedEx if heads else cuda.cublas.gemmEx)(
            cuda.device.get_cublas_handle(),
            *(int(turned) for turned, _ in lies[:2]),
            *(*c.shape[-2:], a.shape[-1], by, *x, *y, plus, *z, *heads),
            cuda.cublas.CUBLAS_COMPUTE_64F if double else cuda.cublas.CUBLAS_COMPUTE_32F,
            cuda.cublas.CUBLAS_GEMM_DEFAULT,
        )
