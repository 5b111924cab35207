"""The linear layer: y = x w + b, with or without b; of two arrays, or of a dict by name."""

from collections.abc import Iterable

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import layer, op
from tiledask.tile.layers.operands import by_token, multiply, rounded, wide

__all__ = [
    "Arrays",
    "apply",
    "apply_grad",
    "check_weights",
    "fuse",
    "linear",
    "linear_grad",
    "linear_grad_input",
    "linear_grad_weight",
]

Arrays = dict[str, Array]
"""Arrays by name."""


@layer("x:*i w:io b:o -> *o")
def linear(x: Array, w: Array, b: Array | None = None, turned: bool = False) -> Array:
    """x w + b [..., out] for x [..., in], w [in, out] and b [out], or no b.

    Of halves the whole sum, b included, is float32 and rounded once. A program's w may be
    [out, in], ``turned``.

    >>> import numpy as np
    >>> linear(np.ones((2, 3)), np.ones((3, 1)), np.ones(1))[0].tolist()
    [[4.0], [4.0]]
    """
    y = multiply(x, w.T if turned else w)
    if b is not None:
        y += wide(b)
    return rounded(y, x)


@op
def linear_grad_input(dy: Array, w: Array, turned: bool = False) -> Array:
    """dx = dy w^T [..., in]: the half of the backward that the layer before waits for."""
    return rounded(multiply(dy, w if turned else w.T), dy)


@op
def linear_grad_weight(dy: Array, x: Array, turned: bool = False) -> tuple[Array, Array]:
    """(dw [in, out], db [out]) = (x^T dy, the sum of dy): the half that nobody waits for."""
    dy, x = by_token(dy), by_token(x)
    db = wide(dy).sum(axis=0)
    dw = rounded(multiply(x.T, dy), dy)
    return dw.T if turned else dw, rounded(db, dy)


@linear.grad
def linear_grad(
    dy: Array, x: Array, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array]:
    """(dx, dw, db); db is None where b is."""
    dw, db = linear_grad_weight(dy, x)
    return linear_grad_input(dy, w), dw, None if b is None else db


# -- by name: weight w<name> and bias b<name> in one dict ------------------------------------------


def check_weights(weights: Arrays, names: Iterable[str]) -> None:
    """None; raises KernelError unless there is a w<name> for each name, and nothing but biases.

    >>> check_weights({"w_1": 0, "b_1": 0, "w_2": 0}, ["_1", "_2"])
    """
    needed = {f"w{name}" for name in names}
    allowed = needed | {f"b{name[1:]}" for name in needed}
    if missing := sorted(needed - set(weights)) or sorted(set(weights) - allowed):
        raise KernelError(
            f"the weights are {', '.join(sorted(needed))}, and biases with b for w, got "
            f"{', '.join(weights) or 'none'}; "
            f"{', '.join(missing)} {'missing' if missing[0] in needed else 'unknown'}"
        )


def apply(x: Array, weights: Arrays, name: str) -> Array:
    """x w<name> + b<name>."""
    y: Array = linear(x, weights[f"w{name}"], weights.get(f"b{name}"))[0]
    return y


def apply_grad(dy: Array, x: Array, weights: Arrays, name: str, grads: Arrays) -> Array:
    """dx of `apply`; writes the gradients of w<name>, and of b<name> if there is one, to grads."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    dx, grads[f"w{name}"], db = linear.backward(dy, x, w, b)
    if b is not None:
        grads[f"b{name}"] = db
    return dx


def fuse(weights: Arrays, names: tuple[str, ...], into: str) -> Arrays:
    """The same weights with those of ``names`` side by side, under one name.

    >>> import numpy as np
    >>> fused = fuse({"wq": np.ones((2, 3)), "wk": np.ones((2, 1))}, ("q", "k"), "qk")
    >>> fused["wqk"].shape
    (2, 4)
    """
    fused = {name: w for name, w in weights.items() if name[1:] not in names}
    for kind in "wb":
        parts = [weights[kind + name] for name in names if kind + name in weights]
        if parts:
            fused[kind + into] = array_namespace(*parts).concatenate(parts, axis=-1)
    return fused
