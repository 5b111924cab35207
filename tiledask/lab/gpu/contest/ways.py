"""Implementations by name: our kernels, the library that CuPy or NumPy calls, torch."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tiledask.errors import KernelError
from tiledask.lab.gpu.contest.clock import Run
from tiledask.lab.gpu.contest.rounds import Gemm, Implementation, Set
from tiledask.tile.backend import namespace
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = ["CUBLAS", "NUMPY", "TORCH", "kernel_way", "library", "ways_of"]

CUBLAS, NUMPY, TORCH = "cuBLAS", "numpy.matmul", "torch"


def library(arrays: str) -> str:
    """The name of the implementation that the others are measured by."""
    return CUBLAS if arrays == "cupy" else NUMPY


def ways_of(work: Gemm, names: Sequence[str], arrays: str) -> list[Implementation]:
    """The library, then those called ``names``: kernels of `td.tile.kernels`, "torch"."""
    ours = (_torch_way() if name == TORCH else kernel_way(work, name) for name in names)
    return [_library_way(work, library(arrays)), *ours]


def kernel_way(work: Gemm, name: str) -> Implementation:
    """The kernel ``name`` of `td.tile.kernels`, or why it cannot take part."""
    if name not in kernels:
        return Implementation(name, _none, f"td.tile.kernels has no kernel {name!r}")
    info, tf32 = kernels[name], work.precision == "tf32"
    why = info.why_not
    if not why and tf32 and not info.tf32:
        why = f"{name} does not multiply float32 as TF32"
    if not why and not tf32 and work.dtype.name not in info.dtypes:
        why = f"{name} takes {' or '.join(info.dtypes)}, not {work.dtype.name}"
    return Implementation(name, lambda work, sets: _ours(name, work, sets), why)


def _ours(name: str, work: Gemm, sets: Sequence[Set]) -> Run:
    precision = "tf32" if work.precision == "tf32" else None

    def run(i: int) -> None:
        a, b, out = sets[i]
        matmul(a, b, name, out=out, precision=precision)

    return run


def _library_way(work: Gemm, name: str) -> Implementation:
    """cupy.matmul, whose float32 is float32 as long as CUPY_TF32 is not set; for TF32 our own call
    of the same function of cuBLAS, which asks for it."""
    if work.precision == "tf32":
        return Implementation(
            name, lambda work, sets: _ours("cublas", work, sets), kernels["cublas"].why_not
        )
    return Implementation(name, _library)


def _library(work: Gemm, sets: Sequence[Set]) -> Run:
    xp = namespace("numpy" if type(sets[0].a).__module__ == "numpy" else "cupy")

    def run(i: int) -> None:
        a, b, out = sets[i]
        xp.matmul(a, b, out=out)

    return run


def _torch_way() -> Implementation:
    if find_spec("torch") is None:
        return Implementation(TORCH, _none, "torch cannot be imported here")
    import torch

    why = "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"
    return Implementation(TORCH, _torch, why)


def _torch(work: Gemm, sets: Sequence[Set]) -> Run:
    """torch.matmul into ``out``, on the stream that CuPy uses."""
    import torch

    mine = namespace("cupy").cuda.get_current_stream().ptr
    theirs = torch.cuda.current_stream().cuda_stream
    if mine != theirs:
        raise KernelError(
            f"CuPy and torch must work on one stream to be timed by the same events, got {mine:#x} "
            f"and {theirs:#x}; unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
        )
    torch.backends.cuda.matmul.allow_tf32 = work.precision == "tf32"
    tensors = [tuple(map(_as_torch, s)) for s in sets]

    def run(i: int) -> None:
        a, b, out = tensors[i]
        torch.matmul(a, b, out=out)

    return run


def _as_torch(x: Any) -> Any:
    """CuPy's array as a tensor of the same memory. Halves go over as integers: DLPack's bfloat16
    is not known to every version."""
    import torch

    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    if x.dtype.name not in kinds:
        return torch.from_dlpack(x)
    bits = x.view("i2") if x.flags.c_contiguous else x.T.view("i2").T
    return torch.from_dlpack(bits).view(kinds[x.dtype.name])


def _none(work: Gemm, sets: Sequence[Set]) -> Run:
    raise AssertionError("an implementation that cannot take part was asked to")
