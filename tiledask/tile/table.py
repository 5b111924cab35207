"""The kernels by name: what each takes, whether this machine can run it, and what it allocates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.tables import Part, Printable, table
from tiledask.tile import numpy_kernels
from tiledask.tile.backend import Array, GpuInfo, probe
from tiledask.tile.choice.config import Config, config_of, configs, runs_on
from tiledask.tile.cuda.launch import launch
from tiledask.tile.gemm import gemm
from tiledask.tile.levels import Tile, TileTraffic, as_tile

__all__ = ["Kernel", "KernelTable", "find", "kernel_for", "kernels", "lookup"]


def _tiled_workspace(extents: Tile, itemsize: int, out_itemsize: int, tile: Tile) -> int:
    tm, tn, tk = map(min, tile, extents)
    # the accumulator and one tile product; halves are widened a tile at a time, and then no more
    wide = max(itemsize, 4)
    copies = (tm * tk + tk * tn) * wide if itemsize < wide else 0
    return 2 * tm * tn * wide + copies


def _blas_workspace(extents: Tile, itemsize: int, out_itemsize: int, tile: None) -> int:
    if itemsize != 2:
        return 0
    tm, tn, tk = map(min, numpy_kernels.half_tile(out_itemsize), extents)
    return 4 * (tm * tk + tk * tn + (tm * tn if out_itemsize == 2 else 0))


def _copies(extents: Tile, itemsize: int, out_itemsize: int, tile: Tile | None) -> int:
    """Bytes at most of copies of a, b and out whose lines do not all start and end on boundaries
    of 16 bytes, whichever way they lie."""

    def padded(lines: int, length: int, size: int) -> int:
        each = 16 // size
        return lines * -(-length // each) * 16 if length % each else 0

    m, n, k = extents
    arrays = (m, k, itemsize), (k, n, itemsize), (m, n, out_itemsize)
    return sum(max(padded(x, y, size), padded(y, x, size)) for x, y, size in arrays)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One row of the table: the function and what it accepts."""

    name: str
    arrays: str  # "numpy" or "cupy"
    dtypes: tuple[str, ...]
    run: Callable[[Array, Array, Array, Any, float], TileTraffic | None]
    """(a, b, out, tile, beta): writes a @ b + beta out into out."""
    workspace: Callable[[Tile, int, int, Any], int] = lambda extents, itemsize, out, tile: 0
    """(m, n and k, bytes of an element, of out's, tile): bytes it allocates besides its arrays."""
    tile: Tile | None = None  # What it uses if none is given; None for a library's own
    chooses: bool = False  # Whether `tile` is only the usual one: it chooses by the product
    built: tuple[Config, ...] = ()  # What our CUDA kernels are built for, by NVRTC

    @property
    def why_not(self) -> str:
        """Why no device of this machine can run it, in a sentence; empty if one can."""
        if self.arrays == "numpy":
            return ""
        found = probe()
        missing = found.nvrtc_reason if self.built else ""
        return found.reason or missing or unsuited(self, found.devices)

    @property
    def needs(self) -> str:
        """The GPUs that it runs on; empty if any."""
        known = {"8.0": "8.0 (A100) or more", "9.0a": "9.0 (H100, H200)"}
        least = self.built[0].capability if self.built else ""
        return least and f"compute capability {known[least]}"

    def with_tile(self, tile: int | Tile | None) -> Tile | None:
        """The tile to use when ``tile`` is given; None where the kernel is to choose itself."""
        if tile is None:
            return None if self.chooses else self.tile
        if self.tile is None:
            raise KernelError(
                f"kernel {self.name!r} has no tile to choose, got tile={tile!r}; leave it out"
            )
        return config_of(self.name, tile=tile).block if self.built else as_tile(tile)


@cache
def unsuited(kernel: Kernel, devices: tuple[GpuInfo, ...]) -> str:
    """Why none of ``devices`` runs ``kernel``, in a sentence; empty if one does.

    >>> unsuited(kernels["wgmma_ws_persistent"], (GpuInfo(0, "T4", "7.5", 16 * 10**9),))
    'needs a GPU of compute capability 9.0 (H100, H200), and there is T4 (7.5)'
    """
    capabilities = [d.compute_capability for d in devices]
    if not kernel.needs or any(runs_on(kernel.built[0].capability, c) for c in capabilities):
        return ""
    there = ", ".join(f"{d.name} ({d.compute_capability})" for d in devices)
    return f"needs a GPU of {kernel.needs}, and there is {there}"


class KernelTable(Printable, dict[str, Kernel]):
    """The kernels by name. Asking one whether it is available asks this machine.

    >>> [name for name, kernel in kernels.items() if kernel.arrays == "numpy"]
    ['loops', 'tiled', 'blas']
    >>> kernels["blas"].why_not, kernels["wgmma_ws_persistent"].needs
    ('', 'compute capability 9.0 (H100, H200)')
    """

    def printed(self) -> Iterator[Part]:
        """The kernels, and below why some cannot run here."""
        reasons, rows = dict[str, list[str]](), {}
        for name, each in self.items():
            if each.why_not:
                reasons.setdefault(each.why_not, []).append(name)
            tiles = [way.block for way in each.built] or ([each.tile] if each.tile else [])
            shown = ", ".join("x".join(map(str, tile)) for tile in tiles) or "none to choose"
            rows[name] = {
                "arrays": each.arrays,
                "types": ", ".join(each.dtypes),
                "tiles": shown + (", or any" if each.tile and not each.built else ""),
                "needs": each.needs or {"numpy": "any CPU", "cupy": "any GPU"}[each.arrays],
                "here": "unavailable" if each.why_not else "available",
            }
        below = [f"{', '.join(names)}: {why_not}" for why_not, names in reasons.items()]
        yield replace(table(rows), below="\n".join(below))

    __repr__ = Printable.to_text


_ALL = ("float16", "bfloat16", "float32", "float64")


def _ours(name: str, dtypes: tuple[str, ...], **more: Any) -> Kernel:
    """One of our CUDA kernels, whose first tile is the usual one."""
    run, built = partial(launch, name), configs[name]
    return Kernel(name, "cupy", dtypes, run, tile=built[0].block, built=built, **more)


kernels = KernelTable(
    (each.name, each)
    for each in (
        Kernel("loops", "numpy", _ALL, numpy_kernels.loops),
        Kernel("tiled", "numpy", _ALL, numpy_kernels.tiled, _tiled_workspace, (512, 512, 512)),
        Kernel("blas", "numpy", _ALL, numpy_kernels.blas, _blas_workspace),
        _ours("smem_tiled", ("float32",)),
        _ours("sgemm_warptiled", ("float32",), workspace=_copies),
        _ours("mma_multistage", ("bfloat16",), workspace=_copies),
        _ours("wgmma_ws_persistent", ("bfloat16",), workspace=_copies, chooses=True),
        Kernel("cublas", "cupy", _ALL, lambda a, b, out, tile, beta: gemm(a, b, out, beta=beta)),
    )
)


def lookup(name: str) -> Kernel:
    """The kernel called ``name``, whether or not this machine can run it."""
    if name not in kernels:
        raise KernelError(f"there is no kernel {name!r}; there are {', '.join(kernels)}")
    return kernels[name]


def kernel_for(name: str, arrays: str) -> Kernel:
    """The kernel that ``name`` means for operands that are ``arrays``, whether or not this machine
    can run it: "blas" is the library's product on either kind.

    >>> kernel_for("blas", "cupy").name, kernel_for("blas", "numpy").name
    ('cublas', 'blas')
    """
    kernel = lookup("cublas" if (name, arrays) == ("blas", "cupy") else name)
    if kernel.arrays != arrays:
        mine = ", ".join(each.name for each in kernels.values() if each.arrays == arrays)
        raise KernelError(
            f"kernel {kernel.name!r} takes {kernel.arrays} arrays, got {arrays}; use one of "
            f"{mine}, or operands that are {kernel.arrays} arrays"
        )
    return kernel


def find(name: str, arrays: str) -> Kernel:
    """The kernel that ``name`` means for operands that are ``arrays``, if it can run here."""
    kernel = kernel_for(name, arrays)
    if why_not := kernel.why_not:
        raise KernelError(f"kernel {kernel.name!r} cannot run here: {why_not}")
    return kernel
