"""Checks of a layer's operands, and how halves are computed: widened, rounded once."""

from math import prod
from types import ModuleType

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, accumulator, array_namespace, name_of
from tiledask.tile.product import matmul

__all__ = [
    "by_token",
    "check_floats",
    "check_integers",
    "check_shape",
    "multiply",
    "rounded",
    "wide",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_floats(**operands: Array | None) -> ModuleType:
    """NumPy or CuPy, whose the operands are; those that are None don't count.

    Raises KernelError unless all are floats of one element type, in one place.

    >>> import numpy as np
    >>> check_floats(x=np.ones(2), b=None).__name__
    'numpy'
    """
    there = {name: value for name, value in operands.items() if value is not None}
    xp = array_namespace(*there.values())
    first = next(iter(there))
    dtype = there[first].dtype
    for value in there.values():
        if value.dtype is not dtype and value.dtype != dtype:
            listed = ", ".join(f"{name} {value.dtype.name}" for name, value in there.items())
            raise KernelError(f"operands have one element type, got {listed}; cast with .astype")
    if name_of(dtype) not in FLOATS:
        raise KernelError(
            f"{first} holds floats ({', '.join(FLOATS[:-1])} or {FLOATS[-1]}), got {dtype.name}; "
            f"cast with .astype"
        )
    return xp


def check_integers(name: str, value: Array) -> None:
    """None; raises KernelError unless ``value`` holds integers: tokens, targets, positions."""
    array_namespace(value)
    if value.dtype.kind not in "iu":
        raise KernelError(f"{name} are integers, got {value.dtype}; cast with .astype('int64')")


def check_shape(name: str, value: Array, shape: tuple[int | None, ...], why: str) -> None:
    """None; raises KernelError unless ``value`` has this shape (None: any extent), saying why.

    >>> import numpy as np
    >>> check_shape("w", np.ones((3, 2)), (4, None), "4 inputs")
    Traceback (most recent call last):
        ...
    tiledask.errors.KernelError: w must be [4, any] (4 inputs), got [3, 2]; reshape or slice it
    """
    if value.shape == shape:
        return
    fits = len(value.shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, value.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        got = ", ".join(map(str, value.shape))
        raise KernelError(f"{name} must be [{wanted}] ({why}), got [{got}]; reshape or slice it")


def wide(x: Array) -> Array:
    """``x`` in the type in which it is summed: float32 for halves, itself otherwise."""
    return x.astype(accumulator(x.dtype), copy=False)


def rounded(y: Array, like: Array) -> Array:
    """``y`` in the element type of ``like``, the operand; no copy if it has that already."""
    return y.astype(like.dtype, copy=False)


def multiply(a: Array, b: Array) -> Array:
    """a b [..., n] for a [..., k] and b [k, n], halves summed in float32 and not rounded yet.

    >>> import numpy as np
    >>> multiply(np.ones((2, 2, 3), np.float16), np.ones((3, 4), np.float16)).dtype.name
    'float32'
    """
    flat, summed = by_token(a), accumulator(a.dtype)
    if type(a) is type(b) is np.ndarray and summed == a.dtype:
        return np.matmul(flat, b).reshape(*a.shape[:-1], b.shape[1])  # what "blas" does, at once
    if not flat.size or not b.size:  # a device may hold no token, or no column
        out = array_namespace(a, b).zeros((flat.shape[0], b.shape[1]), summed)
    elif summed == a.dtype:
        out = matmul(flat, b)
    else:
        out = array_namespace(a, b).empty((flat.shape[0], b.shape[1]), summed)
        matmul(flat, b, out=out)
    return out.reshape(*a.shape[:-1], b.shape[1])


def by_token(x: Array) -> Array:
    """[tokens, width] for x [..., width], none of either included."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
