"""Long arrays piece by piece: what is computed on the way of a piece stays in the cache.

whole      t = a * b; t += c     reads a, b and writes t; reads t, c and writes: all in memory
by pieces  the same              t is a piece long, and still in the cache when it is read
"""

from collections.abc import Iterator
from typing import Any

from tiledask.tile.backend import array_namespace
from tiledask.tile.epilogue import PIECE_BYTES

__all__ = ["pieces"]


def pieces(x: Any) -> Iterator[slice]:
    """Slices of ``x`` [n], one behind the other, of as many bytes as the cache has room for.

    For what is done element by element, which so gives the same, to the bit.

    >>> import numpy as np
    >>> list(pieces(np.zeros(40_000)))
    [slice(0, 16384, None), slice(16384, 32768, None), slice(32768, 40000, None)]
    """
    step = PIECE_BYTES[array_namespace(x).__name__] // x.itemsize
    return (slice(at, min(at + step, len(x))) for at in range(0, len(x), step))
