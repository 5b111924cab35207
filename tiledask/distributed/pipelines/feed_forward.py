"""The residual feed-forward block of `FeedForward`, [tokens, width] in and out, and the way back.

    x ---+--- @ w1 + b1 --- gelu --- @ w2 + b2 ---+--- y
         |       z            h                   |
         '----------------------------------------'

    forward            x -> y          keeps x, z
    backward, input    dy -> dx        keeps x, h, dz, dy; the next device waits for this one only
    backward, weight      -> gradients

Element types are those of the operands throughout, NumPy's and CuPy's.
"""

import math

import numpy as np

from tiledask.tile.backend import Array, namespace
from tiledask.tile.epilogue import gelu, gelu_grad

__all__ = [
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
    z = x @ weights["w1"]  # [tokens, hidden]
    z += weights["b1"]
    y = gelu(z) @ weights["w2"]  # [tokens, width]
    y += weights["b2"]
    y += x
    return y, {"x": x, "z": z}


def mlp_backward_hidden(weights: Arrays, saved: Arrays, dy: Array) -> Arrays:
    """What is saved for the weights: of a first layer, of whose input nobody needs the gradient."""
    dz = gelu_grad(dy @ weights["w2"].T, saved["z"])  # [tokens, hidden]
    return {"x": saved["x"], "h": gelu(saved["z"]), "dz": dz, "dy": dy}


def mlp_backward_input(weights: Arrays, saved: Arrays, dy: Array) -> tuple[Array, Arrays]:
    """(dx, saved for the weights): the gradient in x [tokens, width], without the weights' own."""
    kept = mlp_backward_hidden(weights, saved, dy)
    dx = kept["dz"] @ weights["w1"].T  # [tokens, width]
    dx += dy
    return dx, kept


def mlp_backward_weight(saved: Arrays) -> Arrays:
    """The gradients of w1, b1, w2 and b2, from what `mlp_backward_input` saved."""
    x, h, dz, dy = (saved[name] for name in ("x", "h", "dz", "dy"))
    return {"w1": x.T @ dz, "b1": dz.sum(axis=0), "w2": h.T @ dy, "b2": dy.sum(axis=0)}
