"""What layers ask of their operands, and how halves are computed: widened, rounded once."""

from collections.abc import Mapping
from functools import cache, lru_cache
from math import prod

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace, name_of
from tiledask.tile.product import matmul

__all__ = ["by_token", "check", "check_integers", "local_index", "multiply", "rounded", "wide"]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check(shapes: str, operands: Mapping[str, Array]) -> None:
    """Raises KernelError unless the operands go together as ``shapes`` say.

    A letter is an extent, the same wherever it stands, a star any extents in front. All are floats
    of one element type; what is None, or not given, doesn't count.

    >>> check("x:*i w:io b:o", {"x": np.ones((7, 5, 4)), "w": np.ones((3, 2))})
    Traceback (most recent call last):
    tiledask.errors.KernelError: w must be [4, o], got [3, 2], for shapes are x:*i w:io b:o
    """
    given = [operands.get(name) for name, _ in _parsed(shapes)]
    array_namespace(*[x for x in given if x is not None])
    _agree(shapes, tuple([None if x is None else (x.dtype, x.shape) for x in given]))


@cache
def _parsed(shapes: str) -> list[tuple[str, str]]:
    """(name, its dimensions) of each operand."""
    return [(name, dims) for name, _, dims in (each.partition(":") for each in shapes.split())]


@lru_cache(4096)
def _agree(shapes: str, given: tuple[tuple[np.dtype, tuple[int, ...]] | None, ...]) -> None:
    """Raises KernelError unless element types and shapes go together; kept, as many are alike."""
    found = [(*each, *x) for each, x in zip(_parsed(shapes), given, strict=True) if x]
    types = {dtype for *_, dtype, _ in found}
    if len(types) > 1 or name_of(*types) not in FLOATS:
        listed = ", ".join(f"{name} {dtype.name}" for name, _, dtype, _ in found)
        raise KernelError(f"operands are of one element type, {FLOATS}, got {listed}; use .astype")
    extents: dict[str, object] = {}
    for name, dims, _, shape in found:
        ends = dims.removeprefix("*")
        front = len(shape) - len(ends)
        wanted = ", ".join(str(extents.get(letter, letter)) for letter in dims)
        here = [*zip(ends, shape[front:], strict=False), *[("*", shape[:front])] * (ends != dims)]
        fits = front == 0 or (front > 0 and ends != dims)
        if not fits or any(extents.setdefault(letter, n) != n for letter, n in here):
            got = ", ".join(map(str, shape))
            raise KernelError(f"{name} must be [{wanted}], got [{got}], for shapes are {shapes}")


def check_integers(name: str, value: Array) -> None:
    """None; raises KernelError unless ``value`` holds integers: tokens, targets, positions."""
    array_namespace(value)
    if value.dtype.kind not in "iu":
        raise KernelError(f"{name} are integers, got {value.dtype}; cast with .astype('int64')")


def local_index(index: Array, first: int, extent: int) -> tuple[Array, Array]:
    """(index here, whether it is) of each among those from ``first`` on; 0 stands for none."""
    at = index.astype("int64") - first
    here = (at >= 0) & (at < extent)
    return at * here, here


def wide(x: Array) -> Array:
    """``x`` in the type in which it is summed: float32 for halves, itself otherwise."""
    return x.astype(accumulator(x.dtype), copy=False)


def rounded(y: Array, like: Array) -> Array:
    """``y`` in the element type of ``like``, the operand; no copy if it has that already."""
    return y.astype(like.dtype, copy=False)


def multiply(a: Array, b: Array, bias: Array | None = None) -> Array:
    """a b + bias [..., n] for a [..., k], b [k, n] and bias [n]; halves are summed in float32, bias
    included, and rounded once."""
    xp, flat, kind = array_namespace(a, b), by_token(a), accumulator(a.dtype)
    if xp is np and kind == a.dtype:
        out = np.matmul(flat, b)  # what "blas" does, at once
    elif not flat.size or not b.size:  # a device may hold no token, or no column
        out = xp.zeros((flat.shape[0], b.shape[1]), kind)
    else:  # a GPU's library rounds where nothing is added
        out = xp.empty((len(flat), b.shape[1]), a.dtype if xp is not np and bias is None else kind)
        matmul(flat, b, out=out)
    if bias is not None:
        out += wide(bias)
    return rounded(out, a).reshape(*a.shape[:-1], b.shape[1])


def by_token(x: Array) -> Array:
    """[tokens, width] for x [..., width], none of either included."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
