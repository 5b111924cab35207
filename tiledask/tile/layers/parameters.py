"""Parameters by name, drawn so that each device gets its part of the same numbers.

A number follows from the seed, the parameter's name and its place in the whole array (see
rng.py): a device draws its part without the rest, and the other devices need not be asked.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, as_dtype, namespace
from tiledask.tile.layers.rng import Part, key, normals, positions

__all__ = ["Parameter", "draw", "initialise", "matrix"]

KINDS = ("normal", "zeros", "ones")
_AT_ONCE = 2**16
"""Numbers that are drawn at a time: what is between a place and its number stays in the cache."""


@dataclass(frozen=True)
class Parameter:
    """What a parameter is before anything is learned."""

    shape: tuple[int, ...]
    """Shape of the whole array, whoever holds it."""
    kind: str = "normal"
    """"normal", "zeros" or "ones"."""
    scale: float = 1.0
    """The deviation of normal numbers."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise KernelError(f"parameters start as {', '.join(KINDS)}, got {self.kind!r}")

    @property
    def size(self) -> int:
        """How many numbers."""
        return prod(self.shape)


def matrix(name: str, rows: int, columns: int, bias: bool) -> dict[str, Parameter]:
    """w<name> [rows, columns] with deviations of 1/sqrt(rows), and b<name> of zeros if wanted.

    >>> matrix("q", 4, 2, bias=True)["wq"]
    Parameter(shape=(4, 2), kind='normal', scale=0.5)
    """
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

    >>> w = Parameter((4, 6))
    >>> right = draw(w, 0, "wq", (slice(None), slice(3, 6)))
    >>> bool((draw(w, 0, "wq")[:, 3:] == right).all())
    True
    """
    at = positions(parameter.shape, part)
    made = np.empty(at.shape, as_dtype(dtype))
    numbers, places = made.reshape(-1), at.reshape(-1)

    def fill(first: int) -> None:
        some = slice(first, first + _AT_ONCE)
        numbers[some] = _drawn(parameter, seed, name, places[some])

    # workers on GPUs leave the host's cores idle
    threads = 1 if xp == "numpy" else min(8, os.cpu_count() or 1, -(-at.size // _AT_ONCE))
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        for _ in (map if pool is None else pool.map)(fill, range(0, at.size, _AT_ONCE)):
            pass
    return namespace(xp).asarray(made)


def _drawn(parameter: Parameter, seed: int, name: str, at: np.ndarray) -> np.ndarray:
    """The float64 numbers at those places."""
    if parameter.kind != "normal":
        return np.full(at.shape, float(parameter.kind == "ones"))
    values: np.ndarray = normals(key(seed, name), at) * parameter.scale
    return values


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
    parts = parts or {}
    unknown = sorted(set(parts) - set(parameters))
    if unknown:
        raise KernelError(
            f"parts are of the parameters {', '.join(parameters)}, got {', '.join(unknown)}"
        )
    return {
        name: draw(parameter, seed, f"{prefix}{name}", parts.get(name), dtype, xp)
        for name, parameter in parameters.items()
    }
