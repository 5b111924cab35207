"""One distributed product beside its prediction: bytes, messages, memory, error and time."""

import math
import sys
from itertools import product
from math import isqrt
from time import perf_counter
from typing import NamedTuple

import numpy as np
import psutil

import tiledask as td
from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.products.explain import Explanation, ProductQuestion
from tiledask.distributed.products.needed import ProductNeeds
from tiledask.errors import DoesNotFitError
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.products.placement import Tiling, split
from tiledask.plan.units import format_bytes
from tiledask.tile import accumulator, as_dtype

__all__ = ["RandomProduct", "compare_product", "predict_product", "product_rows", "product_title"]

GRID = (td.Shard(0), td.Shard(1))
Shape = tuple[int, int, int]


class RandomProduct(NamedTuple):
    """Two random matrices, and their product by one process."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    seconds: float
    """The faster of two single-process products, with all of BLAS's threads."""

    @classmethod
    def random(cls, m: int, n: int, k: int, dtype: str = "float32") -> "RandomProduct":
        """Of m x k and k x n numbers; DoesNotFitError where they and the workers' have no room.
        Half types are multiplied in what they are summed in."""
        size = max(4, as_dtype(dtype).itemsize)
        # A, B and C here and on the workers, and C once more to compare
        needed, free = size * (2 * k * (m + n) + 3 * m * n), psutil.virtual_memory().available
        if needed > free:
            raise DoesNotFitError(
                f"a product of {m:,} x {n:,} x {k:,} {dtype} numbers and its comparison take "
                f"{format_bytes(needed)}, and {format_bytes(free)} are free; take sizes of "
                f"{isqrt(free // (7 * size)):,} or less, or predict it without a run"
            )
        rng = np.random.default_rng(0)
        drawn = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
        a, b = (x.astype(as_dtype(dtype)) for x in drawn)
        times, sums = [], accumulator(a.dtype)
        for _ in range(2):
            begun = perf_counter()
            c = a.astype(sums, copy=False) @ b.astype(sums, copy=False)
            times.append(perf_counter() - begun)
        return cls(a, b, c, min(times))


def product_rows(
    problem: RandomProduct,
    C: ShardedArray,
    kernel: str,
    tile: int | None,
    algorithm: str = "summa",
) -> list[Claim]:
    """What a formula, the plan and the workers say of one product; the formula of algorithms by
    which each rank gets once what it lacks of its rows of A and its columns of B."""
    (m, k), n, itemsize = problem.a.shape, problem.b.shape[1], C.dtype.itemsize
    (planned, counted), (predicted, measured), (p, q) = C.traffic, C.memory, C.mesh.shape
    runtime = max(predicted.by_tensor(place)["runtime"] for place in predicted.places)
    formula = None
    if algorithm in ("summa", "cannon", "gather"):
        # each rank lacks (q-1)/q of a block row of A and (p-1)/p of a block column of B
        formula = (m * k * (q - 1) + k * n * (p - 1)) * itemsize
    result = td.to_numpy(C).astype(problem.c.dtype)
    error = float(np.abs(result - problem.c).max() / np.abs(problem.c).max())
    rounded = 2.0 ** -(8 if C.dtype.name == "bfloat16" else 10) * (C.dtype != problem.c.dtype)
    bound = k * float(np.finfo(problem.c.dtype).eps) + rounded
    sent = ("bytes between workers", formula, planned.total, counted.total, "bytes", "equal")
    count = ("messages between workers", None, planned.count, counted.count, "", "equal")
    peak = ("peak bytes per worker", predicted.peak, None, measured.peak, "bytes", "at most")
    wrong = ("relative error of the answer", bound, None, error, "", "at most")
    speed = problem.seconds / C.seconds
    flop = f"{2 * m * n * k / 1e9:.3g} GFLOP; transfers and scheduling included"
    return [
        Claim(*sent),
        Claim(*count),
        Claim(*peak, f"{format_bytes(runtime)} are for BLAS, interpreter and allocator"),
        *([_tile_row(problem, C, kernel, tile)] if algorithm == "summa" else ()),
        Claim(*wrong, "bound k eps; against one process"),
        Claim("seconds, one process, all cores", None, None, problem.seconds, "seconds"),
        Claim("seconds, over the workers", None, None, C.seconds, "seconds"),
        Claim("speed against one process", None, None, speed, "x", None, flop),
    ]


def _tile_row(problem: RandomProduct, C: ShardedArray, kernel: str, tile: int | None) -> Claim:
    """What the tiles load of blocks that are multiplied along all of k."""
    (m, k), n, (p, q) = problem.a.shape, problem.b.shape[1], C.mesh.shape
    of = tile or td.tile.kernels[kernel].tile or 512
    predicted: int = sum(
        td.tile.traffic(bottom - top, right - left, k, of, C.dtype.itemsize).loaded
        for (top, bottom), (left, right) in product(split(0, m, p), split(0, n, q))
    )
    what = "bytes that tiles load, all workers"
    if C.tiles is None:
        note = f"not counted: {kernel} does not say what it loads; predicted for tiles of {of}"
        return Claim(what, predicted, None, None, "bytes", None, note)
    note = f"by {kernel} on the workers, tile by tile as it loaded them"
    return Claim(what, predicted, None, C.tiles.loaded, "bytes", "equal", note)


def compare_product(
    shape: Shape,
    mesh: tuple[int, int],
    dtype: str,
    algorithm: str,
    kernel: str,
    tile: int | None,
    device: str,
) -> tuple[Comparison, Explanation]:
    """The comparison of a product of m, n, k on a mesh of new workers, A and B in blocks, and what
    every algorithm would take for it."""
    problem = RandomProduct.random(*shape, dtype)
    with td.start_cluster(workers=math.prod(mesh), device=device, quiet=True) as cluster:
        over = td.Mesh(cluster, mesh)
        a, b = (td.distribute(x, over, GRID) for x in (problem.a, problem.b))
        c = td.matmul(a, b, algorithm=algorithm, kernel=kernel, tile=tile)
        title = f"{product_title(shape, mesh, dtype, algorithm)}, kernel {kernel}"
        rows = product_rows(problem, c, kernel, tile, algorithm)
        return Comparison(title, rows), td.explain(a, b, kernel=kernel)


def predict_product(
    shape: Shape, mesh: tuple[int, int], dtype: str, kernel: str, tile: int | None
) -> Explanation:
    """What every algorithm would move and hold for it, without workers and without times."""
    m, n, k = shape
    a, b = (Tiling(of, mesh, GRID) for of in ((m, k), (k, n)))
    needs = ProductNeeds(as_dtype(dtype), kernel, tile, "memory")
    return ProductQuestion(a, b, needs).weigh(sys.maxsize)


def product_title(shape: Shape, mesh: tuple[int, int], dtype: str, algorithm: str) -> str:
    m, n, k = shape
    flop = f"{2 * math.prod(shape) / 1e9:,.4g} GFLOP"
    return (
        f"{m:,} x {k:,} by {k:,} x {n:,} (m {m:,}, n {n:,}, k {k:,}) {dtype}, {flop}, by "
        f"{algorithm} on {mesh[0]} x {mesh[1]} workers"
    )
