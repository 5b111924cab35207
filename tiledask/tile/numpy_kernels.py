"""The product of two NumPy arrays, three ways: by definition, tile by tile, by the library.

Every kernel writes a @ b into ``out``, or adds it to what ``out`` holds; shapes, types and
overlap were checked before. They round differently:

    loops   sums in Python's float (64 bits) and rounds once
    tiled   each tile product and the sum over k in the operands' type; float16 in float32,
            rounded to float16 once, at the end
    blas    as the library does, in the operands' type
"""

from types import ModuleType
from typing import Any

import numpy as np

from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["PANEL_ROWS", "blas", "loops", "tiled"]

PANEL_ROWS = 512
"""Rows of C that `blas` adds to at a time: the product has no "C +=" in NumPy's interface, and
panels keep the extra memory at 512 rows. Measured within 1 % of one whole product."""


def loops(a: np.ndarray, b: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """a @ b by its definition, one multiplication at a time."""
    rows, columns = a.tolist(), b.T.tolist()
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            total = float(out[i, j]) if accumulate else 0.0
            for x, y in zip(row, column, strict=True):
                total += x * y
            out[i, j] = total


def tiled(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: Tile, accumulate: bool
) -> TileTraffic:
    """a @ b tile by tile; returns the bytes it loaded and stored, counted as it went.

    One tile of C at a time is kept in an accumulator while the tiles of A and B that it needs
    pass by, as a GPU's thread block does it. Each tile product is a BLAS call.
    """
    (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
    wide = np.result_type(a.dtype, np.float32)
    accumulator = np.empty(min(tm, m) * min(tn, n), wide)
    scratch = np.empty_like(accumulator)
    tiles = a_bytes = b_bytes = c_bytes = 0
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            c = out[i : i + tm, j : j + tn]  # [tm, tn], smaller at the edges
            # contiguous at the edges too: NumPy would add strided ones through buffers of its own
            acc = accumulator[: c.size].reshape(c.shape)
            product = scratch[: c.size].reshape(c.shape)
            acc[...] = c if accumulate else 0
            for p in range(0, k, tk):
                a_tile, b_tile = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn]
                np.matmul(_as(a_tile, wide), _as(b_tile, wide), out=product)
                acc += product
                tiles += 1
                a_bytes += a_tile.nbytes
                b_bytes += b_tile.nbytes
            c[...] = acc
            c_bytes += c.nbytes
    return TileTraffic(
        m, n, k, tile, a.itemsize, tiles, a_bytes, b_bytes, c_bytes, c_bytes if accumulate else 0
    )


def blas(xp: ModuleType, a: Any, b: Any, out: Any, accumulate: bool) -> None:
    """a @ b by the library behind ``xp``: NumPy's BLAS, or cuBLAS for CuPy."""
    if not accumulate:
        xp.matmul(a, b, out=out)
        return
    scratch = xp.empty((min(PANEL_ROWS, out.shape[0]), out.shape[1]), out.dtype)
    for i in range(0, out.shape[0], PANEL_ROWS):
        panel = out[i : i + PANEL_ROWS]
        xp.matmul(a[i : i + PANEL_ROWS], b, out=scratch[: len(panel)])
        panel += scratch[: len(panel)]


def _as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x if x.dtype == dtype else x.astype(dtype)
