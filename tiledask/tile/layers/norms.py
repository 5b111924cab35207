"""Normalisation of each token over its width: LayerNorm and RMSNorm.

Statistics, and the whole chain of operations, are float32 for halves; only y is rounded. (Some
programs round x / rms to halves before they multiply by w; their last bit differs.)
"""

from typing import NamedTuple

from tiledask.errors import KernelError
from tiledask.tile.backend import Array
from tiledask.tile.layers.operands import by_token, check_floats, check_shape, rounded, wide

__all__ = ["KeptNorm", "layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad"]


class KeptNorm(NamedTuple):
    """What a norm keeps: its input and a number or two per token."""

    x: Array
    """[..., width]."""
    inverse: Array
    """[..., 1] by what each token was multiplied: 1 / deviation, or 1 / root mean square."""
    mean: Array
    """[..., 1], or 0 where none is taken off."""


def layer_norm(
    x: Array, w: Array, b: Array | None = None, eps: float = 1e-5
) -> tuple[Array, KeptNorm]:
    """(y, kept) = (x - mean) / sqrt(variance + eps) w + b over the last axis, w and b [width].

    The variance is the mean of squares, not divided by width - 1. Ba et al., arXiv:1607.06450.

    >>> import numpy as np
    >>> y, _ = layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), eps=0.0)
    >>> y.tolist()
    [[-1.0, 1.0]]
    """
    xp = _checked(x, w, b, eps)
    mean = _mean(wide(x))
    y = wide(x) - mean
    inverse = 1 / xp.sqrt(_mean(y * y) + eps)
    y *= inverse
    y *= wide(w)
    if b is not None:
        y += wide(b)
    return rounded(y, x), KeptNorm(x, inverse, mean)


def layer_norm_grad(
    dy: Array, kept: KeptNorm, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array]:
    """(dx, dw, db) of `layer_norm`; db is None where b is.

    n = (x - mean) / deviation,  d = dy w
    dx = (d - mean(d) - n mean(d n)) / deviation
    """
    normed, d, dw = _through_w(dy, kept, w)
    along = _mean(d * normed)
    d -= _mean(d)
    normed *= along
    d -= normed
    d *= kept.inverse
    db = None if b is None else rounded(_over_tokens(wide(dy)), dy)
    return rounded(d, dy), dw, db


def rms_norm(x: Array, w: Array, eps: float = 1e-6) -> tuple[Array, KeptNorm]:
    """(y, kept) = x / sqrt(mean(x^2) + eps) w over the last axis, w [width].

    Zhang and Sennrich, arXiv:1910.07467.

    >>> import numpy as np
    >>> rms_norm(np.array([[3.0, -3.0]]), np.ones(2), eps=0.0)[0].tolist()
    [[1.0, -1.0]]
    """
    xp = _checked(x, w, None, eps)
    wider = wide(x)
    inverse = 1 / xp.sqrt(_mean(wider * wider) + eps)
    return rounded(wider * inverse * wide(w), x), KeptNorm(x, inverse, 0)


def rms_norm_grad(dy: Array, kept: KeptNorm, w: Array) -> tuple[Array, Array]:
    """(dx, dw) of `rms_norm`: dx = (d - n mean(d n)) / rms, with n = x / rms and d = dy w."""
    normed, d, dw = _through_w(dy, kept, w)
    dx = (d - normed * _mean(d * normed)) * kept.inverse
    return rounded(dx, dy), dw


def _checked(x: Array, w: Array, b: Array, eps: float) -> Array:
    xp = check_floats(x=x, w=w, b=b)
    for name, weight in (("w", w), ("b", b)):
        if weight is not None:
            check_shape(name, weight, (x.shape[-1],), "one for each column of x")
    if eps < 0:
        raise KernelError(f"eps keeps a root away from zero: 0 or more, got {eps}")
    return xp


def _through_w(dy: Array, kept: KeptNorm, w: Array) -> tuple[Array, Array, Array]:
    """(n, the gradient of n, dw); both new."""
    check_floats(dy=dy, x=kept.x, w=w)
    normed = wide(kept.x) - kept.mean
    normed *= kept.inverse
    return normed, wide(dy) * wide(w), rounded(_over_tokens(wide(dy) * normed), dy)


def _over_tokens(x: Array) -> Array:
    return by_token(x).sum(axis=0)


def _mean(x: Array) -> Array:
    """Of each token over its width."""
    total = x.sum(axis=-1, keepdims=True)
    total /= x.shape[-1]
    return total
