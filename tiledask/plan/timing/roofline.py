"""Seconds of a matrix product and of memory-bound work on one device: a roofline by shape.

seconds = max( tiles in whole waves x a tile's FLOP / rate x (1 + depth / k),  bytes / bandwidth )

All sizes may be NumPy arrays: a search prices thousands of layouts at once.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from tiledask.plan.arrays import Values

__all__ = ["TILES", "Rates", "gemm_bytes", "gemm_seconds"]

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.8))
"""Rows and columns of a tile of the result and the part of the best rate that it reaches: a
smaller tile reads more operands per FLOP. The library takes the tile that is done first."""


@dataclass(frozen=True)
class Rates:
    """What one device reaches: the datasheet times the shares of data/calibration."""

    flops: float  # FLOP/s of a deep product that fills all multiprocessors
    memory: float  # bytes/s of a pass over memory
    depth: float = 0.0  # the k at which a product reaches half of ``flops``
    misaligned: float = 0.0  # what each halving of 32 until it divides all sizes adds
    multiprocessors: int = 0  # tiles that are computed at once; 0: nothing is rounded to waves
    flash: float = 1.0  # FLOP/s of a fused attention core, forward
    flash_backward: float = 1.0
    flash_fill: float = 0.0  # tiles of 128 rows of a head at which it reaches half of ``flash``


def gemm_bytes(m: Values, k: Values, n: Values, width: int = 2, batch: Values = 1) -> Values:
    """Bytes of both operands and the result, each moved once."""
    return width * batch * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n)


def gemm_seconds(
    m: Values, k: Values, n: Values, rates: Rates, width: int = 2, batch: Values = 1
) -> Values:
    """Seconds of ``batch`` products [m, k] x [k, n] of numbers of ``width`` bytes.

    Tiles run in waves, one tile a multiprocessor, and the last wave is paid in full (NVIDIA,
    Matrix Multiplication Background User's Guide: tile and wave quantization).

    >>> a100 = Rates(flops=312e12, memory=2e12, multiprocessors=108)
    >>> waves = [gemm_seconds(256 * rows, 8192, 1536, a100) for rows in (9, 13.5, 18)]
    >>> [round(float(seconds / waves[0]), 2) for seconds in waves]
    [1.0, 1.61, 2.0]
    """
    at_once = rates.multiprocessors
    computed: Values = 1.0 * batch * m * n
    if at_once:
        tiles = (
            -(-batch * -(-m // rows) * -(-n // columns) // at_once)
            * (rows * columns * at_once / share)
            for rows, columns, share in TILES
        )
        computed = reduce(np.minimum, tiles)
    products = 2.0 * k * computed / rates.flops * (1 + rates.depth / k)
    if rates.misaligned:
        # how often 32 is halved until it divides all sizes: rows that do not begin on a border of
        # so many numbers are read in smaller pieces (the same guide, section 2.2; Anthony et al.
        # 2024, arXiv:2401.14489, section 3); 14400 x 4096: 0, x 1800: 2, x 150: 4
        sizes = (np.ceil(size).astype(np.int64) for size in (m, k, n))
        halvings = np.log2(32 // reduce(np.gcd, sizes, np.asarray(32)))
        products = products * (1 + rates.misaligned * halvings)
    seconds: Values = np.maximum(products, gemm_bytes(m, k, n, width, batch) / rates.memory)
    return seconds
