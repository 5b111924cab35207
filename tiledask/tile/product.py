"""The product of two matrices on one device, by the kernel one names."""

from dataclasses import replace
from types import ModuleType

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.backend import Array
from tiledask.tile.checks import (
    batch_of,
    check_activation,
    check_device,
    check_epilogue,
    check_out,
    check_shapes,
    checked_tile,
    number,
    run_of,
)
from tiledask.tile.cuda.hopper_tile import AnyTile
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.kernel import Run, Sizes
from tiledask.tile.levels import Tile, TileTraffic
from tiledask.tile.table import find, lookup

__all__ = ["accumulate", "count_traffic", "matmul", "workspace"]


def matmul(
    a: Array,
    b: Array,
    kernel: str = "blas",
    tile: int | AnyTile | None = None,
    out: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Array | None = None,
    activation: str | None = None,
    preactivation: Array | None = None,
    precision: str | None = None,
) -> Array:
    """activation(alpha a @ b + beta out + bias), by ``kernel``, for NumPy or CuPy arrays.

    a [m, k] and b [k, n] give [m, n]; a [batch, m, k] and b [batch, k, n] give [batch, m, n], and
    one of them may have 2 dimensions, for all of the batch. Any strides will do; all extents are
    1 or more.

    kernel, tile
        A name in `td.tile.kernels`; "blas" means the library's product on either kind of array.
        The tile is one extent or (tm, tn, tk), for the kernels that have one, which the table
        shows too; for wgmma_ws_persistent also a `HopperTile` (tile/cuda/hopper_tile.py).
    out
        Where the result is written, and returned. With ``beta`` what it holds is multiplied by
        that and added; with 0 it is not read, so that NaN there doesn't enter.
    bias
        [n], added to every row; of the operands' type or of the one that is summed in.
    activation
        None or "gelu", in the tanh form of `td.tile.gelu`.
    preactivation
        An array like out that receives alpha a @ b + beta out + bias, which a backward pass needs.
    precision
        None, or "tf32": float32 operands are rounded to 10 bits of mantissa, for the kernels that
        multiply them so on tensor cores.

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
    epilogue = Epilogue(
        number("alpha", alpha), number("beta", beta), bias, activation, preactivation
    )
    return _run(a, b, kernel, tile, out, epilogue, precision)[0]


def accumulate(
    a: Array, b: Array, out: Array, kernel: str, tile: int | AnyTile | None, beta: float
) -> TileTraffic | None:
    """What the kernel loaded while it wrote a @ b + beta out into ``out``, by its own loop.

    "tiled" counts each tile as it takes it; our CUDA kernels give what the grid loads that they
    launched: a tile for each thread block, or on Hopper one for the blocks of a cluster together,
    which share what they load of B. None for those whose loops are others' (BLAS, cuBLAS). The
    arguments are those of `matmul`, of 2 dimensions.
    """
    return _run(a, b, kernel, tile, out, Epilogue(beta=number("beta", beta)), None)[1]


def count_traffic(
    a: Array,
    b: Array,
    tile: int | Tile | None = None,
    out: Array | None = None,
    *,
    beta: float = 0.0,
) -> tuple[Array, TileTraffic]:
    """a @ b + beta out by the kernel "tiled", and the bytes that it loaded and stored on the way.

    The arguments are those of `matmul`, for NumPy arrays of 2 dimensions. The count is made tile
    by tile from the arrays that were really taken; `traffic` predicts it.

    >>> import numpy as np
    >>> from tiledask.tile.levels import traffic
    >>> a, b = np.ones((5, 3), np.float32), np.ones((3, 7), np.float32)
    >>> count_traffic(a, b, tile=(2, 4, 2))[1] == traffic(5, 7, 3, tile=(2, 4, 2), itemsize=4)
    True
    """
    if 3 in (getattr(a, "ndim", 2), getattr(b, "ndim", 2)):
        raise KernelError(
            f"the bytes are counted of one product, a [m, k] by b [k, n], got a batch, "
            f"{a.shape} @ {b.shape}; count a[i] @ b[i] and multiply by the batch"
        )
    out, counted = _run(a, b, "tiled", tile, out, Epilogue(beta=number("beta", beta)), None)
    assert counted is not None  # of one product "tiled" always counts
    return out, counted


def workspace(
    m: int,
    n: int,
    k: int,
    itemsize: int,
    kernel: str = "blas",
    tile: int | AnyTile | None = None,
    accumulate: bool = False,
    out_itemsize: int | None = None,
    *,
    bias_itemsize: int | None = None,
    activation: str | None = None,
) -> int:
    """Bytes of arrays that `matmul` allocates besides those it is given, at most at one time.

    ``itemsize`` is that of the operands, 2 for halves, and ``out_itemsize`` that of ``out`` if it
    differs: 4 where halves are added up in float32; ``bias_itemsize`` is None without a bias.
    Adding to ``out`` (``accumulate``) takes no more than writing, keeping the preactivation
    nothing more, and a batch no more than one of its products. But wgmma_ws_persistent takes a
    batch at once: it copies each product's operands whose rows do not start on 16 bytes.

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
    check_activation(activation)
    out_itemsize = itemsize if out_itemsize is None else out_itemsize
    taken, biased = checked_tile(chosen, tile), bias_itemsize is not None
    sizes = Sizes(m, n, k, itemsize, out_itemsize, taken, biased, activation)
    return chosen.workspace(sizes) + (4 * n if bias_itemsize == 2 else 0)


def _run(
    a: Array,
    b: Array,
    name: str,
    tile: int | AnyTile | None,
    out: Array | None,
    epilogue: Epilogue,
    precision: str | None,
) -> tuple[Array, TileTraffic | None]:
    others = [x for x in (out, epilogue.bias, epilogue.preactivation) if x is not None]
    xp = backend.array_namespace(a, b, *others)
    kernel = find(name, xp.__name__)
    check_shapes(a, b)
    run = run_of(a, b, kernel, precision)
    check_device(a, b, kernel)
    taken = checked_tile(kernel, tile)
    shape = (*batch_of(a, b), a.shape[-2], b.shape[-1])
    check_epilogue(a, b, out, epilogue, shape, xp)
    if out is not None:
        check_out("out", out, a, shape, xp, {"a": a, "b": b})
    elif epilogue.loads_c:
        raise KernelError(
            f"beta={epilogue.beta:g} adds what out holds, and there is none; give out= an array"
        )
    with backend.on_device(a):
        if out is None:
            out = xp.empty(shape, a.dtype)
        if epilogue.bias is not None:
            wide = epilogue.bias.astype(backend.accumulator(a.dtype), copy=False)
            if wide is not epilogue.bias:
                epilogue = replace(epilogue, bias=wide)
        counted = _each(run, kernel.batched, a, b, out, taken, epilogue, xp)
    return out, counted


def _each(
    run: Run,
    whole: bool,
    a: Array,
    b: Array,
    out: Array,
    tile: AnyTile | None,
    epilogue: Epilogue,
    xp: ModuleType,
) -> TileTraffic | None:
    """What ``run`` returns; for a batch None, once it is done as a whole or one by one."""
    if out.ndim == 2:
        return run(a, b, out, tile, epilogue)
    a, b = (xp.broadcast_to(x, (len(out), *x.shape[-2:])) for x in (a, b))
    if whole:
        run(a, b, out, tile, epilogue)
        return None
    for i in range(len(out)):
        run(a[i], b[i], out[i], tile, epilogue.of(i))
    return None
