"""One distributed product beside its prediction: bytes, messages, memory, error and time."""

from dataclasses import dataclass
from itertools import pairwise, product
from math import isqrt
from time import perf_counter
from typing import Any

import numpy as np
import psutil

import tiledask as td
from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.products.explain import Explanation
from tiledask.errors import DoesNotFitError
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.products.placement import split
from tiledask.plan.products.product import PANEL
from tiledask.plan.units import format_bytes

__all__ = ["GRID", "RandomProduct", "compare_product", "product_rows"]

GRID = (td.Shard(0), td.Shard(1))


@dataclass(frozen=True)
class RandomProduct:
    """Two matrices, random ones unless they are given, and their product by one process."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    seconds: float
    """The faster of two single-process products, with all of BLAS's threads."""

    @classmethod
    def random(cls, n: int, seed: int = 0) -> "RandomProduct":
        """Of n x n float32 numbers; DoesNotFitError where they and the workers' have no room."""
        needed, free = 7 * 4 * n * n, psutil.virtual_memory().available
        if needed > free:  # A, B and C here and on the workers, and C once more to compare
            raise DoesNotFitError(
                f"a product of {n:,} x {n:,} float32 numbers and its comparison take "
                f"{format_bytes(needed)}, and {format_bytes(free)} are free; take a size of "
                f"{isqrt(free // 28):,} or less"
            )
        rng = np.random.default_rng(seed)
        return cls.of(*(rng.standard_normal((n, n), np.float32) for _ in range(2)))

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> "RandomProduct":
        """Of these two matrices."""
        times = []
        for _ in range(2):
            begun = perf_counter()
            c = a @ b
            times.append(perf_counter() - begun)
        return cls(a, b, c, min(times))


def product_rows(
    problem: RandomProduct, C: ShardedArray, kernel: str, tile: int | None
) -> list[Claim]:
    """What SUMMA's formula, the plan and the workers say of one product."""
    (m, k), n, itemsize = problem.a.shape, problem.b.shape[1], C.dtype.itemsize
    p, q = C.mesh.shape
    # each rank lacks (q-1)/q of a block row of A and (p-1)/p of a block column of B
    formula = (m * k * (q - 1) + k * n * (p - 1)) * itemsize
    planned, counted = C.traffic
    predicted, measured = C.memory
    tile = tile or td.tile.kernels[kernel].tile or 512
    blocks = product(split(0, m, p), split(0, n, q))
    loads = sum(
        td.tile.traffic(bottom - top, right - left, k, tile, itemsize).loaded
        for (top, bottom), (left, right) in blocks
    )
    result = td.to_numpy(C)
    error = float(np.abs(result - problem.c).max() / np.abs(problem.c).max())
    return [
        Claim("bytes between workers", formula, planned.total, counted.total, "bytes", "equal"),
        Claim(
            "messages between workers",
            _messages(k, p, q),
            planned.count,
            counted.count,
            rule="equal",
            note=f"panels of at most {PANEL} columns",
        ),
        Claim("peak bytes per worker", predicted.peak, None, measured.peak, "bytes", "at most"),
        Claim(
            "bytes that tiles load, all workers",
            loads,
            None,
            C.tiles and C.tiles.loaded,
            "bytes",
            "equal" if C.tiles else None,
            note=_counted_where(C, kernel, tile),
        ),
        Claim(
            "relative error of the answer",
            k * float(np.finfo(C.dtype).eps),
            None,
            error,
            rule="at most",
            note="bound k eps; against one process",
        ),
        Claim("seconds, one process, all cores", None, None, problem.seconds, "seconds"),
        Claim("seconds, over the workers", None, None, C.seconds, "seconds"),
        Claim(
            "speed against one process",
            None,
            None,
            problem.seconds / C.seconds,
            "x",
            note=f"{2 * m * n * k / 1e9:.3g} GFLOP; transfers and scheduling included",
        ),
    ]


def _counted_where(C: ShardedArray, kernel: str, tile: Any) -> str:
    if C.tiles is None:
        return f"not counted: {kernel} does not say what it loads; predicted for tiles of {tile}"
    if C.mesh.cluster.backend == "cupy":
        return f"by {kernel} on the GPUs: the grids that it launched, their steps along k"
    return f"by {kernel} on the workers, tile by tile as it loaded them"


def _messages(k: int, p: int, q: int) -> int:
    """Each panel of A goes to q - 1 ranks of every row, each of B to p - 1 of every column."""
    edges = sorted({edge for parts in (p, q) for ends in split(0, k, parts) for edge in ends})
    panels = sum(-(-(stop - start) // PANEL) for start, stop in pairwise(edges))
    return panels * (p * (q - 1) + q * (p - 1))


def compare_product(
    n: int,
    mesh: tuple[int, int],
    kernel: str = "blas",
    tile: int | None = None,
    device: str = "auto",
) -> tuple[Comparison, Explanation]:
    """SUMMA's comparison for an n x n x n float32 product on a mesh of new workers, and what
    every algorithm would take for it."""
    problem = RandomProduct.random(n)
    with td.start_cluster(workers=int(np.prod(mesh)), device=device, quiet=True) as cluster:
        over = td.Mesh(cluster, mesh)
        a, b = (td.distribute(x, over, GRID) for x in (problem.a, problem.b))
        c = td.matmul(a, b, algorithm="summa", kernel=kernel, tile=tile)
        title = f"{n} x {n} x {n} float32 on {mesh[0]} x {mesh[1]} workers, kernel {kernel}"
        return Comparison(title, product_rows(problem, c, kernel, tile)), td.explain(
            a, b, kernel=kernel
        )
