"""The product of two matrices on one device, by the kernel one names."""

from typing import Any

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.levels import Tile, TileTraffic, as_tile
from tiledask.tile.table import Kernel, find, lookup

__all__ = ["count_traffic", "matmul", "workspace"]

_LOOPS_LIMIT = 2**24
"""Multiplications that kernel "loops" accepts: about a second of Python."""


def matmul(
    a: Any,
    b: Any,
    kernel: str = "blas",
    tile: int | Tile | None = None,
    out: Any = None,
    accumulate: bool = False,
) -> Any:
    """a @ b for a [m, k] and b [k, n], NumPy or CuPy arrays, computed by ``kernel``.

    ``kernel`` is a name in `td.tile.kernels`; "blas" means the library's product on either kind
    of array. ``tile`` is one extent or (tm, tn, tk), for the kernels that have one: by default 512
    for "tiled", 32 for "smem_tiled" (which also takes 16). With ``out`` [m, n] the result is
    written there, and with ``accumulate`` added to what is there; `workspace` says how many bytes
    this takes besides. On a GPU the call returns before the work is done, as CuPy's own do.

    Halves (float16, bfloat16) are summed in float32 and rounded once, at the end; with a float32
    ``out`` never, which is how to add up products of several panels.

    Any strides will do; m, n and k are 1 or more. Raises KernelError, a ValueError, for operands,
    tiles, kernels and outputs that do not go together.

    >>> import numpy as np
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    >>> matmul(a, b, kernel="tiled", tile=2).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    return _run(a, b, kernel, tile, out, accumulate)[0]


def count_traffic(
    a: Any, b: Any, tile: int | Tile | None = None, out: Any = None, accumulate: bool = False
) -> tuple[Any, TileTraffic]:
    """a @ b by the kernel "tiled", and the bytes that it loaded and stored on the way.

    The arguments are those of `matmul`, for NumPy arrays. The count is made tile by tile from the
    arrays that were really taken; `traffic` predicts it.

    >>> import numpy as np
    >>> from tiledask.tile.levels import traffic
    >>> a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    >>> count_traffic(a, b, tile=(2, 4, 2))[1] == traffic(5, 7, 3, tile=(2, 4, 2), itemsize=4)
    True
    """
    return _run(a, b, "tiled", tile, out, accumulate)


def workspace(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    kernel: str = "blas",
    tile: int | Tile | None = None,
    accumulate: bool = False,
    out_itemsize: int | None = None,
) -> int:
    """Bytes of arrays that `matmul` allocates besides a, b and out, at most at one time.

    ``itemsize`` is that of the operands, 2 for halves, and ``out_itemsize`` that of ``out`` if it
    differs: 4 where halves are added up in float32. Adding to ``out`` takes no more than writing.

    Not counted: what the library keeps inside itself; copies of operands without a unit stride,
    and 512 rows of an ``out`` without one; NumPy's own buffers (at most 3 x 8192 elements) where
    "tiled" meets an ``out`` that is neither row-major nor a slice of rows. Answers for every
    kernel, whether or not this machine can run it.

    >>> workspace(4096, 4096, 4096, 4), workspace(4096, 4096, 4096, 4, accumulate=True)
    (0, 0)
    >>> workspace(4096, 4096, 4096, 2, out_itemsize=4)  # pieces of a and b, in float32
    8388608
    """
    chosen = lookup(kernel)
    out_itemsize = itemsize if out_itemsize is None else out_itemsize
    return chosen.workspace(m, n, k, itemsize, out_itemsize, _checked_tile(chosen, tile))


def _run(a: Any, b: Any, name: str, tile: Any, out: Any, accumulate: bool) -> tuple:
    operands = (a, b) if out is None else (a, b, out)
    xp = backend.array_namespace(*operands)
    kernel = find(name, xp.__name__)
    _check_operands(a, b, kernel)
    tile = _checked_tile(kernel, tile)
    if out is not None:
        _check_out(a, b, out, xp)
    elif accumulate:
        raise KernelError("accumulate=True adds to out, and there is none; give out= an array")
    with backend.on_device(a):
        if out is None:
            out = xp.empty((a.shape[0], b.shape[1]), a.dtype)
        counted = kernel.run(a, b, out, tile, accumulate)
    return out, counted


def _check_operands(a: Any, b: Any, kernel: Kernel) -> None:
    if a.ndim != 2 or b.ndim != 2:
        raise KernelError(f"a and b are matrices of 2 dimensions, got {a.ndim} and {b.ndim}")
    if a.shape[1] != b.shape[0]:
        raise KernelError(
            f"the columns of a must be as many as the rows of b, got {_by(a)} @ {_by(b)}: "
            f"{a.shape[1]} against {b.shape[0]}; transpose or reshape one"
        )
    if 0 in (*a.shape, *b.shape):
        raise KernelError(f"m, n and k must be 1 or more, got {_by(a)} @ {_by(b)}")
    if a.dtype != b.dtype:
        raise KernelError(
            f"a and b must have one element type, got {a.dtype} and {b.dtype}; "
            f"cast one with .astype"
        )
    if a.dtype.name not in kernel.dtypes or not a.dtype.isnative:
        raise KernelError(
            f"kernel {kernel.name!r} takes {', '.join(kernel.dtypes)}, got {a.dtype}; cast with "
            f".astype" + (" or use kernel='blas'" if a.dtype.name in backend.HALVES else "")
        )
    if a.device != b.device:
        raise KernelError(f"a and b must be on one device, got {a.device} and {b.device}")
    work = a.shape[0] * a.shape[1] * b.shape[1]
    if kernel.name == "loops" and work > _LOOPS_LIMIT:
        raise KernelError(
            f"kernel 'loops' is a reference for up to {_LOOPS_LIMIT} multiplications, got {work}; "
            f"use kernel='tiled' or 'blas'"
        )


def _check_out(a: Any, b: Any, out: Any, xp: Any) -> None:
    shape = (a.shape[0], b.shape[1])
    wide = backend.accumulator(a.dtype)
    if out.shape != shape or out.dtype not in (a.dtype, wide):
        either = f"{a.dtype}" if wide == a.dtype else f"{a.dtype} or {wide}"
        raise KernelError(
            f"out must be {either} {shape}, got {out.dtype} {out.shape}; "
            f"allocate it with {xp.__name__}.empty({shape}, '{wide}')"
        )
    if out.device != a.device:
        raise KernelError(f"out must be where a is, {a.device}, got {out.device}")
    if xp.__name__ == "numpy" and not out.flags.writeable:
        raise KernelError("out must be writable, got a read-only array; pass out.copy()")
    # CuPy compares bounds only, so that it may see an overlap between two interleaved slices
    overlap = xp.shares_memory if xp.__name__ == "numpy" else xp.may_share_memory
    if overlap(a, out) or overlap(b, out):
        raise KernelError("out must not overlap a or b, whose elements are still read; copy one")


def _checked_tile(kernel: Kernel, tile: Any) -> Tile | None:
    if tile is None:
        return kernel.tile
    if kernel.tile is None:
        raise KernelError(
            f"kernel {kernel.name!r} has no tile to choose, got tile={tile!r}; leave it out, or "
            f"use kernel='tiled' (NumPy) or 'smem_tiled' (CuPy)"
        )
    tile = as_tile(tile)
    if kernel.extents and tile not in [(extent,) * 3 for extent in kernel.extents]:
        raise KernelError(
            f"kernel {kernel.name!r} is built for square tiles of "
            f"{' or '.join(map(str, kernel.extents))}, got {tile}"
        )
    return tile


def _by(x: Any) -> str:
    return "x".join(map(str, x.shape))
