"""Whether C is A @ B, by far fewer operations than the product takes: Freivalds' check.

    w = random signs     A @ (B @ w)     C @ w     equal but for rounding, row by row

A number of C that is wrong by d makes one row differ by d, whatever its sign.
"""

from typing import NamedTuple

import numpy as np

from tiledask.distributed.arrays.array import ShardedArray, to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.products.matmul import matmul
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Partial, Replicate
from tiledask.tile.backend import accumulator

__all__ = ["ProductCheck", "check_product"]

SURE = 6.0
"""Standard deviations of the sum of many roundings that are still taken for rounding."""
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


class ProductCheck(NamedTuple):
    """Whether a product is right, and the row that says so: the one that is furthest off."""

    row: tuple[int, ...]
    off: float
    """By how much this row of A @ (B @ w) and of C @ w differ."""
    rounding: float
    """What rounding explains of that."""

    def __bool__(self) -> bool:
        return bool(self.off <= self.rounding)

    def __str__(self) -> str:
        word = "right" if self else "wrong"
        at = ", ".join(map(str, self.row))
        return f"{word}: row {at} is off by {self.off:.3g}, rounding explains {self.rounding:.3g}"


@bounded
def check_product(
    A: ShardedArray,
    B: ShardedArray,
    C: ShardedArray,
    *,
    seed: int = 0,
    timeout: float | None = None,
) -> ProductCheck:
    """Compare C with A @ B by Freivalds' check: A @ (B @ w) against C @ w for random signs w.

    A sum of n numbers is off by at most ``6 sqrt(n) u`` times the sum of their magnitudes, but for
    once in 10**8 [2]_. So a row may differ by ``12 (sqrt(k) + sqrt(n)) u`` times that row of
    ``|A| @ (|B| @ 1)``; for half types, summed in float32, besides by three roundings of theirs.

    Parameters
    ----------
    A, B, C : ShardedArray
        [..., k], [k, n] and what is to be A @ B, on meshes of the same slots.
    seed : int
        Of the signs. Several wrong numbers in one row cancel for at most half of all seeds.

    Returns
    -------
    ProductCheck
        True if every row differs by no more than rounding explains.

    References
    ----------
    .. [1] R. Freivalds, Probabilistic machines can use less running time, IFIP 1977.
    .. [2] N. Higham, T. Mary, A new approach to probabilistic rounding error analysis, SISC 2019.

    Examples
    --------
    >>> print(check_product(A, B, A @ B))  # doctest: +SKIP
    right: row 3 is off by 1.9e-06, rounding explains 0.00021
    """
    if B.ndim != 2 or Partial() in (*A.placements, *B.placements, *C.placements):
        raise PlacementError(
            f"A, B and C are matrices of blocks here, not partial sums, got {A!r}, {B!r} and "
            f"{C!r}; td.redistribute sums, and compare vectors as they are"
        )
    (k, n), dtype = B.shape, A.dtype
    w = np.where(np.random.default_rng(seed).integers(0, 2, n), 1, -1)

    def times(x: ShardedArray, y: np.ndarray) -> np.ndarray:
        everywhere = [Replicate()] * x.mesh.ndim
        vector = distribute(y.astype(dtype), x.mesh, everywhere, timeout=timeout)
        return to_numpy(matmul(x, vector, timeout=timeout), timeout)

    expected, found = times(A, times(B, w)).astype(float), times(C, w).astype(float)
    sizes_a, sizes_b = (x.mapped(abs, x.tiling, "absolute") for x in (A, B))
    sizes = times(sizes_a, times(sizes_b, np.ones(n))).astype(float)
    wide, own = (ROUNDOFF[each.name] for each in (accumulator(dtype), dtype))
    allowed = (2 * SURE * (np.sqrt(k) + np.sqrt(n)) * wide + 3 * own) * sizes
    off = np.abs(expected - found)
    excess = np.nan_to_num(off / np.maximum(allowed, np.finfo(float).tiny), nan=np.inf)
    row = np.unravel_index(int(excess.argmax()), off.shape)
    return ProductCheck(tuple(map(int, row)), float(off[row]), float(allowed[row]))
