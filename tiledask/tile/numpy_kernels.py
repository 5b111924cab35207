"""The product of two arrays, three ways: by definition, tile by tile, by the library.

Every kernel writes a @ b into ``out``, finished as its epilogue says; shapes, types and overlap
were checked before. ``out`` is of the operands' type, or float32 for halves (float16 and
bfloat16), whose sums are float32. They round differently:

    loops   sums and finishes in Python's float (64 bits) and rounds once
    tiled   each tile product and the sum over k in the operands' type; halves in float32,
            rounded to ``out`` once, at the end
    blas    as the library does, in the operands' type; halves in float32, likewise
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tiledask.tile.backend import HALVES, Array, accumulator, array_namespace, name_of
from tiledask.tile.epilogue import Epilogue, gelu
from tiledask.tile.gemm import gemm
from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["blas", "cublas", "half_rows", "half_tile", "loops", "tiled"]


def loops(a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: None, epilogue: Epilogue) -> None:
    """a @ b by its definition, one multiplication at a time."""
    rows, columns = a.tolist(), b.T.tolist()
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            total = 0.0
            for x, y in zip(row, column, strict=True):
                total += x * y
            total *= epilogue.alpha
            if epilogue.loads_c:
                total += epilogue.beta * float(out[i, j])
            if epilogue.bias is not None:
                total += float(epilogue.bias[j])
            if epilogue.preactivation is not None:
                epilogue.preactivation[i, j] = total
            if epilogue.activation is not None:
                total = float(gelu(np.float64(total)))
            out[i, j] = total


def tiled(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: Tile, epilogue: Epilogue
) -> TileTraffic:
    """a @ b tile by tile; returns the bytes it loaded and stored, counted as it went.

    One tile of C at a time is kept in an accumulator while the tiles of A and B that it needs
    pass by, as a GPU's thread block does it, and is finished there. Each tile product is a BLAS
    call.
    """
    (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
    wide = accumulator(a.dtype)
    held = np.empty(min(tm, m) * min(tn, n), wide)
    scratch = np.empty_like(held)
    tiles = a_bytes = b_bytes = c_bytes = c_loaded = 0
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            c = out[i : i + tm, j : j + tn]  # [tm, tn], smaller at the edges
            # contiguous at the edges too: NumPy would add strided ones through buffers of its own
            acc = held[: c.size].reshape(c.shape)
            product = scratch[: c.size].reshape(c.shape)
            acc[...] = 0
            for p in range(0, k, tk):
                a_tile, b_tile = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn]
                # no names: these copies go before the next are made
                np.matmul(
                    a_tile.astype(wide, copy=False), b_tile.astype(wide, copy=False), out=product
                )
                acc += product
                tiles += 1
                a_bytes += a_tile.nbytes
                b_bytes += b_tile.nbytes
            acc *= epilogue.alpha
            if epilogue.loads_c:
                product[...] = c
                product *= epilogue.beta
                acc += product
                c_loaded += c.nbytes
            epilogue.finish(acc, i, j)
            c[...] = acc
            c_bytes += c.nbytes
    return TileTraffic(m, n, k, tile, a.itemsize, tiles, a_bytes, b_bytes, c_bytes, c_loaded)


def blas(a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: None, epilogue: Epilogue) -> None:
    """a @ b by BLAS: NumPy's to write, SciPy's to scale and add in place.

    The two are equally fast from 256 rows on. NumPy's is there already, quicker to call, and does
    half of the work for a @ a.T. Halves are widened a piece at a time and summed in float32.
    """
    if name_of(a.dtype) in HALVES:
        (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], half_tile(out.itemsize)
        a_room = np.empty(min(tm, m) * min(tk, k), np.float32)
        b_room = np.empty(min(tk, k) * min(tn, n), np.float32)

        def multiply(x: Array, y: Array, acc: Array, alpha: float, beta: float) -> None:
            x, y = _widened(x, a_room), _widened(y, b_room)
            if alpha == 1 and beta == 0 and acc.flags.c_contiguous:
                np.matmul(x, y, out=acc)
            else:
                gemm(x, y, acc, alpha, beta)

        _halves(a, b, out, (tm, tn, tk), epilogue, multiply)
        return
    if epilogue.alpha != 1 or epilogue.loads_c:
        gemm(a, b, out, epilogue.alpha, epilogue.beta)
    else:
        np.matmul(a, b, out=out)
    epilogue.finish(out)


def half_tile(out_itemsize: int) -> Tile:
    """(tm, tn, tk) of what `blas` widens of halves at a time: 8.4 MB of float32 at most.

    Adding to a float32 C needs nothing else, so its tiles are large and operands are widened
    seldom; a C of halves is summed up in a float32 tile beside it, of 16.8 MB at most.
    """
    return (4096, 4096, 256) if out_itemsize == 4 else (2048, 2048, 512)


def cublas(a: Array, b: Array, out: Array, tile: None, epilogue: Epilogue) -> None:
    """a @ b by cuBLAS on CuPy arrays; it scales and adds, the rest follows.

    Halves that are not done then go through float32, some rows at a time: rounded once too.
    """
    if epilogue.elementwise and out.dtype != accumulator(out.dtype):
        _halves(a, b, out, (half_rows(out.shape[1]), *b.shape[::-1]), epilogue, gemm)
        return
    gemm(a, b, out, epilogue.alpha, epilogue.beta)
    epilogue.finish(out)


def half_rows(n: int) -> int:
    """Rows of C that `cublas` finishes in float32 at a time: 67 MB of them at most, or one."""
    return max(1, 2**24 // n)


def _halves(
    a: Array,
    b: Array,
    out: Array,
    tile: Tile,
    epilogue: Epilogue,
    multiply: Callable[[Array, Array, Array, float, float], None],
) -> None:
    """A product of halves, a tile of C after another, in float32: in C itself or beside it."""
    (m, n), (tm, tn, tk) = out.shape, tile
    room = None
    if out.dtype != np.float32:
        room = array_namespace(out).empty(min(tm, m) * min(tn, n), np.float32)
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            c = out[i : i + tm, j : j + tn]
            acc = c if room is None else room[: c.size].reshape(c.shape)
            if room is not None and epilogue.loads_c:
                acc[...] = c
            for p in range(0, a.shape[1], tk):
                x, y = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn]
                multiply(x, y, acc, epilogue.alpha, epilogue.beta if p == 0 else 1.0)
            epilogue.finish(acc, i, j)
            if room is not None:
                c[...] = acc


def _widened(x: np.ndarray, room: NDArray[np.float32]) -> NDArray[np.float32]:
    """x in float32 at the start of ``room``, in x's own order: turning it is many times slower."""
    order: Literal["C", "F"] = "F" if abs(x.strides[0]) < abs(x.strides[1]) else "C"
    wide = room[: x.size].reshape(x.shape, order=order)
    wide[...] = x
    return wide
