"""The product of two matrices on one device, by the kernel one names."""

from dataclasses import replace
from numbers import Real
from types import ModuleType

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.backend import Array
from tiledask.tile.epilogue import Epilogue
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

    kernel, tile
        A name in `td.tile.kernels`; "blas" means the library's product on either kind of array.
        The tile is one extent or (tm, tn, tk), for the kernels that have one.
    a, b, out
        [m, k], [k, n] and [m, n], of any strides, all extents 1 or more. The result is written to
        ``out``, and returned. With a beta of 0 what it held is not read: NaN doesn't enter.
    bias
        [n], added to every row; of the operands' type or of the one that is summed in.
    activation, preactivation
        None or "gelu", in the tanh form of `td.tile.gelu`; an array like out that receives what
        that is applied to, which a backward pass needs.

    Halves (float16, bfloat16) are summed in float32, finished there and rounded once, at the end;
    with a float32 ``out`` never, which is how to add up products of several panels. On a GPU the
    call returns before the work is done. Raises KernelError, a ValueError, for what does not go
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
    """What the kernel loaded while it wrote a @ b + beta out into ``out``.

    "tiled" counts each tile as it takes it; our CUDA kernels give what the grid loads that they
    launched; None for BLAS and cuBLAS, whose loops are their own. Arguments are those of `matmul`.
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

    The arguments are those of `matmul`, for NumPy arrays. Counted tile by tile from the arrays that
    were really taken; `traffic` predicts it.

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

    ``itemsize`` is that of the operands, and ``out_itemsize`` that of ``out`` if it differs: 4
    where halves are added up in float32; ``bias_itemsize`` is None without a bias. Adding to
    ``out`` (``accumulate``) takes no more than writing, and keeping the preactivation nothing more.

    Counted for a row-major ``out`` and operands with a unit stride, whether or not this machine
    can run the kernel; without what a library, and NumPy in its buffers, keeps inside itself.

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
    _check_operands(a, b, kernel)
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
        takes = ", ".join(kernel.dtypes)
        instead = "cast with .astype, or use kernel='blas' for halves"
        if a.dtype.kind == "c":
            instead = "multiply .real and .imag parts by themselves; .astype drops .imag"
        raise KernelError(f"kernel {kernel.name!r} takes {takes}, got {name}; {instead}")
    if a.device != b.device:
        raise KernelError(f"a and b must be on one device, got {a.device} and {b.device}")
    if kernel.needs:  # of several GPUs it may be another that the kernel is for
        devices = tuple(d for d in backend.probe().devices if d.index == a.device.id)
        if why_not := unsuited(kernel, devices):
            raise KernelError(f"kernel {kernel.name!r} cannot run where a is: {why_not}")
    if kernel.name == "loops" and m * k * n > _LOOPS_LIMIT:
        raise KernelError(
            f"kernel 'loops' is a reference for up to {_LOOPS_LIMIT} multiplications, got "
            f"{m * k * n}; use kernel='tiled' or 'blas'"
        )


def _check_activation(name: str | None) -> None:
    if name not in (None, "gelu"):
        raise KernelError(f"activation must be None or gelu, got {name!r}")


def _check_epilogue(
    a: Array, b: Array, out: Array | None, epilogue: Epilogue, xp: ModuleType
) -> None:
    """None if ``out`` and what ``epilogue`` reads and writes go with a and b."""
    _check_activation(epilogue.activation)
    shape, before = (a.shape[0], b.shape[1]), epilogue.preactivation
    if before is not None and epilogue.activation is None:
        raise KernelError("preactivation= is what activation= is applied to; give both")
    if out is None and epilogue.loads_c:
        raise KernelError(f"beta={epilogue.beta:g} adds what out holds; give out= an array")
    # CuPy compares bounds only, so that it may see an overlap between two interleaved slices
    host = xp.__name__ == "numpy"
    overlap = xp.shares_memory if host else xp.may_share_memory
    wide, read = backend.accumulator(a.dtype), {"a": a, "b": b}
    for name, x in (("bias", epilogue.bias), ("out", out), ("preactivation", before)):
        if x is None:
            continue
        expected = shape[1:] if name == "bias" else shape
        if x.shape != expected or x.dtype not in (a.dtype, wide) or x.device != a.device:
            raise KernelError(
                f"{name} must be {a.dtype} or {wide} {expected} where a is, got {x.dtype} "
                f"{x.shape} on {x.device}; allocate it with {xp.__name__}.empty({expected}, "
                f"{str(wide)!r})"
            )
        if name != "bias":
            if host and not x.flags.writeable:
                raise KernelError(f"{name} must be writable, got a read-only array; copy it")
            for other, used in read.items():
                if overlap(used, x):
                    raise KernelError(f"{name} must not overlap {other}, which is in use; copy one")
        read[name] = x
