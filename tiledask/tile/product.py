"""The product of two matrices on one device, by the kernel one names."""

from numbers import Real

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.backend import Array
from tiledask.tile.levels import Tile, TileTraffic
from tiledask.tile.table import Kernel, find, lookup, unsuited

__all__ = ["accumulate", "matmul", "workspace"]

_LOOPS_LIMIT = 2**24
"""Multiplications that kernel "loops" accepts: about a second of Python."""


def matmul(
    a: Array,
    b: Array,
    kernel: str = "blas",
    tile: int | Tile | None = None,
    out: Array | None = None,
    *,
    beta: float = 0.0,
) -> Array:
    """a @ b + beta out, by ``kernel``, for NumPy or CuPy arrays.

    kernel, tile
        A name in `td.tile.kernels`; "blas" means the library's product on either kind of array.
        The tile is one extent or (tm, tn, tk), for the kernels that have one.
    a, b, out
        [m, k], [k, n] and [m, n], of any strides, all extents 1 or more. The result is written to
        ``out``, and returned. With a beta of 0 what it held is not read: NaN doesn't enter.

    Halves (float16, bfloat16) are summed in float32 and rounded once, at the end; with a float32
    ``out`` never, which is how to add up products of several panels. On a GPU the call returns
    before the work is done. Raises KernelError, a ValueError, for what does not go together.

    >>> import numpy as np
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    >>> matmul(a, b, kernel="tiled", tile=2, out=np.ones((2, 4), "f4"), beta=2.0).tolist()
    [[5.0, 5.0, 5.0, 5.0], [5.0, 5.0, 5.0, 5.0]]
    """
    return _run(a, b, kernel, tile, out, beta)[0]


def accumulate(
    a: Array, b: Array, out: Array, kernel: str, tile: int | Tile | None, beta: float
) -> TileTraffic | None:
    """What the kernel loaded while it wrote a @ b + beta out into ``out``.

    "tiled" counts each tile as it takes it; our CUDA kernels give what the grid loads that they
    launched; None for BLAS and cuBLAS, whose loops are their own. Arguments are those of `matmul`.
    """
    return _run(a, b, kernel, tile, out, beta)[1]


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
    """Bytes of arrays that `matmul` allocates besides those it is given, at most at one time.

    ``itemsize`` is that of the operands, and ``out_itemsize`` that of ``out`` if it differs: 4
    where halves are added up in float32. Adding to ``out`` (``accumulate``) takes no more than
    writing.

    Counted for a row-major ``out`` and operands with a unit stride, whether or not this machine
    can run the kernel; without what a library, and NumPy in its buffers, keeps inside itself.

    >>> workspace(4096, 4096, 4096, 4), workspace(4096, 4096, 4096, 4, accumulate=True)
    (0, 0)
    >>> workspace(4096, 4096, 4096, 2, out_itemsize=4)  # pieces of a and b, in float32
    8388608
    """
    chosen = lookup(kernel)
    return chosen.workspace((m, n, k), itemsize, out_itemsize or itemsize, chosen.with_tile(tile))


def _run(
    a: Array, b: Array, name: str, tile: int | Tile | None, out: Array | None, beta: float
) -> tuple[Array, TileTraffic | None]:
    xp = backend.array_namespace(a, b, *[] if out is None else [out])
    kernel = find(name, xp.__name__)
    _check_operands(a, b, kernel)
    taken = kernel.with_tile(tile)
    _check_out(a, b, out, beta)
    with backend.on_device(a):
        if out is None:
            out = xp.empty((a.shape[0], b.shape[1]), a.dtype)
        return out, kernel.run(a, b, out, taken, float(beta))


# -- what is refused -------------------------------------------------------------------------------


def _check_operands(a: Array, b: Array, kernel: Kernel) -> None:
    """None if a [m, k] and b [k, n] multiply, and ``kernel`` takes them where they are."""
    if not a.ndim == b.ndim == 2:
        raise KernelError(
            f"a and b have 2 dimensions, got {a.shape} @ {b.shape}; multiply slices of them"
        )
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or not m * k * n:
        raise KernelError(
            f"a has as many columns as b rows, and all extents are 1 or more, got {m}x{k} @ "
            f"{rows}x{n}; transpose or reshape one"
        )
    if a.dtype != b.dtype:
        raise KernelError(f"a and b must have one element type, got {a.dtype} and {b.dtype}")
    name = backend.name_of(a.dtype) if a.dtype.isnative else str(a.dtype)
    if name not in kernel.dtypes:
        raise KernelError(
            f"kernel {kernel.name!r} takes {', '.join(kernel.dtypes)}, got {name}; cast with "
            f".astype, or use kernel='blas' for halves"
        )
    if a.device != b.device:
        raise KernelError(f"a and b must be on one device, got {a.device} and {b.device}")
    if kernel.built:  # of several GPUs it may be another that the kernel is for
        devices = tuple(d for d in backend.probe().devices if d.index == a.device.id)
        if why_not := unsuited(kernel, devices):
            raise KernelError(f"kernel {kernel.name!r} cannot run where a is: {why_not}")
    if kernel.name == "loops" and m * k * n > _LOOPS_LIMIT:
        raise KernelError(
            f"kernel 'loops' is a reference for up to {_LOOPS_LIMIT} multiplications, got "
            f"{m * k * n}; use kernel='tiled' or 'blas'"
        )


def _check_out(a: Array, b: Array, out: Array | None, beta: float) -> None:
    """None if ``out`` and ``beta`` go with a and b."""
    if not isinstance(beta, Real):
        raise KernelError(f"beta must be a real number, got {type(beta).__name__} {beta!r}")
    if out is None:
        if beta:
            raise KernelError(f"beta={beta:g} adds what out holds; give out= an array")
        return
    xp, shape, wide = backend.array_namespace(a), (len(a), b.shape[1]), backend.accumulator(a.dtype)
    if out.shape != shape or out.dtype not in (a.dtype, wide) or out.device != a.device:
        raise KernelError(
            f"out must be {a.dtype} or {wide} {shape} where a is, got {out.dtype} {out.shape} on "
            f"{out.device}; allocate it with {xp.__name__}.empty({shape}, {str(wide)!r})"
        )
    host = xp.__name__ == "numpy"
    if host and not out.flags.writeable:
        raise KernelError("out must be writable, got a read-only array; copy it")
    # CuPy compares bounds only, so that it may see an overlap between two interleaved slices
    overlap = xp.shares_memory if host else xp.may_share_memory
    for name, used in (("a", a), ("b", b)):
        if overlap(used, out):
            raise KernelError(f"out must not overlap {name}, which is in use; copy one")
