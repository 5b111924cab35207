"""Random numbers that follow from a key and a place alone, and parameters drawn by them.

Number i of a key is output i of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) started at the key:
a 64-bit mix of key + (i + 1) gamma. A parameter's numbers follow from the seed, its name and their
places in the whole array, so that a device draws its part without the rest.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from hashlib import blake2b
from math import pi, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tiledask.tile.backend import Array, array_namespace, as_dtype, namespace

__all__ = ["Parameter", "draw", "initialise", "key", "matrix", "normals", "positions", "uniforms"]

Part = Sequence[Any] | None
"""Part of an array, by axis: a slice, or the indices held; None for all of it."""
_GAMMA = 0x9E3779B97F4A7C15
_AT_ONCE = 2**16
"""Numbers that are drawn at a time: what is between a place and its number stays in the cache."""


def key(*words: int | str) -> int:
    """64 bits that stand for these words: a seed, a layer's name, a step.

    >>> key(0, "wq") == key(0, "wq"), key(0, "wq") == key(0, "wk")
    (True, False)
    """
    # NumPy's integers are written otherwise and shall stand for the same
    plain = tuple(word if isinstance(word, str) else int(word) for word in words)
    return int.from_bytes(blake2b(repr(plain).encode(), digest_size=8).digest(), "little")


def positions(shape: tuple[int, ...], part: Part = None) -> np.ndarray:
    """The places, counted row by row, of the elements of ``part`` in an array of ``shape``.

    >>> positions((3, 4), (slice(1, 3), [0, 3])).tolist()
    [[4, 7], [8, 11]]
    """
    part = (slice(None),) * len(shape) if part is None else part
    at = np.zeros((), np.int64)
    for extent, held in zip(shape, part, strict=True):
        held = held if isinstance(held, slice) else np.asarray(held, np.int64)
        at = at[..., None] * extent + np.arange(extent, dtype=np.int64)[held]
    return at


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


def uniforms(key: int, at: Array, stream: int = 0) -> Array:
    """Float64 numbers in [0, 1), one for each place in ``at``; streams are unrelated."""
    # starts a multiple of gamma apart would give the same numbers, shifted: mix them
    start = int(splitmix64(key, np.array([stream]))[0])
    return (splitmix64(start, at) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(key: int, at: Array) -> Array:
    """Standard normal float64 numbers, one for each place in ``at``: Box and Muller's cosine."""
    xp = array_namespace(at)
    # 1 - u is in (0, 1]: its logarithm is finite
    radius = xp.sqrt(-2 * xp.log(1 - uniforms(key, at, 0)))
    return radius * xp.cos(2 * pi * uniforms(key, at, 1))


# -- parameters ------------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """What a parameter is before anything is learned."""

    shape: tuple[int, ...]  # Of the whole array, whoever holds it
    kind: str = "normal"  # Or "zeros", "ones"
    scale: float = 1.0  # The deviation of normal numbers

    @property
    def size(self) -> int:
        """How many numbers."""
        return prod(self.shape)


def matrix(name: str, rows: int, columns: int, bias: bool) -> dict[str, Parameter]:
    """w<name> [rows, columns] with deviations of 1/sqrt(rows), and b<name> of zeros if wanted."""
    made = {f"w{name}": Parameter((rows, columns), "normal", rows**-0.5)}
    return made | ({f"b{name}": Parameter((columns,), "zeros")} if bias else {})


def draw(
    parameter: Parameter,
    seed: int,
    name: str,
    part: Part = None,
    dtype: DTypeLike = "float32",
    xp: str = "numpy",
) -> Array:
    """The numbers of ``part`` (a slice, or indices, by axis) of a parameter; all, if left out.

    Drawn by NumPy in float64 and then cast, so that NumPy and CuPy start from the same numbers.
    """
    at = positions(parameter.shape, part)
    made = np.empty(at.shape, as_dtype(dtype))
    numbers, places = made.reshape(-1), at.reshape(-1)

    def fill(first: int) -> None:
        some = slice(first, first + _AT_ONCE)
        if parameter.kind == "normal":
            numbers[some] = normals(key(seed, name), places[some]) * parameter.scale
        else:
            numbers[some] = {"zeros": 0.0, "ones": 1.0}[parameter.kind]

    # workers on GPUs leave the host's cores idle
    threads = 1 if xp == "numpy" else min(8, os.cpu_count() or 1, -(-at.size // _AT_ONCE))
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        for _ in (map if pool is None else pool.map)(fill, range(0, at.size, _AT_ONCE)):
            pass
    return namespace(xp).asarray(made)


def initialise(
    parameters: dict[str, Parameter],
    seed: int,
    parts: dict[str, Part] | None = None,
    prefix: str = "",
    dtype: DTypeLike = "float32",
    xp: str = "numpy",
) -> dict[str, Array]:
    """Arrays by name. ``parts`` says what is held of each; a name left out is held whole.

    ``prefix`` goes before every name when numbers are drawn: layers of one kind differ by it.

    >>> upper = {"w": (slice(0, 2), slice(None))}
    >>> initialise({"w": Parameter((4, 6))}, 0, upper, prefix="layer 3.")["w"].shape
    (2, 6)
    """
    return {
        name: draw(parameter, seed, f"{prefix}{name}", (parts or {}).get(name), dtype, xp)
        for name, parameter in parameters.items()
    }
