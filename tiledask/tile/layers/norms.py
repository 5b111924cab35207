"""Normalisation of each token over its width: LayerNorm and RMSNorm.

Statistics, and the whole chain of operations, are float32 for halves; only y is rounded. (Some
programs round x / rms to halves before they multiply by w; their last bit differs.)
"""

from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import layer
from tiledask.tile.layers.operands import by_token, rounded, wide

__all__ = ["layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad"]


@layer("x:*h w:h b:h -> *h", returns="inverse mean")
def layer_norm(
    x: Array, w: Array, b: Array | None = None, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(variance + eps) w + b over the last axis, w and b [width].

    Saves 1 / deviation and the mean [..., 1] of each token. Ba et al., arXiv:1607.06450.

    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), eps=0.0)[0].tolist()
    [[-1.0, 1.0]]
    """
    wider = wide(x)
    mean = _mean(wider)
    y, inverse = _scaled(wider - mean, w, eps)
    if b is not None:
        y += wide(b)
    return rounded(y, x), inverse, mean


@layer_norm.grad
def layer_norm_grad(
    dy: Array, x: Array, inverse: Array, mean: Array, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(dx, dw, db); db is None where b is.

    n = (x - mean) / deviation,  d = dy w
    dx = (d - mean(d) - n mean(d n)) / deviation
    """
    db = None if b is None else rounded(by_token(wide(dy)).sum(axis=0), dy)
    return *_gradients(dy, wide(x) - mean, inverse, w, True), db


@layer("x:*h w:h -> *h", returns="inverse")
def rms_norm(x: Array, w: Array, eps: float = 1e-6) -> tuple[Array, Array]:
    """x / sqrt(mean(x^2) + eps) w over the last axis, w [width]; saves 1 / the root [..., 1].

    Zhang and Sennrich, arXiv:1910.07467.
    """
    y, inverse = _scaled(wide(x), w, eps)
    return rounded(y, x), inverse


@rms_norm.grad
def rms_norm_grad(dy: Array, x: Array, inverse: Array, w: Array) -> tuple[Array, Array]:
    """(dx, dw): dx = (d - n mean(d n)) / rms, with n = x / rms and d = dy w."""
    return _gradients(dy, wide(x), inverse, w, False)


def _scaled(x: Array, w: Array, eps: float) -> tuple[Array, Array]:
    """(x w over the root of the mean of squares, 1 / that root); eps keeps it away from zero."""
    inverse = 1 / array_namespace(x).sqrt(_mean(x * x) + eps)
    y = x * inverse
    y *= wide(w)
    return y, inverse


def _gradients(dy: Array, x: Array, inverse: Array, w: Array, centred: bool) -> tuple[Array, Array]:
    """(dx, dw) of `_scaled`, and of the mean that was taken off if x is ``centred``."""
    normed, d = x * inverse, wide(dy)
    dw = rounded(by_token(d * normed).sum(axis=0), dy)
    d = d * wide(w)
    along = _mean(d * normed)
    if centred:
        d -= _mean(d)
    normed *= along
    d -= normed
    d *= inverse
    return rounded(d, dy), dw


def _mean(x: Array) -> Array:
    """Of each token over its width."""
    total = x.sum(axis=-1, keepdims=True)
    total /= x.shape[-1]
    return total
