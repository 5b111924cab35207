"""Who is compared: our kernels by name, the library that CuPy or NumPy calls, torch and Triton."""

from collections.abc import Sequence
from importlib.util import find_spec

from tiledask.lab.bench.tiles.clock import Run
from tiledask.lab.bench.tiles.rounds import Contender, Gemm, Set
from tiledask.tile.backend import namespace
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

__all__ = ["AGAIN", "CUBLAS", "NUMPY", "TORCH", "TRITON", "kernel_way", "library", "ways_of"]

CUBLAS, NUMPY, TORCH, TRITON = "cuBLAS", "numpy.matmul", "torch", "Triton"
AGAIN = ", again"
"""The same contender once more: what differs is noise."""


def library(arrays: str) -> str:
    """The name of the contender that the others are measured by."""
    return CUBLAS if arrays == "cupy" else NUMPY


def ways_of(
    work: Gemm, names: Sequence[str], arrays: str, without: Sequence[str] = ()
) -> list[Contender]:
    """The contenders called ``names``: kernels of `td.tile.kernels`, "torch", "Triton".

    The library comes first, and again last. ``without``: names that are left out.
    """
    base = library(arrays)
    found = [_library_way(work, base)]
    for name in names:
        if name in without:
            found.append(Contender(name, _none, "--without names it"))
        elif name in (TORCH, TRITON):
            found.append(_peer(name))
        else:
            found.append(kernel_way(work, name))
    return [*found, _library_way(work, base + AGAIN)]


def kernel_way(work: Gemm, name: str) -> Contender:
    """The kernel ``name`` of `td.tile.kernels`, or why it cannot take part."""
    if name not in kernels:
        return Contender(name, _none, f"td.tile.kernels has no kernel {name!r}")
    info, tf32 = kernels[name], work.precision == "tf32"
    why = info.why_not
    if not why and tf32 and not info.tf32:
        why = f"{name} does not multiply float32 as TF32"
    if not why and not tf32 and work.dtype.name not in info.dtypes:
        why = f"{name} takes {' or '.join(info.dtypes)}, not {work.dtype.name}"
    return Contender(name, lambda work, sets: _ours(name, work, sets), why)


def _ours(name: str, work: Gemm, sets: Sequence[Set]) -> Run:
    precision = "tf32" if work.precision == "tf32" else None

    def run(i: int) -> None:
        a, b, out = sets[i]
        matmul(a, b, name, out=out, precision=precision)

    return run


def _library_way(work: Gemm, name: str) -> Contender:
    """cupy.matmul, whose float32 is float32 as long as CUPY_TF32 is not set; for TF32 our own call
    of the same function of cuBLAS, which asks for it."""
    if work.precision == "tf32":
        return Contender(
            name, lambda work, sets: _ours("cublas", work, sets), kernels["cublas"].why_not
        )
    return Contender(name, _library)


def _library(work: Gemm, sets: Sequence[Set]) -> Run:
    xp = namespace("numpy" if type(sets[0].a).__module__ == "numpy" else "cupy")

    def run(i: int) -> None:
        a, b, out = sets[i]
        xp.matmul(a, b, out=out)

    return run


def _peer(name: str) -> Contender:
    needed = ("torch",) if name == TORCH else ("torch", "triton")
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        return Contender(name, _none, f"{' and '.join(missing)} cannot be imported here")
    from tiledask.lab.bench.tiles import peers

    return Contender(
        name, {TORCH: peers.torch_run, TRITON: peers.triton_run}[name], peers.why_not(name)
    )


def _none(work: Gemm, sets: Sequence[Set]) -> Run:
    raise AssertionError("a contender that cannot take part was asked to")
