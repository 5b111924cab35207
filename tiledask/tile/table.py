"""The kernels by name: what each takes, whether this machine can run it, and what it needs."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan import html
from tiledask.tile import numpy_kernels
from tiledask.tile.backend import HALVES
from tiledask.tile.cuda import launch
from tiledask.tile.epilogue import activation_bytes
from tiledask.tile.kernel import Kernel, Run, Sizes
from tiledask.tile.levels import Tile

__all__ = ["KernelTable", "find", "kernels", "lookup", "meant"]

_ALL = ("float16", "bfloat16", "float32", "float64")


def _tiled_workspace(sizes: Sizes) -> int:
    assert isinstance(sizes.tile, tuple)  # the kernel has one, and takes no other kind
    tm, tn, tk = map(min, sizes.tile, (sizes.m, sizes.n, sizes.k))
    # the accumulator and one tile product; halves are widened a tile at a time, and then no more
    wide = max(sizes.itemsize, 4)
    copies = (tm * tk + tk * tn) * wide if sizes.itemsize < wide else 0
    return 2 * tm * tn * wide + max(copies, _activation(sizes, tm, tn))


def _blas_workspace(sizes: Sizes) -> int:
    if sizes.itemsize != 2:
        return _activation(sizes, sizes.m, sizes.n)
    tile = numpy_kernels.half_tile(sizes.out_itemsize)
    tm, tn, tk = (min(t, x) for t, x in zip(tile, (sizes.m, sizes.n, sizes.k), strict=True))
    room = tm * tk + tk * tn + (tm * tn if sizes.out_itemsize == 2 else 0)
    return 4 * room + _activation(sizes, tm, tn)


def _cublas_workspace(sizes: Sizes) -> int:
    if sizes.out_itemsize != 2 or not sizes.elementwise:
        return _activation(sizes, sizes.m, sizes.n, "cupy")
    rows = min(numpy_kernels.half_rows(sizes.n), sizes.m)
    return 4 * rows * sizes.n + _activation(sizes, rows, sizes.n, "cupy")


def _hopper_workspace(sizes: Sizes) -> int:
    """Bytes at most of copies of a and b whose lines do not all start on boundaries of 16 bytes.

    The operands' layouts are not known here, so each counts if it could need a copy.
    """
    m, n, k, each = sizes.m, sizes.n, sizes.k, 16 // sizes.itemsize

    def padded(lines: int, length: int) -> int:
        return lines * -(-length // each) * 16 if length % each else 0

    return max(padded(m, k), padded(k, m)) + max(padded(k, n), padded(n, k))


def _activation(sizes: Sizes, m: int, n: int, arrays: str = "numpy") -> int:
    if sizes.activation is None:
        return 0
    return activation_bytes(m, n, max(sizes.itemsize, 4), arrays)


def _ours(
    name: str, dtypes: tuple[str, ...], summary: str, run: Run, tiles: tuple[Tile, ...], **more: Any
) -> Kernel:
    """One of our CUDA kernels, whose first tile is the usual one."""
    more |= {"tile": tiles[0], "tiles": tiles, "needs_nvrtc": True, "batched": True}
    return Kernel(name, "cupy", dtypes, summary, run, **more)


_KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "loops",
            "numpy",
            _ALL,
            "the definition, one multiplication at a time; the reference for tiny sizes",
            numpy_kernels.loops,
        ),
        Kernel(
            "tiled",
            "numpy",
            _ALL,
            "explicit loops over tiles, each tile product by BLAS into an accumulator",
            numpy_kernels.tiled,
            _tiled_workspace,
            tile=(512, 512, 512),
        ),
        Kernel(
            "blas",
            "numpy",
            _ALL,
            "the library's product, added in place; on CuPy arrays this name means cublas",
            numpy_kernels.blas,
            _blas_workspace,
        ),
        _ours(
            "smem_tiled",
            ("float32",),
            "the textbook: a tile of C per thread block, operands through shared memory",
            launch.smem_tiled,
            launch.SMEM_TILES[::-1],
        ),
        _ours(
            "sgemm_warptiled",
            ("float32",),
            "tiles within tiles, down to registers; copies under the arithmetic",
            launch.sgemm_warptiled,
            launch.SGEMM_TILES,
            capability=(8, 0),
        ),
        _ours(
            "mma_multistage",
            HALVES,
            "tensor cores of a warp, several stages of copies under way",
            launch.mma_multistage,
            launch.MMA_TILES,
            tile_k_bytes=launch.MMA_K_BYTES,
            chooses=True,
            capability=(8, 0),
            tf32=launch.mma_multistage,
        ),
        _ours(
            "wgmma_ws_persistent",
            HALVES,
            "Hopper: tiles by the copy engine, one producer, two consumers, blocks that stay",
            launch.wgmma_ws_persistent,
            launch.WGMMA_TILES,
            workspace=_hopper_workspace,
            chooses=True,
            capability=(9, 0),
            exactly=True,
        ),
        Kernel(
            "cublas",
            "cupy",
            _ALL,
            "NVIDIA's library; float32 stays float32 unless TF32 is asked for",
            numpy_kernels.cublas,
            _cublas_workspace,
            batched=True,
            tf32=partial(numpy_kernels.cublas, tf32=True),
        ),
    )
}


class KernelTable(Mapping[str, Kernel]):
    """The kernels by name. Asking one whether it is available asks this machine.

    >>> [name for name, kernel in kernels.items() if kernel.arrays == "numpy"]
    ['loops', 'tiled', 'blas']
    >>> kernels["blas"].available, kernels["wgmma_ws_persistent"].needs
    (True, 'compute capability 9.0 (H100, H200)')
    """

    def __getitem__(self, name: str) -> Kernel:
        return _KERNELS[name]

    def __contains__(self, name: object) -> bool:
        return name in _KERNELS

    def __iter__(self) -> Iterator[str]:
        return iter(_KERNELS)

    def __len__(self) -> int:
        return len(_KERNELS)

    def __repr__(self) -> str:
        width, found = max(map(len, self)), list(self.values())
        lines = [
            f"{info.name:<{width}}  {info.arrays:<5}  "
            f"{'available' if info.available else 'unavailable':<11}  "
            f"{_types(info)}: {info.summary}"
            for info in found
        ]
        reasons: dict[str, list[str]] = {}
        for info in found:
            if info.why_not:
                reasons.setdefault(info.why_not, []).append(info.name)
        lines += [f"{', '.join(names)}: {why_not}" for why_not, names in reasons.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("kernel", "arrays", "types", "tiles", "needs", "here", "what it is")
        rows = []
        for info in self.values():
            tiles = [info.tile, *(t for t in info.tiles if t != info.tile)] if info.tile else []
            shown = ", ".join("x".join(map(str, tile)) for tile in tiles)
            if info.tile and not info.tiles:
                shown += ", or any"
            shown, needs = shown or "none to choose", info.needs or _ANY[info.arrays]
            here = "yes" if info.available else f"no: {info.why_not}"
            rows.append((info.name, info.arrays, _types(info), shown, needs, here, info.summary))
        return html.table(head, rows)


kernels = KernelTable()

_ANY = {"numpy": "any CPU", "cupy": "any GPU"}


def _types(kernel: Kernel) -> str:
    as_tf32 = ("float32 as tf32",) if kernel.tf32 else ()
    return ", ".join(kernel.dtypes + as_tf32)


def lookup(name: str) -> Kernel:
    """The kernel called ``name``, whether or not this machine can run it."""
    if name not in _KERNELS:
        raise KernelError(f"there is no kernel {name!r}; there are {', '.join(_KERNELS)}")
    return _KERNELS[name]


def meant(name: str, arrays: str) -> str:
    """The kernel's own name: "blas" is the library's product on either kind of ``arrays``.

    >>> meant("blas", "cupy"), meant("blas", "numpy")
    ('cublas', 'blas')
    """
    return "cublas" if (name, arrays) == ("blas", "cupy") else name


def find(name: str, arrays: str) -> Kernel:
    """The kernel that ``name`` means for operands that are ``arrays``, "numpy" or "cupy".

    Raises KernelError if there is none, if it takes other arrays, or if this machine cannot run it.
    """
    kernel = lookup(meant(name, arrays))
    if kernel.arrays != arrays:
        mine = ", ".join(other.name for other in _KERNELS.values() if other.arrays == arrays)
        move = {"cupy": "cupy.asarray(x)", "numpy": "td.tile.to_numpy(x)"}[kernel.arrays]
        raise KernelError(
            f"kernel {kernel.name!r} takes {kernel.arrays} arrays, got {arrays}; use one of "
            f"{mine}, or move the operands: {move}"
        )
    if why_not := kernel.why_not:
        raise KernelError(f"kernel {kernel.name!r} cannot run here: {why_not}")
    return kernel
