"""The feed-forward layer over ranks: column-parallel, activation, row-parallel; a sum each way.

    x --w_1[:, mine]-- gelu --w_2[mine, :]-- sum y
    x --w_gate[:, mine]-- silu --(times)-- w_down[mine, :]-- sum y
      '--w_up[:, mine]----------'

Gate and up in one matrix, w_gate_up, have one sum of dx in the backward; apart they have two.
"""

from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.elementwise import (
    activate,
    activate_grad,
    add,
    swiglu,
    swiglu_grad,
)
from tiledask.distributed.tensor.linear import KeptLinear
from tiledask.distributed.tensor.named_linear import Weights, column, column_grad, row, row_grad
from tiledask.distributed.tensor.placed import Placed, refuse
from tiledask.plan.collectives.shards import side_by_side
from tiledask.plan.products.placement import Shard
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.linear import check_weights

__all__ = ["mlp", "mlp_grad", "swiglu_mlp", "swiglu_mlp_grad"]


class KeptShardedMLP(NamedTuple):
    """What both keep."""

    into: tuple[KeptLinear, ...]
    activated: Any
    """What the activation keeps."""
    out: KeptLinear
    activation: str


def mlp(
    group: Group, x: Placed, weights: Weights, activation: str = "gelu", *, regather: bool = False
) -> tuple[Placed, KeptShardedMLP]:
    """(y, kept) for x [..., h]; y is placed as x is. Weights as `shards.mlp_layout` places them."""
    check_weights(weights, ["_1", "_2"])
    with group.label("mlp"):
        z, into = column(group, x, weights, "_1", regather)
        activated, kept = activate(z, activation)
        y, out = row(group, activated, weights, "_2", x)
    return y, KeptShardedMLP((into,), kept, out, activation)


def mlp_grad(
    group: Group, dy: Placed, kept: KeptShardedMLP, weights: Weights
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    grads: Weights = {}
    with group.label("mlp"):
        dactivated = row_grad(group, dy, kept.out, weights, "_2", grads)
        dz = activate_grad(dactivated, kept.activated, kept.activation)
        dx = column_grad(group, dz, kept.into[0], weights, "_1", grads)
    return dx, grads


def swiglu_mlp(
    group: Group, x: Placed, weights: Weights, *, regather: bool = False
) -> tuple[Placed, KeptShardedMLP]:
    """(y, kept) for x [..., h], placed as x is. Weights as `shards.swiglu_layout` places them."""
    fused = "w_gate_up" in weights
    check_weights(weights, ["_gate_up", "_down"] if fused else ["_gate", "_up", "_down"])
    with group.label("mlp"):
        into: tuple[KeptLinear, ...]
        if fused:
            both, kept_both = column(group, x, weights, "_gate_up", regather)
            (gate, up), into = _halves(both, weights), (kept_both,)
        else:
            gate, of_gate = column(group, x, weights, "_gate", regather)
            up, of_up = column(group, x, weights, "_up", regather)
            into = of_gate, of_up
        activated, kept = swiglu(gate, up)
        y, out = row(group, activated, weights, "_down", x)
    return y, KeptShardedMLP(into, kept, out, "swiglu")


def swiglu_mlp_grad(
    group: Group, dy: Placed, kept: KeptShardedMLP, weights: Weights
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    grads: Weights = {}
    with group.label("mlp"):
        dactivated = row_grad(group, dy, kept.out, weights, "_down", grads)
        dgate, dup = swiglu_grad(dactivated, kept.activated)
        if len(kept.into) == 1:
            w, xp = weights["w_gate_up"], array_namespace(dgate.local)
            both = xp.concatenate([dgate.local, dup.local], axis=-1)
            dboth = Placed(both, dgate.placement, (*dgate.shape[:-1], w.shape[1]), w.shards)
            return column_grad(group, dboth, kept.into[0], weights, "_gate_up", grads), grads
        from_gate = column_grad(group, dgate, kept.into[0], weights, "_gate", grads)
        from_up = column_grad(group, dup, kept.into[1], weights, "_up", grads)
    return add(from_gate, from_up), grads


def _halves(both: Placed, weights: Weights) -> tuple[Placed, Placed]:
    """(gate, up) of this rank's columns of both."""
    _, inner = weights["w_down"].split
    if both.shards != side_by_side(inner, inner):
        refuse(
            "swiglu_mlp",
            f"w_gate_up must be sharded as gate and up each are, {side_by_side(inner, inner)}, "
            f"so that every rank has what it multiplies; got {both.shards}: take swiglu_layout",
        )
    n = both.local.shape[-1] // 2
    shape, where = (*both.shape[:-1], inner.extent), Shard(both.ndim - 1)
    gate, up = both.local[..., :n], both.local[..., n:]
    return Placed(gate, where, shape, inner), Placed(up, where, shape, inner)
