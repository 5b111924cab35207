"""Activations, sums and biases, element by element; what is wrong on partial sums is refused.

gelu(a + b) is not gelu(a) + gelu(b), and a bias added to t partial sums is there t times.
"""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, need, refuse, same_placement
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.layers.operands import rounded, wide

__all__ = [
    "activate",
    "add",
    "add_bias",
    "bias_fits",
]


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
    bias_fits(group, x, b)
    return x if b is None else x.like(rounded(wide(x.local) + wide(b.local), x.local))


def bias_fits(group: Group, x: Placed, b: Placed | None) -> None:
    """None; raises PlacementError unless b can be added to ``x`` once."""
    need(
        "add_bias",
        "x",
        x,
        (Replicate, Shard),
        f"a bias that each of {group.size} ranks adds to its partial sum is in the sum "
        f"{group.size} times; sum first, by g(group, x)",
    )
    if b is None:
        return
    split = x.dim == x.ndim - 1
    need(
        "add_bias", "b", b, (Shard if split else Replicate,), "it is placed as the columns of x are"
    )
    if split and b.shards != x.shards:
        refuse("add_bias", f"b is sharded as {b.shards}, the columns of x as {x.shards}")
