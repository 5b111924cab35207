"""Random numbers that follow from a key and a position alone, so that any split draws the same.

Number i of a key is output i of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) started at the key:
a 64-bit mix of key + (i + 1) gamma. No state goes from one number to the next, so a device that
holds some elements of an array draws theirs by their places in the whole array, in any order.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import pi, prod
from types import ModuleType
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace

__all__ = ["Part", "key", "normals", "positions", "splitmix64", "uniforms"]

Part = Sequence[Any] | None
"""Part of an array, by axis: a slice, or the indices held; None for all of it."""
_GAMMA = 0x9E3779B97F4A7C15


def key(*words: int | str) -> int:
    """64 bits that stand for these words: a seed, a layer's name, a step.

    >>> key(0, "wq") == key(0, "wq"), key(0, "wq") == key(0, "wk")
    (True, False)
    """
    # NumPy's integers are written otherwise and shall stand for the same
    plain = tuple(word if isinstance(word, str) else int(word) for word in words)
    return int.from_bytes(blake2b(repr(plain).encode(), digest_size=8).digest(), "little")


def positions(shape: tuple[int, ...], part: Part = None, xp: ModuleType = np) -> Array:
    """The places, counted row by row, of the elements of ``part`` in an array of ``shape``.

    >>> positions((3, 4), (slice(1, 3), [0, 3])).tolist()
    [[4, 7], [8, 11]]
    """
    if part is None:
        part = (slice(None),) * len(shape)
    if len(part) != len(shape):
        raise KernelError(
            f"a part says for each axis what is held, got {len(part)} entries for shape {shape}; "
            f"slice(None) is all of an axis"
        )
    at = xp.zeros((), np.int64)
    for axis, (extent, held) in enumerate(zip(shape, part, strict=True)):
        if isinstance(held, slice):
            index = np.arange(extent, dtype=np.int64)[held]
        else:
            index = np.asarray(held, np.int64)
            if index.ndim != 1 or (index.size and not 0 <= index.min() <= index.max() < extent):
                raise KernelError(
                    f"indices held are a row of numbers 0 .. {extent - 1}, got {held!r}"
                )
        at = at[..., None] + xp.asarray(index * prod(shape[axis + 1 :]))
    return at


def uniforms(key: int, at: Array, stream: int = 0) -> Array:
    """Float64 numbers in [0, 1), one for each place in ``at``; streams are unrelated.

    >>> uniforms(key(7), positions((3,))).round(3).tolist()
    [0.385, 0.005, 0.121]
    """
    # starts a multiple of gamma apart would give the same numbers, shifted: mix them
    start = int(splitmix64(key, np.array([stream]))[0])
    return (splitmix64(start, at) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(key: int, at: Array) -> Array:
    """Standard normal float64 numbers, one for each place in ``at``: Box and Muller's cosine.

    The largest possible is 8.6.
    """
    xp = array_namespace(at)
    # 1 - u is in (0, 1]: its logarithm is finite
    radius = xp.sqrt(-2 * xp.log(1 - uniforms(key, at, 0)))
    return radius * xp.cos(2 * pi * uniforms(key, at, 1))


def splitmix64(start: int, at: Array) -> Array:
    """The outputs numbered ``at`` (an array, from 0) of SplitMix64 from a state: 64-bit integers.

    >>> splitmix64(1234567, np.arange(2)).tolist()
    [6457827717110365317, 3203168211198807973]
    """
    # in an array of one axis, whose integers wrap around without a warning
    z = (at.reshape(-1).astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(at.shape)
