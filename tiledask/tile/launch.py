"""Our own CUDA C++ kernels, compiled at run time by CuPy and launched on CuPy arrays."""

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import namespace, on_device
from tiledask.tile.levels import Tile

__all__ = ["SMEM_TILES", "compiled", "options", "smem_tiled", "source"]

SMEM_TILES = (16, 32)
"""Extents that smem_tiled is built for: 256 and 1024 threads per block."""

_MAX_EXTENT = 2**31 - 64
"""Rows and columns are 32-bit ints on the device, and the last tile may end 31 beyond them."""
_MAX_GRID_Y = 65_535
"""Blocks in the grid's y direction (CUDA C++ Programming Guide, technical specifications)."""


def smem_tiled(a: Any, b: Any, out: Any, tile: Tile, accumulate: bool) -> None:
    """Launches out = a @ b, or out += a @ b, on the device and stream in use; does not wait."""
    (m, k), n, extent = a.shape, b.shape[1], tile[0]
    _check_extents(m, n, k, extent)
    grid = (-(-n // extent), -(-m // extent))
    arguments = (
        *map(np.int32, (m, n, k)),
        np.float32(1), a, *_strides(a), b, *_strides(b),
        np.float32(accumulate), out, *_strides(out),
    )  # fmt: skip
    with on_device(out):
        compiled("smem_tiled", extent)(grid, (extent, extent), arguments)


def source(name: str) -> str:
    """The CUDA C++ text of the kernel ``name``.

    >>> "__global__" in source("smem_tiled")
    True
    """
    return files("tiledask.tile").joinpath("cuda", f"{name}.cu").read_text(encoding="utf-8")


def options(extent: int) -> tuple[str, ...]:
    """What the compiler is told besides the architecture, which CuPy adds for the device."""
    return ("-std=c++17", f"-DTILE={extent}")


@cache
def compiled(name: str, extent: int) -> Any:
    """The kernel ``name`` for tiles of ``extent``; CuPy keeps one binary per device."""
    module = namespace("cupy").RawModule(code=source(name), options=options(extent))
    return module.get_function(name)


def _strides(x: Any) -> tuple[np.int64, np.int64]:
    """Elements from one row, and from one column, to the next."""
    return tuple(np.int64(stride // x.itemsize) for stride in x.strides)


def _check_extents(m: int, n: int, k: int, extent: int) -> None:
    if max(m, n, k) > _MAX_EXTENT:
        raise KernelError(
            f"smem_tiled counts rows and columns in 32 bits, up to {_MAX_EXTENT}, "
            f"got {m} x {k} by {k} x {n}; cut the product into blocks or use kernel='cublas'"
        )
    if -(-m // extent) > _MAX_GRID_Y:
        raise KernelError(
            f"smem_tiled has one row of thread blocks per {extent} rows, up to {_MAX_GRID_Y} of "
            f"them, so at most {_MAX_GRID_Y * extent} rows, got {m}; cut the product into blocks "
            f"or use kernel='cublas'"
        )
