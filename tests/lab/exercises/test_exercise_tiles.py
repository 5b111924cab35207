"""A tile loop with planted faults.

Holds `tiledask.lab.exercises.tiles`.
"""

from itertools import product

import numpy as np
import pytest
from oracles.judged import missed
from oracles.tasks import task, tile_loop


def tiled(times=np.matmul, wider=0, again=False):
    """A tile loop that multiplies by ``times``; parts of B too wide, or all of it twice."""

    def kernel(a, b, tile):
        (m, k), n, (tm, tn, tk) = a.shape, b.shape[1], tile
        c = np.zeros((m, n), a.dtype)
        for i, j, p in product(range(0, m, tm), range(0, n, tn), range(0, k, tk)):
            left, right = a[i : i + tm, p : p + tk], b[p : p + tk, j : j + tn + wider]
            c[i : i + tm, j : j + tn] += times(left, right)[:, :tn]
            if again:
                times(left, right)
        return c

    return kernel


SUMS, LARGE = "wrong elements of C", "products larger than a tile"
LOADS = "bytes loaded beside the formula"


@pytest.mark.parametrize(
    ("kernel", "faults"),
    [
        (tiled(), []),
        (tiled(np.dot), []),
        (tiled(lambda x, y: x.dot(y)), []),
        (tiled(lambda x, y: np.matmul(x, y, out=np.empty((len(x), y.shape[1]), "f4"))), []),
        (tiled(wider=1), [LARGE, LOADS]),
        (tiled(again=True), [LOADS]),
        (lambda a, b, tile: tile_loop(a, b, tile, adds=False), [SUMS]),
        (lambda a, b, tile: np.asarray(a) @ np.asarray(b), [LOADS]),
    ],
)
def test_products_are_seen_however_they_are_written(kernel, faults):
    assert missed(task("repaired-kernel").result(kernel)) == faults
