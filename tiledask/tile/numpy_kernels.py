"""The product of two arrays, three ways: by definition, tile by tile, by the library.

Every kernel writes a @ b + beta out into ``out``; shapes, types and overlap were checked before.
``out`` is of the operands' type, or float32 for halves (float16 and bfloat16), whose sums are
float32. They round differently:

    loops   sums in Python's float (64 bits) and rounds once
    tiled   each tile product and the sum over k in the operands' type; halves in float32,
            rounded to ``out`` once, at the end
    blas    as the library does, in the operands' type; halves in float32, likewise
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tiledask.tile.backend import HALVES, accumulator, name_of
from tiledask.tile.gemm import gemm
from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["blas", "half_tile", "loops", "tiled"]


def loops(a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: None, beta: float) -> None:
    """a @ b by its definition, one multiplication at a time."""
    rows, columns = a.tolist(), b.T.tolist()
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            total = 0.0
            for x, y in zip(row, column, strict=True):
                total += x * y
            out[i, j] = total + beta * float(out[i, j]) if beta else total


def tiled(a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: Tile, beta: float) -> TileTraffic:
    """a @ b tile by tile; returns the bytes it loaded and stored, counted as it went.

    One tile of C at a time is kept in an accumulator while the tiles of A and B that it needs
    pass by, as a GPU's thread block does it. Each tile product is a BLAS call.
    """
    (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
    wide = accumulator(a.dtype)
    held = np.empty(min(tm, m) * min(tn, n), wide)
    scratch = np.empty_like(held)
    tiles = a_bytes = b_bytes = c_bytes = 0
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
            if beta:
                product[...] = c
                product *= beta
                acc += product
            c[...] = acc
            c_bytes += c.nbytes
    c_loaded = c_bytes if beta else 0
    return TileTraffic(m, n, k, tile, a.itemsize, tiles, a_bytes, b_bytes, c_bytes, c_loaded)


def blas(a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: None, beta: float) -> None:
    """a @ b by BLAS: NumPy's to write, SciPy's to add in place.

    The two are equally fast from 256 rows on. NumPy's is there already, quicker to call, and does
    half of the work for a @ a.T. Halves are widened a piece at a time and summed in float32.
    """
    if name_of(a.dtype) in HALVES:
        _halves(a, b, out, beta)
    elif beta:
        gemm(a, b, out, beta=beta)
    else:
        np.matmul(a, b, out=out)


def half_tile(out_itemsize: int) -> Tile:
    """(tm, tn, tk) of what `blas` widens of halves at a time: 8.4 MB of float32 at most.

    Adding to a float32 C needs nothing else, so its tiles are large and operands are widened
    seldom; a C of halves is summed up in a float32 tile beside it, of 16.8 MB at most.
    """
    return (4096, 4096, 256) if out_itemsize == 4 else (2048, 2048, 512)


def _halves(a: np.ndarray, b: np.ndarray, out: np.ndarray, beta: float) -> None:
    """A product of halves, a tile of C after another, in float32: in C itself or beside it."""
    (m, n), k, (tm, tn, tk) = out.shape, a.shape[1], half_tile(out.itemsize)
    of_a = np.empty(min(tm, m) * min(tk, k), np.float32)
    of_b = np.empty(min(tk, k) * min(tn, n), np.float32)
    beside = out.dtype != np.float32
    of_c = np.empty(min(tm, m) * min(tn, n) if beside else 0, np.float32)
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            c = out[i : i + tm, j : j + tn]
            acc = of_c[: c.size].reshape(c.shape) if beside else c
            if beside and beta:
                acc[...] = c
            for p in range(0, k, tk):
                x, y = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn]
                x, y, plus = _widened(x, of_a), _widened(y, of_b), 1.0 if p else beta
                if plus or not acc.flags.c_contiguous:
                    gemm(x, y, acc, beta=plus)
                else:
                    np.matmul(x, y, out=acc)
            if beside:
                c[...] = acc


def _widened(x: np.ndarray, room: NDArray[np.float32]) -> NDArray[np.float32]:
    """x in float32 at the start of ``room``, in x's own order: turning it is many times slower."""
    order: Literal["C", "F"] = "F" if abs(x.strides[0]) < abs(x.strides[1]) else "C"
    wide = room[: x.size].reshape(x.shape, order=order)
    wide[...] = x
    return wide
