"""CuPy without a GPU: the parts that tiledask uses, obeying CuPy's rules, computed by NumPy.

Put the folder above on PYTHONPATH. What it models, and what not: README.md there.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from cupy import _array, cuda, random
from cupy._array import array, asarray, asnumpy, from_dlpack, lifted, matmul, ndarray
from cupy._machine import StandInFault
from cupy.cuda import Device, Event, Stream, get_elapsed_time
from cupy.cuda import tensor_maps as _tensor_maps
from cupy.cuda.function import RawKernel, RawModule
from cupy.cuda.memory import OutOfMemoryError
from cupy.cuda.memory import _default as _pool
from cupy.cuda.memory import _pinned as _pinned_pool

_tensor_maps.install()

__version__ = "14.2.0"
FUNCTIONS = frozenset(Path(__file__).with_name("names.txt").read_text().split())
"""What CuPy 14.2 has of NumPy's names."""
__all__ = [
    "Device",
    "Event",
    "OutOfMemoryError",
    "RawKernel",
    "RawModule",
    "StandInFault",
    "Stream",
    "array",
    "asarray",
    "asnumpy",
    "cuda",
    "from_dlpack",
    "get_elapsed_time",
    "matmul",
    "ndarray",
    "random",
]

asanyarray = asarray
_core = SimpleNamespace(core=_array, ndarray=ndarray)
exceptions = SimpleNamespace(PerformanceWarning=_array.PerformanceWarning)
_util = exceptions


def empty(shape, dtype=float, order="C"):
    cuda.runtime.getDevice()
    return ndarray(shape, dtype, order=order)


def zeros(shape, dtype=float, order="C"):
    made = empty(shape, dtype, order)
    made.fill(0)
    return made


def ones(shape, dtype=float, order="C"):
    return full(shape, 1, dtype, order)


def full(shape, fill_value, dtype=None, order="C"):
    if dtype is None:
        given = fill_value.dtype if hasattr(fill_value, "dtype") else np.asarray(fill_value).dtype
        dtype = given
    made = empty(shape, dtype, order)
    made[...] = fill_value
    return made


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    like = (
        np.lib.stride_tricks.as_strided(
            np.empty(0, prototype.dtype), prototype.shape, prototype.strides
        )
        if isinstance(prototype, ndarray) and prototype.size
        else np.empty(prototype.shape, prototype.dtype)
    )
    if shape is not None:
        return empty(shape, dtype or prototype.dtype)
    dtype = np.dtype(dtype or prototype.dtype)
    order = (
        np.argsort([-abs(s) for s in like.strides], kind="stable")
        if order in "KA"
        else range(like.ndim)
    )
    strides, step = [0] * like.ndim, dtype.itemsize
    for i in reversed([*order]):
        strides[i], step = step, step * like.shape[i]
    made = empty(like.shape, dtype)
    if made.size:
        made._place(made.shape, dtype, tuple(strides))
    return made


def zeros_like(a, dtype=None, order="K", subok=None, shape=None):
    made = empty_like(a, dtype, order, subok, shape)
    made.fill(0)
    return made


def ones_like(a, dtype=None, order="K", subok=None, shape=None):
    made = empty_like(a, dtype, order, subok, shape)
    made.fill(1)
    return made


def full_like(a, fill_value, dtype=None, order="K", subok=None, shape=None):
    made = empty_like(a, dtype, order, subok, shape)
    made[...] = fill_value
    return made


def arange(*args, dtype=None):
    return _array.new(np.arange(*args, dtype=dtype))


def ascontiguousarray(a, dtype=None):
    """Of one dimension at least, as NumPy's and CuPy's."""
    made = array(a, dtype, copy=False, order="C")
    return made if made.ndim else made.reshape(1)


def asfortranarray(a, dtype=None):
    return array(a, dtype, copy=False, order="F")


def copyto(dst, src, casting="same_kind", where=None):
    if where is None and isinstance(src, ndarray) and src.dtype == dst.dtype:
        with dst.device:
            dst[...] = asarray(src)
        return
    dst[...] = src if where is None else lifted(np.where)(where, src, dst)


def where(condition, x=None, y=None):
    """CuPy's has no bfloat16, and takes float32 for it."""
    if x is None and y is None:
        return lifted(np.where)(condition)
    x, y = (z.astype("f4") if _is_bfloat16(z) else z for z in (x, y))
    return lifted(np.where)(condition, x, y)


def _is_bfloat16(x):
    return getattr(getattr(x, "dtype", None), "name", "") == "bfloat16"


def may_share_memory(a, b, max_work=None):
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)):
        return False
    return np.may_share_memory(a._view, b._view)


def shares_memory(a, b, max_work=None):
    if not (isinstance(a, ndarray) and isinstance(b, ndarray)):
        return False
    return np.shares_memory(a._view, b._view)


def get_array_module(*args):
    import cupy

    return cupy if any(isinstance(x, ndarray) for x in args) else np


def get_default_memory_pool():
    return _pool


def get_default_pinned_memory_pool():
    return _pinned_pool


def is_available():
    return cuda.is_available()


lib = SimpleNamespace(
    stride_tricks=SimpleNamespace(
        as_strided=lambda x, shape=None, strides=None: _array._as_view(
            np.lib.stride_tricks.as_strided(x._view, shape, strides), x
        ),
        sliding_window_view=lifted(np.lib.stride_tricks.sliding_window_view),
    )
)
linalg = SimpleNamespace(
    norm=lifted(np.linalg.norm),
    inv=lifted(np.linalg.inv),
    qr=lifted(np.linalg.qr),
    svd=lifted(np.linalg.svd),
    solve=lifted(np.linalg.solve),
    det=lifted(np.linalg.det),
    eigh=lifted(np.linalg.eigh),
    cholesky=lifted(np.linalg.cholesky),
)


class ufunc:
    """One of NumPy's, for arrays of devices; it knows no ``where``."""

    def __init__(self, own):
        self._own, self.__name__ = own, own.__name__
        self.nin, self.nout = own.nin, own.nout
        self._call = lifted(own)
        self.reduce, self.outer = lifted(own.reduce), lifted(own.outer)
        self.accumulate = lifted(own.accumulate)

    def __call__(self, *args, **options):
        if unknown := options.keys() - {"out", "dtype", "casting"}:
            raise TypeError(f"Wrong arguments {sorted(unknown)}")
        if len(args) > self.nin:
            options["out"], args = args[self.nin :], args[: self.nin]
            if len(options["out"]) == 1:
                (options["out"],) = options["out"]
        return self._call(*args, **options)

    def at(self, a, indices, b=None):
        if self.__name__ not in (
            "add",
            "subtract",
            "maximum",
            "minimum",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
        ):
            raise NotImplementedError(f"`{self.__name__}.at` is not supported yet")
        self._own.at(
            a._host(), _array.unwrapped(indices, [], strict=False), _array.unwrapped(b, [])
        )

    def __repr__(self):
        return f"<ufunc 'cupy_{self.__name__}'>"


def __getattr__(name):
    """What NumPy has too: its types and constants, and of its functions those that CuPy has."""
    if name.startswith("__") or name not in FUNCTIONS or not hasattr(np, name):
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    found = getattr(np, name)
    if isinstance(found, np.ufunc):
        found = ufunc(found)
    elif callable(found) and not isinstance(found, type):
        found = lifted(found)
    globals()[name] = found
    return found
