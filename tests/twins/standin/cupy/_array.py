"""cupy.ndarray: NumPy's underneath, in the device's memory, with CuPy's refusals."""

import functools
import operator
import warnings

import numpy as np

from cupy import _machine
from cupy.cuda import memory, stream

METHODS = frozenset(
    """
    all any argmax argmin argpartition argsort astype choose clip compress conj conjugate
    copy cumprod cumsum diagonal dot dump dumps fill flatten get item max mean min nonzero
    partition prod ptp put ravel repeat reshape round searchsorted set sort squeeze std sum
    swapaxes take tobytes tofile tolist trace transpose var view
    """.split()  # noqa: SIM905
)
ATTRIBUTES = frozenset(
    """
    T mT real imag
    """.split()  # noqa: SIM905
)
HALVES = ("float16", "bfloat16")


class PerformanceWarning(RuntimeWarning):
    pass


class Flags:
    """The three that CuPy has."""

    def __init__(self, flags, owns):
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata = owns
        self.forc = self.c_contiguous or self.f_contiguous
        self.fnc = self.f_contiguous and not self.c_contiguous

    def __getitem__(self, name):
        names = {"C_CONTIGUOUS": "c_contiguous", "F_CONTIGUOUS": "f_contiguous"}
        return getattr(self, names.get(name, name.lower()))


class ndarray:
    """An array on a device."""

    __hash__ = None
    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape = (shape,) if np.ndim(shape) == 0 else tuple(int(n) for n in shape)
        dtype = np.dtype(dtype)
        if memptr is None:
            count = int(np.prod(shape, dtype=np.int64)) if shape else 1
            memptr = memory.alloc(count * dtype.itemsize)
        self.data, self.base = memptr, None
        self._place(shape, dtype, strides, order)

    def _place(self, shape, dtype, strides, order="C"):
        if 0 in shape:
            self._view = np.empty(shape, dtype, order=order or "C")
            return
        if strides is None:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize if shape else dtype.itemsize
            data = _of_pointer(self.data, 0, size)
            self._view = np.ndarray(shape, dtype, data, order="F" if order == "F" else "C")
            return
        ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends) + dtype.itemsize
        data = _of_pointer(self.data, low, high - low)
        self._view = np.ndarray(shape, dtype, data, -low, tuple(strides))

    # what it is
    shape = property(lambda self: self._view.shape)
    dtype = property(lambda self: self._view.dtype)
    ndim = property(lambda self: self._view.ndim)
    size = property(lambda self: self._view.size)
    itemsize = property(lambda self: self._view.itemsize)
    nbytes = property(lambda self: self._view.nbytes)
    strides = property(lambda self: self._view.strides)
    flags = property(lambda self: Flags(self._view.flags, self.base is None))

    @shape.setter
    def shape(self, shape):
        self._view = self._view.view()
        self._view.shape = shape

    @property
    def device(self):
        return self.data.device

    @property
    def __cuda_array_interface__(self):
        current = stream.get_current_stream()
        found = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": 1 if current.ptr == 0 else current.ptr,
            "version": 3,
            "strides": None if self._view.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }
        return found

    def _host(self):
        """NumPy's view of it, for work that the current stream does now."""
        if self._view.size:
            data = self.data
            data.mem.bytes_at(data._offset, 1)
            if data.device_id != _machine.here.device:
                warnings.warn(
                    f"The device where the array resides ({data.device_id}) is different from the "
                    f"current device ({_machine.here.device}). Peer access has been activated "
                    f"automatically.",
                    PerformanceWarning,
                    stacklevel=3,
                )
        stream.settle()
        return self._view

    # to and from the host
    def get(self, stream=None, order="C", out=None, blocking=True):
        from cupy.cuda.stream import behind

        _machine.devices()
        self._alive()
        if out is not None:
            if out.dtype != self.dtype or out.shape != self.shape:
                raise ValueError("out has another shape or type")
            if not (out.flags.c_contiguous or out.flags.f_contiguous):
                raise RuntimeError("Cannot copy to non-contiguous array")
        else:
            flags = self._view.flags
            fortran = order == "F" or (
                order in "AK" and flags.f_contiguous and not flags.c_contiguous
            )
            out = np.empty(self.shape, self.dtype, "F" if fortran else "C")
            out.view(np.uint8) if 0 else None
        view = self._view
        behind(stream, lambda: np.copyto(out, view))
        if blocking or stream is None or not _machine.is_pinned(out):
            _current(stream).synchronize() if _current(stream).ptr else None
        return out

    def set(self, arr, stream=None):
        from cupy.cuda.stream import behind

        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {arr.shape}, new shape: {self.shape}")
        if not self.flags.forc:
            raise RuntimeError("Cannot set to non-contiguous array")
        self._alive()
        given = arr if _machine.is_pinned(arr) else arr.copy()
        view = self._view
        behind(stream, lambda: np.copyto(view, given))

    def _alive(self):
        if self.size:
            self.data.mem.bytes_at(self.data._offset, 1)

    def fill(self, value):
        value = unwrapped(value, [])
        self._host()[...] = value

    def item(self, *at):
        return self.get().item(*at)

    def tolist(self):
        return self.get().tolist()

    def tobytes(self, order="C"):
        return self.get().tobytes(order)

    def copy(self, order="C"):
        return new(self._host().copy(order))

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        with np.errstate(all="ignore"):
            return new(self._host().astype(dtype, order))

    def view(self, dtype=None):
        return _as_view(self._view.view() if dtype is None else self._view.view(dtype), self)

    def reshape(self, *shape, order="C"):
        shape = shape[0] if len(shape) == 1 else shape
        made = self._host().reshape(shape, order=order)
        return wrapped(made, [self])

    def ravel(self, order="C"):
        return wrapped(self._host().ravel(order), [self])

    def dot(self, other, out=None):
        return (
            lifted(np.dot)(self, other, out=out) if out is not None else lifted(np.dot)(self, other)
        )

    def __getattr__(self, name):
        if name in ATTRIBUTES:
            return wrapped(getattr(self._view, name), [self])
        if name in METHODS:
            return functools.partial(_method, self, name)
        raise AttributeError(f"'ndarray' object of CuPy has no attribute {name!r}")

    # what NumPy may ask
    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method not in ("__call__", "reduce", "accumulate", "reduceat", "at", "outer"):
            return NotImplemented
        return lifted(getattr(ufunc, method) if method != "__call__" else ufunc)(*inputs, **options)

    def __array_function__(self, function, types, args, options):
        import cupy

        try:
            path = [*function.__module__.split(".")[1:], function.__name__]
            found = functools.reduce(getattr, path, cupy)
        except AttributeError:
            return NotImplemented
        return found(*args, **options)

    def __getitem__(self, at):
        parents = [self]
        return wrapped(self._host()[unwrapped(at, parents, strict=False)], parents)

    def __setitem__(self, at, value):
        whole = at is Ellipsis or (isinstance(at, slice) and at == slice(None))
        if whole and isinstance(value, np.ndarray):
            if value.ndim == 0:
                value = value.item()
            elif value.shape == self.shape and value.dtype == self.dtype and self.flags.forc:
                self.set(value)
                return
        given = unwrapped(value, [], strict=not whole)
        with np.errstate(all="ignore"):
            self._host()[unwrapped(at, [], strict=False)] = given

    def __len__(self):
        return len(self._view)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __contains__(self, value):
        return bool((self == value).any())

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, how):
        return format(self.get() if self.ndim else self.item(), how)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        with self.device:
            return self.copy()

    def __reduce__(self):
        return _unpickled, (self.get(),)

    def __dlpack_device__(self):
        return 2, self.data.device_id

    def __dlpack__(self, **_):
        if self.dtype.kind == "V":
            raise BufferError("DLPack has no such type")
        return self


ndarray.__module__ = "cupy"


def _unpickled(host):
    return asarray(host)


_unpickled.__module__ = "cupy._array"


def _of_pointer(pointer, offset, size):
    if not isinstance(pointer, memory.MemoryPointer):
        raise TypeError(f"memptr is a cupy.cuda.MemoryPointer, got {type(pointer).__name__}")
    return pointer.mem.bytes_at(pointer._offset + offset, size)


def _current(given):
    return stream.get_current_stream() if given is None else given


def _as_view(host, parent):
    made = ndarray.__new__(ndarray)
    made._view = host
    made.base = parent if parent.base is None else parent.base
    offset = host.ctypes.data - parent.data.mem.ptr if host.size else 0
    made.data = memory.MemoryPointer(parent.data.mem, offset)
    return made


def new(host):
    """A new array on the current device with what ``host`` holds, laid out as it is."""
    _machine.devices()
    fortran = host.flags.f_contiguous and not host.flags.c_contiguous
    dense = host.flags.c_contiguous or host.flags.f_contiguous
    made = ndarray(host.shape, host.dtype, order="F" if fortran else "C")
    if not dense and host.size:  # transposed twice or so: its order of strides
        order = sorted(range(host.ndim), key=lambda i: -abs(host.strides[i]))
        strides, step = [0] * host.ndim, host.itemsize
        for i in reversed(order):
            strides[i], step = step, step * host.shape[i]
        made._place(host.shape, host.dtype, tuple(strides))
    if host.size:
        stream.settle()
        made._view[...] = host
    return made


def unwrapped(value, parents, strict=True):
    """What NumPy is given; a host array is refused, as CuPy refuses it, if ``strict``."""
    if isinstance(value, ndarray):
        parents.append(value)
        return value._host()
    if strict and isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(unwrapped(each, parents, strict) for each in value)
    return value


def wrapped(value, parents=()):
    """What comes back: views of what was given, else new arrays, of 0 dimensions for numbers."""
    if isinstance(value, np.generic):
        return new(np.asarray(value))
    if isinstance(value, np.ndarray):
        for parent in parents:
            mem = parent.data.mem
            inside = mem.ptr <= value.ctypes.data < mem.ptr + mem.size
            if (value.size and inside) or (not value.size and value.base is not None):
                return _as_view(value, parent)
        return new(value)
    if isinstance(value, tuple | list) and any(
        isinstance(v, np.ndarray | np.generic) for v in value
    ):
        parts = [wrapped(each, parents) for each in value]
        return type(value)(parts) if type(value) in (tuple, list) else tuple(parts)
    return value


def _method(self, name, *args, **options):
    parents = [self]
    given = {key: unwrapped(value, parents) for key, value in options.items() if key != "out"}
    out = options.get("out")
    if out is not None:
        given["out"] = out._host()
    args = [unwrapped(each, parents) for each in args]
    with np.errstate(all="ignore"):
        result = getattr(self._host(), name)(*args, **given)
    return out if out is not None else wrapped(result, parents)


def lifted(function):
    """A function of NumPy's for arrays of devices."""

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def call(*args, **options):
        parents, outs = [], options.pop("out", None)
        single = outs is not None and not isinstance(outs, tuple)
        outs = (outs,) if single else outs
        given = {key: unwrapped(value, parents) for key, value in options.items()}
        args = [unwrapped(each, parents) for each in args]
        if outs is not None:
            for out in outs:
                if out is not None and not isinstance(out, ndarray):
                    raise TypeError(f"Unsupported type {type(out)}")
            hosts = tuple(None if out is None else out._host() for out in outs)
            given["out"] = hosts[0] if len(hosts) == 1 else hosts
        with np.errstate(all="ignore"):
            result = function(*args, **given)
        if outs is not None:
            return outs[0] if len(outs) == 1 else outs
        return wrapped(result, parents)

    return call


def matmul(a, b, out=None, **_):
    """The product; halves are summed in float32."""
    parents = []
    x, y = unwrapped(a, parents), unwrapped(b, parents)
    if x.dtype.name in HALVES and y.dtype == x.dtype:
        result = np.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    else:
        result = np.matmul(x, y)
    if out is not None:
        out._host()[...] = result
        return out
    return new(np.asarray(result))


def _operators():
    two = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
    two += ["lshift", "rshift", "divmod"]
    for name in [*two, *(f"r{n}" for n in two), "lt", "le", "gt", "ge", "eq", "ne"]:
        special = f"__{name}__"

        def binary(x, y, special=special):
            if y is None or isinstance(y, str):
                return NotImplemented
            parents = [x]
            given = unwrapped(y, parents)
            with np.errstate(all="ignore"):
                found = getattr(x._host(), special)(given)
            return found if found is NotImplemented else wrapped(found, parents)

        setattr(ndarray, special, binary)
    ndarray.__matmul__ = lambda x, y: matmul(x, y)
    ndarray.__rmatmul__ = lambda x, y: matmul(y, x)
    for name in two[:-1]:
        inplace = getattr(operator, f"i{name.rstrip('_')}", None) or getattr(operator, f"i{name}_")

        def change(x, y, inplace=inplace):
            given = unwrapped(y, [])
            with np.errstate(all="ignore"):
                inplace(x._host(), given)
            return x

        setattr(ndarray, f"__i{name}__", change)
    for name in ("neg", "pos", "abs", "invert"):
        special = f"__{name}__"
        setattr(ndarray, special, lambda x, s=special: wrapped(getattr(x._host(), s)(), [x]))
    for kind in (bool, int, float, complex):
        setattr(ndarray, f"__{kind.__name__}__", lambda x, kind=kind: kind(x.get()))
    ndarray.__index__ = lambda x: operator.index(x.get())


_operators()


def asarray(value, dtype=None, order=None, blocking=False):
    return array(value, dtype, copy=False, order=order or "K")


def array(value, dtype=None, copy=True, order="K", subok=False, ndmin=0, blocking=False):
    """An array of the current device."""
    _machine.devices()
    if not isinstance(value, ndarray) and hasattr(value, "__cuda_array_interface__"):
        value = _of_interface(value)
    if isinstance(value, ndarray):
        elsewhere = value.size and value.data.device_id != _machine.here.device
        if (
            copy
            or elsewhere
            or (dtype is not None and np.dtype(dtype) != value.dtype)
            or (order in "CF" and not value.flags[f"{order}_CONTIGUOUS"])
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PerformanceWarning)
                host = value._host()
            made = new(np.array(host, dtype, order=order))
        else:
            made = value
    else:
        parts = value if isinstance(value, list | tuple) else ()
        if any(isinstance(each, ndarray) for each in parts):
            if not all(isinstance(each, ndarray) for each in parts):
                raise TypeError(f"Unsupported type {type(value)}")
            value = [each._host() for each in parts]
        host = np.array(value, dtype, order="C" if order is None else order)
        if host.dtype.kind in "OUS":
            raise ValueError(f"Unsupported dtype {host.dtype}")
        made = new(host)
    while made.ndim < ndmin:
        made = made[None]
    return made


def _of_interface(value):
    facts = value.__cuda_array_interface__
    dtype, shape = np.dtype(facts["typestr"]), tuple(facts["shape"])
    pointer, strides = facts["data"][0], facts.get("strides")
    span = (
        dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if strides is None
        else (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize)
    )
    if 0 in shape:
        return ndarray(shape, dtype)
    if (number := facts.get("stream")) is not None:
        stream.by_number(number).synchronize()
    lent = memory.UnownedMemory(pointer, span, value)
    made = ndarray(shape, dtype, memory.MemoryPointer(lent, 0), strides)
    made.base = made
    return made


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    if isinstance(a, ndarray):
        return a.get(stream, order, out, blocking)
    if hasattr(a, "__cuda_array_interface__"):
        return asarray(a).get(stream, order, out, blocking)
    found = np.asarray(a, order=order)
    if out is None:
        return found
    out[...] = found
    return out


def from_dlpack(value):
    if isinstance(value, ndarray):
        return value.view()
    if hasattr(value, "__cuda_array_interface__"):
        return _of_interface(value)
    raise BufferError(f"{type(value).__name__} is in no device's memory")
