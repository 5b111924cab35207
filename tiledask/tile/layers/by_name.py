"""The linear layers inside of a layer: weight w<name> and bias b<name> in one dict of arrays."""

from collections.abc import Iterable
from typing import Any

from tiledask.errors import KernelError
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.linear import linear, linear_grad

__all__ = ["Arrays", "apply", "apply_grad", "check_weights", "fuse"]

Arrays = dict[str, Any]
"""Arrays by name."""


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


def apply(x: Any, weights: Arrays, name: str) -> Any:
    """x w<name> + b<name>, without what it keeps: x."""
    return linear(x, weights[f"w{name}"], weights.get(f"b{name}"))[0]


def apply_grad(dy: Any, x: Any, weights: Arrays, name: str, grads: Arrays) -> Any:
    """dx of `apply`; writes the gradients of w<name>, and of b<name> if there is one, to grads."""
    b = weights.get(f"b{name}")
    dx, dw, db = linear_grad(dy, x, weights[f"w{name}"], b)
    grads |= {f"w{name}": dw} if b is None else {f"w{name}": dw, f"b{name}": db}
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
