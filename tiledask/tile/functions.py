"""Array functions that layers are made of, for NumPy and CuPy alike, each beside its gradient.

A gradient takes what arrives from above first: ``f_grad(dy, ...)`` is the transpose of f's
derivative applied to ``dy``. Element types are those of the operands throughout.

The residual feed-forward block, [tokens, width] in and out:

    x ---+--- @ w1 + b1 --- gelu --- @ w2 + b2 ---+--- y
         |       z            h                   |
         '----------------------------------------'

    forward            x -> y          keeps x, z
    backward, input    dy -> dx        keeps x, h, dz, dy; the next device waits for this one only
    backward, weight      -> gradients
"""

import math

import numpy as np

from tiledask.tile.backend import Array, array_namespace, namespace

__all__ = [
    "gelu",
    "gelu_grad",
    "linear",
    "linear_grad_input",
    "linear_grad_weight",
    "mean_square",
    "mean_square_grad",
    "mlp_backward_hidden",
    "mlp_backward_input",
    "mlp_backward_weight",
    "mlp_forward",
    "mlp_init",
]

Arrays = dict[str, Array]
"""Arrays by name: NumPy's, or CuPy's."""

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def linear(x: Array, w: Array, b: Array) -> Array:
    """x w + b [..., out] for x [..., in], w [in, out], b [out]."""
    y = x @ w
    y += b
    return y


def linear_grad_input(dy: Array, w: Array) -> Array:
    """The gradient of `linear` in x: dy w^T [..., in] for dy [..., out]."""
    return dy @ w.T


def linear_grad_weight(dy: Array, x: Array) -> tuple[Array, Array]:
    """The gradients of `linear` in w and b: x^T dy [in, out] and the sum of dy [out]."""
    dy, x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    return x.T @ dy, dy.sum(axis=0)


def gelu(x: Array) -> Array:
    """x times the normal distribution function of x, in its tanh form, element by element.

    The tanh form (Hendrycks and Gimpel, arXiv:1606.08415, section 2) differs from the exact one
    by less than 5e-4 everywhere; NumPy has no error function for the exact one.

    >>> gelu(np.array([-10.0, 0.0, 1.0, 10.0])).round(4).tolist()
    [-0.0, 0.0, 0.8412, 10.0]
    """
    y = _tanh_part(x)
    y += 1
    y *= x
    y *= 0.5
    return y


def gelu_grad(dy: Array, x: Array) -> Array:
    """The gradient of `gelu` at x: dy times its derivative there."""
    t = _tanh_part(x)
    slope = 1 - t * t  # of tanh; then of all that depends on x by way of it
    slope *= x
    inner = x * x
    inner *= 3 * _CUBIC
    inner += 1
    inner *= _SLOPE
    slope *= inner
    slope += t
    slope += 1
    slope *= dy
    slope *= 0.5
    return slope


def _tanh_part(x: Array) -> Array:
    # x * x * x and not x ** 3, which is many times slower; in place, for each new array is a way
    # through memory
    t = x * x
    t *= x
    t *= _CUBIC
    t += x
    t *= _SLOPE
    return array_namespace(x).tanh(t, out=t) if t.ndim else array_namespace(x).tanh(t)


def mean_square(y: Array, target: Array, count: int | None = None) -> Array:
    """The sum of (y - target)^2 over ``count``, a scalar array; ``count`` is y's size if left out.

    A micro-batch passes the whole batch's size as ``count``: then losses, and gradients, of the
    micro-batches add up to those of the batch.

    >>> float(mean_square(np.array([1.0, 3.0]), np.array([0.0, 1.0])))
    2.5
    """
    difference = y - target
    return (difference * difference).sum() / (y.size if count is None else count)


def mean_square_grad(y: Array, target: Array, count: int | None = None) -> Array:
    """The gradient of `mean_square` in y: 2 (y - target) / count."""
    return (y - target) * (2 / (y.size if count is None else count))


def mlp_init(
    seed: int, width: int, hidden: int, dtype: str = "float32", xp: str = "numpy"
) -> Arrays:
    """Weights of one block: w1 [width, hidden], b1, w2 [hidden, width], b2.

    Drawn by NumPy from ``seed`` in float64 and then cast, so that NumPy and CuPy (``xp``) and all
    element types start from the same numbers. Deviations are 1/sqrt(width) for w1 and a quarter
    of 1/sqrt(hidden) for w2, with which tens of blocks in a row keep their values near one.

    >>> {name: w.shape for name, w in mlp_init(0, 4, 8).items()}
    {'w1': (4, 8), 'b1': (8,), 'w2': (8, 4), 'b2': (4,)}
    """
    rng = np.random.default_rng(seed)
    drawn = {
        "w1": rng.standard_normal((width, hidden)) / math.sqrt(width),
        "b1": rng.standard_normal(hidden) * 0.01,
        "w2": rng.standard_normal((hidden, width)) / (4 * math.sqrt(hidden)),
        "b2": rng.standard_normal(width) * 0.01,
    }
    module = namespace(xp)
    return {name: module.asarray(w.astype(dtype)) for name, w in drawn.items()}


def mlp_forward(weights: Arrays, x: Array) -> tuple[Array, Arrays]:
    """(y, saved): x + w2 gelu(w1 x + b1) + b2 [tokens, width], and what the backward needs."""
    z = linear(x, weights["w1"], weights["b1"])  # [tokens, hidden]
    y = linear(gelu(z), weights["w2"], weights["b2"])  # [tokens, width]
    y += x
    return y, {"x": x, "z": z}


def mlp_backward_hidden(weights: Arrays, saved: Arrays, dy: Array) -> Arrays:
    """What is saved for the weights: of a first layer, of whose input nobody needs the gradient."""
    dz = gelu_grad(linear_grad_input(dy, weights["w2"]), saved["z"])  # [tokens, hidden]
    return {"x": saved["x"], "h": gelu(saved["z"]), "dz": dz, "dy": dy}


def mlp_backward_input(weights: Arrays, saved: Arrays, dy: Array) -> tuple[Array, Arrays]:
    """(dx, saved for the weights): the gradient in x [tokens, width], without the weights' own."""
    kept = mlp_backward_hidden(weights, saved, dy)
    dx = linear_grad_input(kept["dz"], weights["w1"])  # [tokens, width]
    dx += dy
    return dx, kept


def mlp_backward_weight(saved: Arrays) -> Arrays:
    """The gradients of w1, b1, w2 and b2, from what `mlp_backward_input` saved."""
    dw1, db1 = linear_grad_weight(saved["dz"], saved["x"])
    dw2, db2 = linear_grad_weight(saved["dy"], saved["h"])
    return {"w1": dw1, "b1": db1, "w2": dw2, "b2": db2}
