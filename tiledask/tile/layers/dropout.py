"""Dropout whose mask follows from a key and each element's place, not from who draws it."""

from typing import NamedTuple

from tiledask.errors import KernelError
from tiledask.tile.backend import Array
from tiledask.tile.layers.operands import check_floats, rounded, wide
from tiledask.tile.layers.rng import Part, positions, uniforms

__all__ = ["KeptDropout", "dropout", "dropout_grad"]


class KeptDropout(NamedTuple):
    """What dropout keeps."""

    stays: Array
    """Booleans, a byte each: whether an element stays."""
    rate: float


def dropout(
    x: Array, rate: float, key: int, shape: tuple[int, ...] | None = None, part: Part = None
) -> tuple[Array, KeptDropout]:
    """(y, kept): each element of x is zero with probability ``rate``, else over (1 - rate).

    ``key`` is `rng.key` of a seed and of all that shall draw another mask: layer, step,
    micro-batch. If x is ``part`` of an array of ``shape`` (a slice, or indices, by axis), its mask
    is that part of the whole array's mask. Srivastava et al., JMLR 15 (2014), scaled in training.

    >>> import numpy as np
    >>> whole, _ = dropout(np.ones((2, 4)), 0.5, key=1)
    >>> right, _ = dropout(np.ones((2, 2)), 0.5, 1, (2, 4), (slice(None), slice(2, 4)))
    >>> bool((whole[:, 2:] == right).all())
    True
    """
    xp = check_floats(x=x)
    if not 0 <= rate < 1:
        raise KernelError(f"a rate of dropout is from 0 to below 1, got {rate}")
    at = positions(x.shape if shape is None else shape, part, xp)
    if at.shape != x.shape:
        raise KernelError(
            f"part selects {at.shape} of an array of {shape}, got x {x.shape}; shape is that of "
            f"the whole array, part what x holds of it"
        )
    stays = uniforms(key, at) >= rate
    return _masked(x, stays, rate), KeptDropout(stays, rate)


def dropout_grad(dy: Array, kept: KeptDropout) -> Array:
    """dx of `dropout`: dy under the same mask."""
    return _masked(dy, kept.stays, kept.rate)


def _masked(x: Array, stays: Array, rate: float) -> Array:
    return rounded(wide(x) * stays / (1 - rate), x)
