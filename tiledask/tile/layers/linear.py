"""The linear layer: y = x w + b, with or without b; of two arrays, or of a dict by name."""

from collections.abc import Iterable

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import op
from tiledask.tile.layers.operands import (
    by_token,
    check_floats,
    check_shape,
    multiply,
    rounded,
    wide,
)

__all__ = [
    "Arrays",
    "apply",
    "apply_grad",
    "check_linear",
    "check_weights",
    "fuse",
    "linear",
    "linear_grad_input",
    "linear_grad_weight",
]

Arrays = dict[str, Array]
"""Arrays by name."""


def check_linear(x: Array, w: Array, b: Array | None) -> None:
    """None; raises KernelError unless x [..., in], w [in, out] and b [out] go together."""
    check_floats(x=x, w=w, b=b)
    check_shape("w", w, (x.shape[-1], None), "as many rows as x has columns, by outputs")
    if b is not None:
        check_shape("b", b, (w.shape[1],), "one for each column of w")


@op
def linear(x: Array, w: Array, b: Array | None = None, turned: bool = False) -> Array:
    """x w + b [..., out] for x [..., in], w [in, out] ([out, in] if ``turned``) and b [out].

    Of halves the whole sum, b included, is float32 and rounded once.

    >>> import numpy as np
    >>> linear(np.ones((2, 3)), np.ones((3, 1)), np.ones(1)).tolist()
    [[4.0], [4.0]]
    """
    w = w.T if turned else w
    check_linear(x, w, b)
    y = multiply(x, w)
    if b is not None:
        y += wide(b)
    return rounded(y, x)


@op
def linear_grad_input(dy: Array, w: Array, turned: bool = False) -> Array:
    """dx = dy w^T [..., in]: the half of the backward that the layer before waits for."""
    w = w.T if turned else w
    check_floats(dy=dy, w=w)
    return rounded(multiply(dy, w.T), dy)


@op
def linear_grad_weight(dy: Array, x: Array, turned: bool = False) -> tuple[Array, Array]:
    """(dw [in, out], db [out]) = (x^T dy, the sum of dy): the half that nobody waits for."""
    check_floats(dy=dy, x=x)
    check_shape("dy", dy, (*x.shape[:-1], None), "as many rows as x has")
    dy, x = by_token(dy), by_token(x)
    db = wide(dy).sum(axis=0)
    dw = rounded(multiply(x.T, dy), dy)
    return dw.T if turned else dw, rounded(db, dy)


# -- by name: weight w<name> and bias b<name> in one dict ------------------------------------------


def check_weights(weights: Arrays, names: Iterable[str]) -> None:
    """None; raises KernelError unless there is a w<name> for each name, and nothing but biases.

    >>> check_weights({"w_1": 0, "b_1": 0, "w_2": 0}, ["_1", "_2"])
    """
    needed = [f"w{name}" for name in names]
    allowed = [*needed, *(f"b{name}" for name in names)]
    missing = [name for name in needed if name not in weights]
    unknown = [name for name in weights if name not in allowed]
    if missing or unknown:
        raise KernelError(
            f"the weights are {', '.join(needed)}, and biases with b for w, got "
            f"{', '.join(weights) or 'none'}"
            + (f"; {', '.join(missing)} missing" if missing else "")
            + (f"; {', '.join(unknown)} unknown" if unknown else "")
        )


def apply(x: Array, weights: Arrays, name: str) -> Array:
    """x w<name> + b<name>."""
    return linear(x, weights[f"w{name}"], weights.get(f"b{name}"))


def apply_grad(dy: Array, x: Array, weights: Arrays, name: str, grads: Arrays) -> Array:
    """dx of `apply`; writes the gradients of w<name>, and of b<name> if there is one, to grads."""
    dw, db = linear_grad_weight(dy, x)
    grads |= {f"w{name}": dw, f"b{name}": db} if f"b{name}" in weights else {f"w{name}": dw}
    return linear_grad_input(dy, weights[f"w{name}"])


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
