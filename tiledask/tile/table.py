"""The kernels by name: what each takes, whether this machine can run it, and what it needs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from tiledask.errors import KernelError
from tiledask.tile import launch, numpy_kernels
from tiledask.tile.backend import probe
from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["Kernel", "KernelInfo", "KernelTable", "find", "kernels", "lookup"]

_ALL = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Kernel:
    """One row of the table: the function and what it accepts."""

    name: str
    arrays: str
    """"numpy" or "cupy"."""
    dtypes: tuple[str, ...]
    summary: str
    run: Callable[[Any, Any, Any, Tile | None, bool], TileTraffic | None]
    """(a, b, out, tile, accumulate): writes or adds a @ b into out."""
    workspace: Callable[[int, int, int, int, int, Tile | None], int]
    """(m, n, k, itemsize, out_itemsize, tile): bytes it allocates besides a, b and out."""
    tile: Tile | None = None
    """The tile it uses unless told otherwise; None for a kernel that has no tile of ours."""
    extents: tuple[int, ...] = ()
    """If given, the tile must be square with one of these extents."""
    needs_nvrtc: bool = False


@dataclass(frozen=True)
class KernelInfo:
    """What a reader of the table sees of one kernel."""

    name: str
    arrays: str
    """"numpy" or "cupy": where the operands live."""
    dtypes: tuple[str, ...]
    """Element types it takes; both operands share one, and ``out`` with them, or is float32
    for halves."""
    tile: Tile | None
    """Default (tm, tn, tk), None where the library chooses."""
    available: bool
    why_not: str
    """Why this machine cannot run it, in a sentence; empty if it can."""
    summary: str


def _tiled_workspace(m: int, n: int, k: int, itemsize: int, out_itemsize: int, tile: Tile) -> int:
    tm, tn, tk = (min(t, extent) for t, extent in zip(tile, (m, n, k), strict=True))
    # the accumulator and one tile product; halves are widened a tile at a time
    wide = max(itemsize, 4)
    copies = (tm * tk + tk * tn) * wide if itemsize < wide else 0
    return 2 * tm * tn * wide + copies


def _blas_workspace(m: int, n: int, k: int, itemsize: int, out_itemsize: int, tile: None) -> int:
    if itemsize != 2:
        return 0
    tile = numpy_kernels.half_tile(out_itemsize)
    tm, tn, tk = (min(t, extent) for t, extent in zip(tile, (m, n, k), strict=True))
    return 4 * (tm * tk + tk * tn + (tm * tn if out_itemsize == 2 else 0))


def _nothing(*_: Any) -> int:
    return 0


_KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "loops", "numpy", _ALL,
            "the definition, one multiplication at a time; the reference for tiny sizes",
            lambda a, b, out, tile, accumulate: numpy_kernels.loops(a, b, out, accumulate),
            _nothing,
        ),
        Kernel(
            "tiled", "numpy", _ALL,
            "explicit loops over tiles, each tile product by BLAS into an accumulator",
            numpy_kernels.tiled,
            _tiled_workspace,
            tile=(512, 512, 512),
        ),
        Kernel(
            "blas", "numpy", _ALL,
            "the library's product, added in place; on CuPy arrays this name means cublas",
            lambda a, b, out, tile, accumulate: numpy_kernels.blas(a, b, out, accumulate),
            _blas_workspace,
        ),
        Kernel(
            "smem_tiled", "cupy", ("float32",),
            "our CUDA C++ kernel: one thread block per tile of C, operands in shared memory",
            launch.smem_tiled,
            _nothing,
            tile=(32, 32, 32),
            extents=launch.SMEM_TILES,
            needs_nvrtc=True,
        ),
        Kernel(
            "cublas", "cupy", _ALL,
            "NVIDIA's library; float32 stays float32 unless CUPY_TF32=1 is set",
            lambda a, b, out, tile, accumulate: numpy_kernels.cublas(a, b, out, accumulate),
            _nothing,
        ),
    )
}  # fmt: skip


class KernelTable(Mapping):
    """The kernels by name. Looking at one asks this machine whether it can run it.

    >>> sorted(kernels), kernels["blas"].available
    (['blas', 'cublas', 'loops', 'smem_tiled', 'tiled'], True)
    """

    def __getitem__(self, name: str) -> KernelInfo:
        kernel = _KERNELS[name]
        why_not = _why_not(kernel)
        return KernelInfo(
            kernel.name, kernel.arrays, kernel.dtypes, kernel.tile, not why_not, why_not,
            kernel.summary,
        )  # fmt: skip

    def __contains__(self, name: object) -> bool:
        return name in _KERNELS

    def __iter__(self) -> Iterator[str]:
        return iter(_KERNELS)

    def __len__(self) -> int:
        return len(_KERNELS)

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(
            f"{info.name:<{width}}  {info.arrays:<5}  {_state(info)}  "
            f"{', '.join(info.dtypes)}: {info.summary}"
            for info in self.values()
        )

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th>{h}</th>" for h in ("kernel", "arrays", "types", "tile", "here", "what it is")
        )
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(info)) + "</tr>"
            for info in self.values()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


kernels = KernelTable()


def lookup(name: str) -> Kernel:
    """The kernel called ``name``, whether or not this machine can run it."""
    if name not in _KERNELS:
        raise KernelError(f"there is no kernel {name!r}; there are {', '.join(_KERNELS)}")
    return _KERNELS[name]


def find(name: str, arrays: str) -> Kernel:
    """The kernel that ``name`` means for operands that are ``arrays``, "numpy" or "cupy".

    Raises KernelError if there is none, if it takes other arrays, or if this machine cannot run it.
    """
    if name == "blas" and arrays == "cupy":
        name = "cublas"
    kernel = lookup(name)
    if kernel.arrays != arrays:
        mine = ", ".join(other.name for other in _KERNELS.values() if other.arrays == arrays)
        raise KernelError(
            f"kernel {name!r} takes {kernel.arrays} arrays, got {arrays}; use one of {mine}, or "
            f"move the operands: {_MOVE[kernel.arrays]}"
        )
    if why_not := _why_not(kernel):
        raise KernelError(f"kernel {name!r} cannot run here: {why_not}")
    return kernel


_MOVE = {"cupy": "cupy.asarray(x)", "numpy": "td.tile.to_numpy(x)"}


def _why_not(kernel: Kernel) -> str:
    if kernel.arrays == "numpy":
        return ""
    backend = probe()
    return backend.reason or (backend.nvrtc_reason if kernel.needs_nvrtc else "")


def _state(info: KernelInfo) -> str:
    return "available  " if info.available else "unavailable"


def _cells(info: KernelInfo) -> tuple[str, ...]:
    tile = "x".join(map(str, info.tile)) if info.tile else "the library's"
    here = "yes" if info.available else f"no: {info.why_not}"
    return info.name, info.arrays, ", ".join(info.dtypes), tile, here, info.summary
