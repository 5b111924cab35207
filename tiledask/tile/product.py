"""The product of two matrices on one device, by the kernel one names."""

from dataclasses import replace
from numbers import Real
from types import ModuleType

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.backend import Array
from tiledask.tile.epilogue import ACTIVATIONS, Epilogue
from tiledask.tile.levels import Tile, TileTraffic
from tiledask.tile.table import Kernel, Sizes, find, lookup, unsuited

__all__ = ["accumulate", "count_traffic", "matmul", "workspace"]

_LOOPS_LIMIT = 2**24
"""Multiplications that kernel "loops" accepts: about a second of Python."""


def matmul(
    a: Array,
    b: Array,
    kernel: str = "blas",
    tile: int | Tile | None = None,
    out: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Array | None = None,
    activation: str | None = None,
    preactivation: Array | None = None,
) -> Array:
    """activation(alpha a @ b + beta out + bias), by ``kernel``, for NumPy or CuPy arrays.

    a [m, k] and b [k, n] give [m, n]. Any strides will do; all extents are 1 or more.

    kernel, tile
        A name in `td.tile.kernels`; "blas" means the library's product on either kind of array.
        The tile is one extent or (tm, tn, tk), for the kernels that have one, which the table
        shows too.
    out
        Where the result is written, and returned. With ``beta`` what it holds is multiplied by
        that and added; with 0 it is not read, so that NaN there doesn't enter.
    bias
        [n], added to every row; of the operands' type or of the one that is summed in.
    activation
        None or "gelu", in the tanh form of `td.tile.gelu`.
    preactivation
        An array like out that receives alpha a @ b + beta out + bias, which a backward pass needs.

    Halves (float16, bfloat16) are summed in float32, finished there and rounded once, at the end;
    with a float32 ``out`` never, which is how to add up products of several panels. `workspace`
    says how many bytes all this takes. On a GPU the call returns before the work is done, as
    CuPy's own do.

    Raises KernelError, a ValueError, for operands, tiles, kernels and outputs that do not go
    together.

    >>> import numpy as np
    >>> a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    >>> matmul(a, b, kernel="tiled", tile=2, alpha=2.0, bias=np.arange(4, dtype="f4")).tolist()
    [[6.0, 7.0, 8.0, 9.0], [6.0, 7.0, 8.0, 9.0]]
    """
    by, plus = _number("alpha", alpha), _number("beta", beta)
    epilogue = Epilogue(by, plus, bias, activation, preactivation)
    return _run(a, b, kernel, tile, out, epilogue)[0]


def accumulate(
    a: Array, b: Array, out: Array, kernel: str, tile: int | Tile | None, beta: float
) -> TileTraffic | None:
    """What the kernel loaded while it wrote a @ b + beta out into ``out``, by its own loop.

    "tiled" counts each tile as it takes it; our CUDA kernels give what the grid loads that they
    launched: a tile for each thread block, or on Hopper one for the blocks of a cluster together,
    which share what they load of B. None for those whose loops are others' (BLAS, cuBLAS). The
    arguments are those of `matmul`.
    """
    return _run(a, b, kernel, tile, out, Epilogue(beta=_number("beta", beta)))[1]


def count_traffic(
    a: Array,
    b: Array,
    tile: int | Tile | None = None,
    out: Array | None = None,
    *,
    beta: float = 0.0,
) -> tuple[Array, TileTraffic]:
    """a @ b + beta out by the kernel "tiled", and the bytes that it loaded and stored on the way.

    The arguments are those of `matmul`, for NumPy arrays. The count is made tile
    by tile from the arrays that were really taken; `traffic` predicts it.

    >>> import numpy as np
    >>> from tiledask.tile.levels import traffic
    >>> a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    >>> count_traffic(a, b, tile=(2, 4, 2))[1] == traffic(5, 7, 3, tile=(2, 4, 2), itemsize=4)
    True
    """
    out, counted = _run(a, b, "tiled", tile, out, Epilogue(beta=_number("beta", beta)))
    assert counted is not None  # "tiled" always counts
    return out, counted


def workspace(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    kernel: str = "blas",
    tile: int | Tile | None = None,
    accumulate: bool = False,
    out_itemsize: int | None = None,
    *,
    bias_itemsize: int | None = None,
    activation: str | None = None,
) -> int:
    """Bytes of arrays that `matmul` allocates besides those it is given, at most at one time.

    ``itemsize`` is that of the operands, 2 for halves, and ``out_itemsize`` that of ``out`` if it
    differs: 4 where halves are added up in float32; ``bias_itemsize`` is None without a bias.
    Adding to ``out`` (``accumulate``) takes no more than writing, and keeping the preactivation
    nothing more. Our kernels for newer GPUs copy operands whose rows do not start on 16 bytes.

    Not counted: what the library keeps inside itself; copies of operands without a unit stride,
    and 512 rows of an ``out`` without one; NumPy's own buffers (at most 3 x 8192 elements) where
    "tiled" meets an ``out`` that is neither row-major nor a slice of rows, or a bias is added. An
    activation is counted for a row-major ``out``. Answers for every kernel, whether or not this
    machine can run it.

    >>> workspace(4096, 4096, 4096, 4), workspace(4096, 4096, 4096, 4, accumulate=True)
    (0, 0)
    >>> workspace(4096, 4096, 4096, 4, bias_itemsize=4, activation="gelu")  # a piece in the cache
    131072
    >>> workspace(4096, 4096, 4096, 2, out_itemsize=4)  # pieces of a and b, in float32
    8388608
    """
    chosen = lookup(kernel)
    _check_activation(activation)
    out_itemsize, biased = out_itemsize or itemsize, bias_itemsize is not None
    sizes = Sizes(m, n, k, itemsize, out_itemsize, chosen.with_tile(tile), biased, activation)
    return chosen.workspace(sizes) + (4 * n if bias_itemsize == 2 else 0)


def _run(
    a: Array,
    b: Array,
    name: str,
    tile: int | Tile | None,
    out: Array | None,
    epilogue: Epilogue,
) -> tuple[Array, TileTraffic | None]:
    others = [x for x in (out, epilogue.bias, epilogue.preactivation) if x is not None]
    xp = backend.array_namespace(a, b, *others)
    kernel = find(name, xp.__name__)
    _check_shapes(a, b)
    _check_types(a, b, kernel)
    _check_device(a, b, kernel)
    taken = kernel.with_tile(tile)
    _check_epilogue(a, b, out, epilogue, xp)
    with backend.on_device(a):
        if out is None:
            out = xp.empty((a.shape[0], b.shape[1]), a.dtype)
        if epilogue.bias is not None:
            wide = epilogue.bias.astype(backend.accumulator(a.dtype), copy=False)
            epilogue = replace(epilogue, bias=wide)
        return out, kernel.run(a, b, out, taken, epilogue)


# -- what is refused -------------------------------------------------------------------------------


def _number(name: str, x: Array) -> float:
    if not isinstance(x, Real):
        raise KernelError(f"{name} must be a real number, got {type(x).__name__} {x!r}")
    return float(x)


def _check_shapes(a: Array, b: Array) -> None:
    """None if a [m, k] and b [k, n] multiply."""
    if a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and 0 not in (*a.shape, *b.shape):
        return
    x, y = ("x".join(map(str, each.shape)) for each in (a, b))
    if not a.ndim == b.ndim == 2:
        raise KernelError(f"a and b have 2 dimensions, got {x} @ {y}; multiply slices of them")
    if a.shape[1] == b.shape[0]:
        raise KernelError(f"all extents must be 1 or more, got {x} @ {y}")
    raise KernelError(
        f"the columns of a must be as many as the rows of b, got {x} @ {y}: {a.shape[1]} against "
        f"{b.shape[0]}; transpose or reshape one"
    )


def _check_types(a: Array, b: Array, kernel: Kernel) -> None:
    """None if a and b have one element type, and the kernel takes it."""
    if a.dtype != b.dtype:
        raise KernelError(f"a and b must have one element type, got {a.dtype} and {b.dtype}")
    name = backend.name_of(a.dtype) if a.dtype.isnative else str(a.dtype)
    if name in kernel.dtypes:
        return
    takes, instead = ", ".join(kernel.dtypes), "cast with .astype, or use kernel='blas' for halves"
    if a.dtype.kind == "c":
        instead = "multiply the .real and .imag parts, products of their own; .astype drops .imag"
    raise KernelError(f"kernel {kernel.name!r} takes {takes}, got {name}; {instead}")


def _check_device(a: Array, b: Array, kernel: Kernel) -> None:
    """None if a and b are together on a device that ``kernel`` runs on, and not too much for it."""
    if a.device != b.device:
        raise KernelError(f"a and b must be on one device, got {a.device} and {b.device}")
    if kernel.capability:  # of several GPUs it may be another that the kernel is for
        devices = tuple(d for d in backend.probe().devices if d.index == a.device.id)
        if why_not := unsuited(kernel, devices):
            raise KernelError(f"kernel {kernel.name!r} cannot run where a is: {why_not}")
    work = a.shape[0] * a.shape[1] * b.shape[1]
    if kernel.name == "loops" and work > _LOOPS_LIMIT:
        raise KernelError(
            f"kernel 'loops' is a reference for up to {_LOOPS_LIMIT} multiplications, got {work}; "
            f"use kernel='tiled' or 'blas'"
        )


def _check_activation(name: str | None) -> None:
    if name is not None and name not in ACTIVATIONS:
        raise KernelError(f"activation must be None or {', '.join(ACTIVATIONS)}, got {name!r}")


def _check_epilogue(
    a: Array, b: Array, out: Array | None, epilogue: Epilogue, xp: ModuleType
) -> None:
    """None if ``out`` and what ``epilogue`` reads and writes go with a and b."""
    _check_activation(epilogue.activation)
    shape, bias, before = (a.shape[0], b.shape[1]), epilogue.bias, epilogue.preactivation
    if before is not None and epilogue.activation is None:
        raise KernelError(
            f"preactivation= is what an activation is applied to, and there is none; leave it out, "
            f"or give activation= one of {', '.join(ACTIVATIONS)}"
        )
    if out is None and epilogue.loads_c:
        raise KernelError(
            f"beta={epilogue.beta:g} adds what out holds, and there is none; give out= an array"
        )
    if bias is not None:
        _check_type("bias", bias, a, shape[1:], xp)
    host, read = xp.__name__ == "numpy", {"a": a, "b": b, "the bias": bias}
    # CuPy compares bounds only, so that it may see an overlap between two interleaved slices
    overlap = xp.shares_memory if host else xp.may_share_memory
    for name, written in (("out", out), ("preactivation", before)):
        if written is None:
            continue
        _check_type(name, written, a, shape, xp)
        if host and not written.flags.writeable:
            raise KernelError(f"{name} must be writable, got a read-only array; pass {name}.copy()")
        for other, x in read.items():
            if x is not None and overlap(x, written):
                raise KernelError(f"{name} must not overlap {other}, which is in use; copy one")
        read[name] = written


def _check_type(name: str, x: Array, a: Array, shape: tuple[int, ...], xp: ModuleType) -> None:
    wide = backend.accumulator(a.dtype)
    if x.shape != shape or x.dtype not in (a.dtype, wide):
        either = f"{a.dtype}" if wide == a.dtype else f"{a.dtype} or {wide}"
        raise KernelError(
            f"{name} must be {either} {shape}, got {x.dtype} {x.shape}; "
            f"allocate it with {xp.__name__}.empty({shape}, '{wide}')"
        )
    if x.device != a.device:
        raise KernelError(f"{name} must be where a is, {a.device}, got {x.device}")
