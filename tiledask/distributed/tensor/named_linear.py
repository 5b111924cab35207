"""The linear layers inside of a layer: weight w<name> and bias b<name> in one dict of Placed."""

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.linear import (
    KeptLinear,
    column_linear,
    column_linear_grad,
    row_linear,
    row_linear_grad,
)
from tiledask.distributed.tensor.placed import Placed

__all__ = ["Weights", "column", "column_grad", "row", "row_grad"]

Weights = dict[str, Placed]
"""Weights, or their gradients, by name."""


def column(
    group: Group, x: Placed, weights: Weights, name: str, regather: bool
) -> tuple[Placed, KeptLinear]:
    """`column_linear` by w<name>, which is its label."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    return column_linear(group, x, w, b, regather=regather, name=f"w{name}")


def column_grad(
    group: Group, dy: Placed, kept: KeptLinear, weights: Weights, name: str, grads: Weights
) -> Placed:
    """dx of `column`; writes the gradients of w<name> and b<name> to ``grads``."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    return _written(column_linear_grad(group, dy, kept, w, b), name, grads)


def row(
    group: Group, x: Placed, weights: Weights, name: str, like: Placed
) -> tuple[Placed, KeptLinear]:
    """`row_linear` by w<name>, which is its label; y is placed as ``like`` is."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    return row_linear(group, x, w, b, to=like.placement, shards=like.shards, name=f"w{name}")


def row_grad(
    group: Group, dy: Placed, kept: KeptLinear, weights: Weights, name: str, grads: Weights
) -> Placed:
    """dx of `row`; writes the gradients of w<name> and b<name> to ``grads``."""
    w, b = weights[f"w{name}"], weights.get(f"b{name}")
    return _written(row_linear_grad(group, dy, kept, w, b), name, grads)


def _written(found: tuple[Placed, Placed, Placed | None], name: str, grads: Weights) -> Placed:
    dx, dw, db = found
    grads |= {f"w{name}": dw} if db is None else {f"w{name}": dw, f"b{name}": db}
    return dx
