"""Which arrays and element types this machine can compute on: the one place that imports CuPy.

``import cupy`` succeeds on a machine without a driver and so proves nothing. `probe` goes on
until a real allocation came back, and says in one sentence where it stopped.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import KernelError, short
from tiledask.extras import install, needed_for

__all__ = ["HALVES", "Array", "Backend", "GpuInfo", "accumulator", "aligned", "array_namespace"]
__all__ += ["as_dtype", "cupy_module", "name_of", "namespace", "nvrtc_reason"]
__all__ += ["on_device", "probe", "synchronize", "to_numpy"]

Array: TypeAlias = Any
"""An array of NumPy's or CuPy's: they quack alike, and have no type in common."""

HALVES = ("float16", "bfloat16")
"""Element types of 2 bytes; sums of them are float32."""


@dataclass(frozen=True)
class GpuInfo:
    """One GPU, as CuPy describes it."""

    index: int  # Among the devices that this process may use
    name: str  # The maker's, for example "NVIDIA H200"
    compute_capability: str  # Such as "9.0", whose machine code is sm_90
    memory: int  # Bytes
    integrated: bool = False  # Whether it has no memory of its own: its bytes are the host's


@dataclass(frozen=True)
class Backend:
    """What `probe` found. If ``usable`` is False, ``reason`` says why and what to do."""

    usable: bool  # True once an array went to the first device and came back unchanged
    reason: str  # Why CuPy arrays cannot be used here, in a sentence; empty if they can
    cupy: str = ""  # CuPy's version; empty if it cannot be imported
    devices: tuple[GpuInfo, ...] = ()  # That CuPy sees
    driver: str = ""  # The newest CUDA that the NVIDIA driver runs, such as "13.0"; empty without
    cuda: str = ""  # Version of the CUDA runtime that CuPy uses; empty if unknown
    nvrtc_reason: str = ""  # Why CUDA C++ cannot be compiled here; empty if it can, or not usable


@cache
def probe() -> Backend:
    """The facts of this machine's GPUs, found out once per process; what goes wrong is the reason.

    >>> backend = probe()
    >>> backend.usable == (backend.reason == "")
    True
    """
    try:
        cp = cupy_module()
    except Exception as error:  # a broken installation raises all sorts of things
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        fault = "is not installed" if missing else f"cannot be imported ({_line(error)})"
        return Backend(False, f"CuPy {fault}; on a machine with an NVIDIA GPU: {install('gpu')}")
    known: dict[str, Any] = {"cupy": cp.__version__}
    try:
        runtime = cp.cuda.runtime
        versions = {"cuda": runtime.runtimeGetVersion(), "driver": runtime.driverGetVersion()}
        known |= {what: f"{n // 1000}.{n % 1000 // 10}" for what, n in versions.items()}  # 13020
        known["devices"] = tuple(_gpu(cp, i) for i in range(runtime.getDeviceCount()))
        # four numbers to the device and back: an allocation and two copies, no kernel
        sent = np.array([2, 3, 5, 7], np.int64)
        received = cp.asarray(sent).get()
        if not np.array_equal(sent, received):
            raise RuntimeError(f"sent {sent.tolist()} to the device, {received.tolist()} came back")
    except Exception as error:  # CUDARuntimeError, or a library that cannot be loaded
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f"; CUDA_VISIBLE_DEVICES={visible!r} says which to use"
        reason = f"CuPy is installed but no device is usable ({_line(error)}){hint}; nvidia-smi"
        return Backend(False, f"{reason} says whether one is old, full or taken", **known)
    return Backend(True, "", nvrtc_reason=nvrtc_reason(), **known)


def array_namespace(*arrays: Array) -> ModuleType:
    """NumPy or CuPy, whichever the arrays belong to. Imports CuPy only for a CuPy array.

    Raises KernelError for anything else, and for a mixture of the two.

    >>> array_namespace(np.ones(2)).__name__
    'numpy'
    """
    for x in arrays:  # mostly NumPy's, and asked of every operand of every operation
        if type(x) is not np.ndarray:
            break
    else:
        return np
    families = [_family(x) for x in arrays]
    if len({*families}) > 1:
        raise KernelError(
            f"all arrays must live in one place, got {' and '.join(families)}; move one: "
            f"cupy.asarray(x) or td.tile.to_numpy(x)"
        )
    return np if families[0] == "numpy" else cupy_module()


def namespace(name: str) -> ModuleType:
    """The array module called ``name``: "numpy", or "cupy" where it is usable.

    >>> namespace("numpy").__name__
    'numpy'
    """
    if name == "numpy":
        return np
    if name != "cupy":
        raise KernelError(f"arrays are 'numpy' or 'cupy', got {name!r}")
    if not probe().usable:
        raise KernelError(f"CuPy arrays cannot be used here: {probe().reason}; use 'numpy'")
    return cupy_module()


def to_numpy(x: Array) -> np.ndarray:
    """``x`` in host memory: itself if it is a NumPy array, a copy if it is a CuPy array."""
    return np.asarray(x) if _family(x) == "numpy" else x.get()


def aligned(array: Array) -> Array:
    """``array``, aligned: what came in a message is not, and then sums round differently."""
    return np.require(array, requirements="A") if isinstance(array, np.ndarray) else array


def synchronize(x: Array) -> None:
    """None, once the device that holds ``x`` has finished all its work; for clocks."""
    if _family(x) == "cupy":
        x.device.synchronize()


def on_device(x: Array) -> AbstractContextManager[Any]:
    """A context in which new arrays and kernels go to the device that holds ``x``."""
    return nullcontext() if _family(x) == "numpy" else x.device


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """The element type that ``dtype`` names: "float32", whatever NumPy understands, or "bfloat16",
    of ml_dtypes. Send that by its ``name``: its ``str`` is of 2 nameless bytes, which is refused.

    >>> as_dtype("bfloat16").name, as_dtype("f8").name
    ('bfloat16', 'float64')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        with needed_for("bfloat16"):
            import_module("ml_dtypes")
    try:
        found: np.dtype = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # of lists of fields, and of letters of no script
        found = np.dtype(np.void)
    if found.type is np.void:
        raise KernelError(
            f"an element type is 'float16', 'bfloat16', 'float32', 'float64' or another number's "
            f"that NumPy knows, got {short(dtype)}; write its name, x.dtype.name"
        )
    return found


@cache
def name_of(dtype: np.dtype) -> str:
    """The name by which `as_dtype` knows ``dtype``; kept, for NumPy makes it anew each time."""
    return dtype.name


@cache
def accumulator(dtype: Any) -> np.dtype:
    """The type in which products of ``dtype`` are summed: float32 for halves, else the same.

    >>> accumulator("float16").name, accumulator("bfloat16").name, accumulator("float64").name
    ('float32', 'float32', 'float64')
    """
    found = as_dtype(dtype)
    return np.dtype(np.float32) if name_of(found) in HALVES else found


# -- steps of the probe --------------------------------------------------------------------------


def _family(x: Array) -> str:
    if isinstance(x, np.ndarray | np.generic):
        return "numpy"
    if type(x).__module__.partition(".")[0] == "cupy":
        return "cupy"
    raise KernelError(
        f"a tile lives in one array, NumPy's or CuPy's, got {type(x).__name__}; convert it with "
        f"numpy.asarray, or use td.matmul for blocked arrays"
    )


def cupy_module() -> ModuleType:
    """CuPy, whether or not a device is usable; for who was handed an array of it."""
    return import_module("cupy")


def _gpu(cp: ModuleType, index: int) -> GpuInfo:
    facts = cp.cuda.runtime.getDeviceProperties(index)
    name, capability = facts["name"].decode(), f"{facts['major']}.{facts['minor']}"
    return GpuInfo(index, name, capability, facts["totalGlobalMem"], bool(facts.get("integrated")))


@cache
def nvrtc_reason() -> str:
    """Why CUDA C++ cannot be compiled here, in a sentence; empty if it can. It needs no GPU."""
    try:
        import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception as error:  # a missing library is a RuntimeError of its own kind
        return f"NVRTC, a compiler of CUDA C++, cannot be used ({_line(error)}); {install('gpu')}"
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
