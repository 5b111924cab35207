"""CuPy on the host, as far as collectives use it: a stand-in that knows when memory is ready.

A GPU whose memory is touched too early gives wrong numbers; here that is told at once:

- arrays cannot become NumPy arrays unless they are asked to (`get`), as CuPy's;
- what NCCL has begun (nccl_twin.py) is done only when the host has looked at an event behind it and
  seen it done, which takes several looks; until then nobody may read what is received, which holds
  nonsense, and nobody may write what is sent;
- a stream knows of the program's work only up to an event that it waits for.
"""

import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ["Event", "Gpu", "TwinFault", "cupy", "here", "ndarray"]

LOOKS = 3
"""How often a host looks at an event before it sees it done."""
NONSENSE = 0xA5


class TwinFault(AssertionError):
    """What a GPU would have answered with a wrong result, or never."""


# -- memory --------------------------------------------------------------------------------------


class Memory:
    """An allocation; by the GPU's count of kernels, when it was last read and written."""

    def __init__(self, gpu, nbytes):
        self.gpu, self.bytes = gpu, np.full(nbytes, NONSENSE, np.uint8)
        self.read = self.written = 0
        gpu.memories.append(self)


class ndarray(NDArrayOperatorsMixin):
    """An array on a GPU; every operation is a kernel on the program's stream."""

    def __init__(self, memory, host):
        self._memory, self._host = memory, host
        self.shape, self.dtype, self.ndim = host.shape, host.dtype, host.ndim
        self.size, self.itemsize, self.nbytes = host.size, host.itemsize, host.nbytes
        self.flags = host.flags
        self.data = SimpleNamespace(ptr=host.ctypes.data if host.size else 0)

    def _view(self, host):
        return ndarray(self._memory, host)

    def __getitem__(self, key):
        return self._view(self._host[key if isinstance(key, tuple) else (key, ...)])

    def __setitem__(self, key, value):
        assert key is ..., "the stand-in sets whole arrays"
        _kernel(lambda host: host, [value], out=self)

    def swapaxes(self, *axes):
        return self._view(self._host.swapaxes(*axes))

    def reshape(self, *shape):
        if np.shares_memory(made := self._host.reshape(*shape), self._host) or not self.size:
            return self._view(made)
        return self.copy().reshape(*shape)

    def copy(self):
        return _kernel(lambda host: host.copy(), [self])

    def astype(self, dtype, copy=True):
        if not copy and dtype == self.dtype:
            return self
        return _kernel(lambda host: host.astype(dtype), [self])

    def get(self):
        self._memory.gpu.touches(self, writes=False, thread=False)  # allowed from everywhere
        return self._host.copy()

    def __array__(self, *_args, **_options):
        raise TypeError("an array of a GPU does not become NumPy's by itself; x.get()")

    def __array_function__(self, function, _types, args, options):
        assert function is np.concatenate, f"the stand-in has no {function.__name__}"
        return _kernel(lambda *parts: np.concatenate(parts, **options), args[0], *args[1:])

    def __array_ufunc__(self, function, method, *inputs, out=None):
        assert method == "__call__"
        return _kernel(function, inputs, out=out[0] if out else None)


ndarray.__module__ = "cupy"


def _kernel(function, inputs, *, out=None):
    """The result of ``function`` of arrays and numbers of this thread's GPU."""
    arrays = [x for x in inputs if isinstance(x, ndarray)]
    if len(arrays) < len(inputs) and any(isinstance(x, np.ndarray) for x in inputs):
        raise TypeError("arrays of the GPU and of NumPy do not mix")
    for x in arrays:
        x._memory.gpu.touches(x, writes=False)
    result = function(*(x._host if isinstance(x, ndarray) else x for x in inputs))
    made = empty(result.shape, result.dtype) if out is None else out
    made._memory.gpu.touches(made, writes=True)
    made._host[...] = result
    return made


def empty(shape, dtype):
    memory = Memory(here.gpu, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
    return ndarray(memory, memory.bytes.view(dtype).reshape(shape))


def asarray(x):
    if isinstance(x, ndarray):
        return x
    host = np.asarray(x)
    return _kernel(lambda: host, [])


# -- GPUs, streams, events -----------------------------------------------------------------------


class Gpu:
    def __init__(self, world, index):
        self.world, self.index = world, index
        self.kernels = 0
        self.memories = []
        self.pending = []  # what NCCL has begun here and no host has seen done

    def touches(self, x, writes, thread=True):
        """A kernel of the program reads or writes ``x``."""
        if thread and self is not here.gpu:
            raise TwinFault(f"a thread of another GPU used memory of GPU {self.index}")
        with self.world.changed:
            self.kernels += 1
            low, high = byte_bounds(x._host)
            for op in self.pending:
                if low < op.high and op.low < high and (writes or op.into):
                    raise TwinFault(
                        f"a kernel {'writes' if writes else 'reads'} what {op} has not finished"
                    )
            if writes:
                x._memory.written = self.kernels
            else:
                x._memory.read = self.kernels

    def memory(self, low, high):
        for memory in self.memories:
            first, end = byte_bounds(memory.bytes)
            if first <= low and high <= end and memory.bytes.size:
                return memory
        raise TwinFault(f"NCCL was given memory that is none of GPU {self.index}")


class Here(threading.local):
    """A thread's current GPU, and its group of NCCL calls."""

    gpu = None
    depth = 0

    def __init__(self):
        self.group = []


here = Here()


class Device:
    def __init__(self):
        self.gpu = here.gpu
        self.id, self.pci_bus_id = self.gpu.index, f"0000:{self.gpu.index:02x}:00.0"

    def use(self):
        here.gpu = self.gpu


class Stream:
    """NCCL's stream, or (``gpu`` given) the program's."""

    def __init__(self, non_blocking=False, gpu=None):
        self.gpu, self.own = gpu or here.gpu, gpu is None
        assert non_blocking or not self.own, "the program's stream would wait for this one"
        self.knows = 0
        self.groups = deque()
        self.ops = []
        self.ptr = id(self) if self.own else 0
        if self.own:
            self.gpu.world.streams[self.ptr] = self

    def wait_event(self, event):
        if event.kernels is None:
            raise TwinFault("a stream waits for an event that was never recorded")
        self.knows = max(self.knows, event.kernels)


def get_current_stream():
    return Stream(gpu=here.gpu)


class Event:
    def __init__(self, disable_timing=False):
        assert disable_timing
        self.kernels, self.ops, self.looks = None, [], 0

    def record(self, stream):
        if here.depth:
            raise TwinFault("an event is recorded in a group that has not ended: nothing is there")
        self.world, self.gpu = stream.gpu.world, stream.gpu
        self.kernels, self.ops = stream.gpu.kernels, list(stream.ops)

    @property
    def done(self):
        with self.world.changed:
            self.looks += 1
            self.world.progress()
            if self.looks < LOOKS or not all(op.complete for op in self.ops):
                return False
            for op in self.ops:
                op.seen(self.gpu)
            return True


cupy = SimpleNamespace(
    empty=empty,
    asarray=asarray,
    ndarray=ndarray,
    concatenate=np.concatenate,
    cuda=SimpleNamespace(
        Device=Device, Stream=Stream, Event=Event, get_current_stream=get_current_stream
    ),
)
"""The module."""
