"""What layers ask of their operands, and how halves are computed: widened, rounded once."""

from collections.abc import Mapping
from functools import cache, lru_cache
from math import prod
from types import ModuleType

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace, name_of
from tiledask.tile.product import matmul

__all__ = ["by_token", "check", "check_integers", "multiply", "rounded", "wide"]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check(shapes: str, operands: Mapping[str, Array]) -> ModuleType:
    """NumPy or CuPy, whose the operands are; KernelError unless they go together as ``shapes`` say.

    A letter is an extent, the same wherever it stands, and a star any extents in front. All are
    floats of one element type; what is None, or not given, doesn't count.

    >>> check("x:*i w:io b:o", {"x": np.ones((7, 5, 4)), "w": np.ones((3, 2))})
    Traceback (most recent call last):
        ...
    tiledask.errors.KernelError: w must be [4, o], got [3, 2], for shapes are x:*i w:io b:o
    """
    given = [operands.get(name) for name, _ in _parsed(shapes)]
    xp = array_namespace(*[x for x in given if x is not None])
    _agree(shapes, tuple([None if x is None else (x.dtype, x.shape) for x in given]))
    return xp


@cache
def _parsed(shapes: str) -> tuple[tuple[str, str], ...]:
    pairs = (each.partition(":") for each in shapes.split())
    return tuple((name, dims) for name, _, dims in pairs)


@lru_cache(4096)
def _agree(shapes: str, given: tuple[tuple[np.dtype, tuple[int, ...]] | None, ...]) -> None:
    """Raises KernelError unless element types and shapes go together; kept, as many are alike."""
    there = [
        (name, dims, *each)
        for (name, dims), each in zip(_parsed(shapes), given, strict=True)
        if each is not None
    ]
    first, _, dtype, _ = there[0]
    if any(other != dtype for _, _, other, _ in there):
        listed = ", ".join(f"{name} {other.name}" for name, _, other, _ in there)
        raise KernelError(f"operands have one element type, got {listed}; cast with .astype")
    if name_of(dtype) not in FLOATS:
        raise KernelError(
            f"{first} holds floats ({', '.join(FLOATS)}), got {dtype.name}; cast with .astype"
        )
    extents: dict[str, object] = {}
    for name, dims, _, shape in there:
        ends = dims.removeprefix("*")
        front = len(shape) - len(ends)
        wanted = ", ".join(str(extents.get(letter, letter)) for letter in dims)
        fits = front == 0 or (front > 0 and ends != dims)
        here: list[tuple[str, object]] = list(zip(ends, shape[max(front, 0) :], strict=False))
        if ends != dims:
            here.append(("*", shape[: max(front, 0)]))
        if not (fits and all(extents.setdefault(key, n) == n for key, n in here)):
            got = ", ".join(map(str, shape))
            raise KernelError(f"{name} must be [{wanted}], got [{got}], for shapes are {shapes}")


def check_integers(name: str, value: Array) -> None:
    """None; raises KernelError unless ``value`` holds integers: tokens, targets, positions."""
    array_namespace(value)
    if value.dtype.kind not in "iu":
        raise KernelError(f"{name} are integers, got {value.dtype}; cast with .astype('int64')")


def wide(x: Array) -> Array:
    """``x`` in the type in which it is summed: float32 for halves, itself otherwise."""
    return x.astype(accumulator(x.dtype), copy=False)


def rounded(y: Array, like: Array) -> Array:
    """``y`` in the element type of ``like``, the operand; no copy if it has that already."""
    return y.astype(like.dtype, copy=False)


def multiply(a: Array, b: Array) -> Array:
    """a b [..., n] for a [..., k] and b [k, n], halves summed in float32 and not rounded yet.

    >>> multiply(np.ones((2, 2, 3), np.float16), np.ones((3, 4), np.float16)).dtype.name
    'float32'
    """
    flat, summed = by_token(a), accumulator(a.dtype)
    if type(a) is type(b) is np.ndarray and summed == a.dtype:
        out = np.matmul(flat, b)  # what "blas" does, at once
    elif not flat.size or not b.size:  # a device may hold no token, or no column
        out = array_namespace(a, b).zeros((flat.shape[0], b.shape[1]), summed)
    else:
        out = array_namespace(a, b).empty((flat.shape[0], b.shape[1]), summed)
        matmul(flat, b, out=out)
    return out.reshape(*a.shape[:-1], b.shape[1])


def by_token(x: Array) -> Array:
    """[tokens, width] for x [..., width], none of either included."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
