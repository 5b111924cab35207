"""CuPy's rules without a GPU: arrays that refuse what CuPy refuses, and are NumPy's underneath.

Code that passes here with NumPy's results to the bit does not mix host and device arrays, does
not let a device array become a NumPy one on the way, and does not count on reductions that give
Python numbers. That a GPU computes the same is not tried: cuBLAS is the host's BLAS.

What CuPy would launch is counted in LAUNCHED: by the name of the function, how often, and the bytes
of all that it reads and writes. Views cost nothing.
"""

import ctypes
import operator
import re
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from twins import elementwise

from tiledask.tile import backend, fused, table
from tiledask.tile.product import matmul

MIXED = "Unsupported type <class 'numpy.ndarray'>"
"""What CuPy says of a host array among device arrays."""
LAUNCHED, MOVED = Counter(), Counter()
"""By the name of a function: kernels, and the bytes that they read and write."""


def launched(name, *arrays):
    """Count a kernel that reads or writes ``arrays``, each once."""
    LAUNCHED[name] += 1
    MOVED[name] += sum(x.nbytes for x in arrays)


def _arrays(*values):
    """NumPy's arrays among ``values``, and in tuples and lists of them."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _arrays(*value)
        elif isinstance(value, ndarray | np.ndarray):
            yield getattr(value, "host", value)


class Device(nullcontext):
    """The one that is not there, on which nothing is under way."""

    def synchronize(self):
        pass


class ndarray(NDArrayOperatorsMixin):
    """An array on a device that is not there."""

    __hash__ = None
    device = Device()

    def __init__(self, host):
        self.host = host

    def get(self):
        return self.host.copy()

    @property
    def data(self):
        return SimpleNamespace(ptr=self.host.ctypes.data)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.host, name)
        return lifted(found, self) if callable(found) else wrapped(found)

    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return lifted(getattr(ufunc, method))(*inputs, **options)

    def __array_function__(self, function, _, args, options):
        return lifted(function)(*args, **options)

    def __getitem__(self, at):
        found = wrapped(self.host[unwrapped(at, strict=False)])
        if [*_arrays(at)]:
            launched("take", found.host, found.host)
        return found

    def __setitem__(self, at, value):
        launched("put", *_arrays(value), self.host[unwrapped(at, strict=False)])
        whole = at is Ellipsis or (isinstance(at, slice) and at == slice(None))
        self.host[unwrapped(at, strict=False)] = unwrapped(value, strict=not whole)

    def __len__(self):
        return len(self.host)

    def __iter__(self):
        return (wrapped(each) for each in self.host)


for _kind in (bool, int, float, complex, operator.index):
    setattr(ndarray, f"__{_kind.__name__}__", lambda x, kind=_kind: kind(x.host))
ndarray.__module__ = "cupy"


def unwrapped(value, strict=True):
    """What NumPy is given; a host array is refused, as CuPy refuses it, if ``strict``."""
    if isinstance(value, ndarray):
        return value.host
    if strict and isinstance(value, np.ndarray):
        raise TypeError(MIXED)
    if isinstance(value, tuple | list):
        return type(value)(unwrapped(each, strict) for each in value)
    return value


def wrapped(value):
    """What comes back: arrays, and in place of NumPy's numbers arrays without dimensions."""
    if isinstance(value, np.ndarray):
        return ndarray(value)
    if isinstance(value, np.generic):
        return ndarray(np.asarray(value))
    if type(value) in (tuple, list) and any(isinstance(v, np.ndarray) for v in value):
        return type(value)(wrapped(each) for each in value)
    return value


def lifted(function, *owner):
    """A function of NumPy's for arrays of the twin, or a method of its ``owner``."""

    of = getattr(function, "__self__", None)
    name = of.__name__ if isinstance(of, np.ufunc) else function.__name__

    def call(*args, **options):
        given = {name: unwrapped(value) for name, value in options.items()}
        (out,) = found if isinstance(found := options.get("out"), tuple) else (found,)
        result = function(*(unwrapped(each) for each in args), **given)
        read, made = [*_arrays(owner, args)], [*_arrays(result)]
        new = any(not any(np.may_share_memory(x, y) for x in read) for y in made)
        new |= isinstance(function, elementwise.Kernel)  # it may write what it is given
        if (found is not None or new) and not name.startswith("empty"):
            launched(name, *read, *made)
        return out if isinstance(out, ndarray) else wrapped(result)

    if isinstance(function, np.ufunc):
        call.at = lambda x, at, value: function.at(
            x.host, unwrapped(at, strict=False), unwrapped(value)
        )
    return call


KINDS = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
GEMM_EX = (
    "handle transa transb m n k alpha a a_type lda b b_type ldb beta c c_type ldc compute_type algo"
)


def columns(pointer, kind, rows, count, ld):
    """The matrix that cuBLAS sees: ``count`` columns of ``rows`` elements, ``ld`` apart."""
    dtype = backend.as_dtype(KINDS[kind])
    size = ((count - 1) * ld + rows) * dtype.itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype)
    step = dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, count), (step, ld * step))


def gemm_ex(*arguments):
    """cupy.cuda.cublas.gemmEx by the host's BLAS, by rows: C^T = B^T A^T."""
    g = SimpleNamespace(**dict(zip(GEMM_EX.split(), arguments, strict=True)))
    launched("gemm", *_multiplied(g))


def gemm_strided_batched_ex(*arguments):
    """The same of as many matrices as ``count``, each a ``stride`` behind the one before."""
    names = re.sub(r"ld([abc])", r"ld\1 stride_\1", GEMM_EX).replace("compute", "count compute")
    g = SimpleNamespace(**dict(zip(names.split(), arguments, strict=True)))
    first, read = {x: getattr(g, x) for x in "abc"}, []
    for i in range(g.count):
        for x, size in (("a", g.a_type), ("b", g.b_type), ("c", g.c_type)):
            step = backend.as_dtype(KINDS[size]).itemsize * getattr(g, f"stride_{x}")
            setattr(g, x, first[x] + i * step)
        read += _multiplied(g)
    launched("gemm", *read)


def _multiplied(g):
    """All that one product reads and writes, once it is done."""
    assert g.lda >= (g.k if g.transa else g.m)
    assert g.ldb >= (g.n if g.transb else g.k)
    assert g.ldc >= g.m
    a = columns(g.a, g.a_type, *((g.k, g.m) if g.transa else (g.m, g.k)), g.lda)
    b = columns(g.b, g.b_type, *((g.n, g.k) if g.transb else (g.k, g.n)), g.ldb)
    out = columns(g.c, g.c_type, g.m, g.n, g.ldc)
    factor = ctypes.c_double if g.compute_type == "64F" else ctypes.c_float
    alpha, beta = (factor.from_address(x).value for x in (g.alpha, g.beta))
    x, y = b if g.transb else b.T, a if g.transa else a.T
    matmul(x, y, out=out.T, beta=beta)
    if alpha != 1:
        out *= out.dtype.type(alpha)
    return a, b, *[out] * (1 + (beta != 0))


class Module:
    """The part of ``cupy`` that is in NumPy as well, and cuBLAS."""

    __name__ = "cupy"
    ndarray = ndarray
    cuda = SimpleNamespace(
        cublas=SimpleNamespace(
            gemmEx=gemm_ex,
            gemmStridedBatchedEx=gemm_strided_batched_ex,
            CUBLAS_COMPUTE_32F="32F",
            CUBLAS_COMPUTE_64F="64F",
            CUBLAS_GEMM_DEFAULT=-1,
        ),
        device=SimpleNamespace(get_cublas_handle=lambda: 7),
    )

    def ElementwiseKernel(self, *text, **more):
        return lifted(elementwise.Kernel(*text, **more))

    def ReductionKernel(self, *text, **more):
        return lifted(elementwise.Reduction(*text, **more))

    def asarray(self, value, dtype=None, order="K"):
        return ndarray(np.array(unwrapped(value, strict=False), dtype, order=order))

    array = asarray

    @property
    def lib(self):
        """``lib.stride_tricks``, with CuPy's arguments."""
        view = lifted(np.lib.stride_tricks.as_strided)
        tricks = SimpleNamespace(as_strided=lambda x, shape, strides: view(x, shape, strides))
        return SimpleNamespace(stride_tricks=tricks)

    def __getattr__(self, name):
        found = getattr(np, name)
        return found if isinstance(found, type) or not callable(found) else lifted(found)


def use(monkeypatch):
    """From here on, and until the test ends, "cupy" is the twin."""
    backend.probe()  # this machine's own facts are remembered, and not the twin's
    twin = Module()
    device = backend.GpuInfo(0, "pretended GPU", "9.0", 10**9)
    found = backend.Backend(True, "", devices=(device,))
    for module in (backend, fused):
        monkeypatch.setattr(module, "cupy_module", lambda: twin)
    for module in (backend, table):
        monkeypatch.setattr(module, "probe", lambda: found)
    return twin
