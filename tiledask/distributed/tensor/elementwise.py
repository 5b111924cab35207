"""Activations, sums and biases, element by element; what is wrong on partial sums is refused."""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed
from tiledask.distributed.tensor.propagate import need, propagate, same_placement
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.layers.operands import rounded, wide

__all__ = ["ONCE", "activate", "add", "add_bias"]

ONCE = (
    "a bias that each of {0} ranks adds to its partial sum is in the sum {0} times; sum first, by "
    "g(group, x)"
)


def activate(x: Placed, activation: str) -> tuple[Placed, Any]:
    """(y, kept): relu, gelu or silu of ``x``, placed as x is. Refuses a Partial."""
    need(
        activation,
        "x",
        x,
        (Replicate, Shard),
        f"{activation} of a sum is not the sum of {activation}s; sum first, by g(group, x), or cut "
        f"the matrix before it along its columns",
    )
    y, kept = tile.find_activation(activation).forward(x.local)
    return x.like(y), kept


def add(x: Placed, y: Placed) -> Placed:
    """x + y; both have the same placement, so that nothing is added on every rank to one sum."""
    same_placement("add", "x", x, "y", y)
    return x.like(rounded(wide(x.local) + wide(y.local), x.local))


def add_bias(group: Group, x: Placed, b: Placed | None) -> Placed:
    """x + b over the last axis, or x without a bias. Refuses a Partial: b would be there t times."""  # noqa: E501
    propagate(group, "add_bias", "*n n", ONCE.format(group.size), x=x, b=b)
    return x if b is None else x.like(rounded(wide(x.local) + wide(b.local), x.local))
