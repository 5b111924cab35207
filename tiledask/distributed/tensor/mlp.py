"""The feed-forward layer over ranks: column-parallel, activation, row-parallel; a sum each way.

    x --w_1[:, mine]-- gelu --w_2[mine, :]-- sum y
    x --w_gate[:, mine]-- silu --(times)-- w_down[mine, :]-- sum y
      '--w_up[:, mine]----------'

Gate and up in one matrix, w_gate_up, have one sum of dx in the backward; apart they have two.
"""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layer_programs import (
    KeptLayer,
    LayerRule,
    Weights,
    backward,
    forward,
    inside,
    prefixed,
)
from tiledask.distributed.tensor.linear import by_columns, by_rows, check_dy
from tiledask.distributed.tensor.placed import Placed, refuse, same_placement
from tiledask.plan.collectives.shards import side_by_side
from tiledask.tile import layers as tile
from tiledask.tile.layers.linear import check_weights

__all__ = ["feed_forward", "mlp", "mlp_grad", "swiglu_mlp", "swiglu_mlp_grad"]


def mlp(
    group: Group, x: Placed, weights: Weights, activation: str = "gelu", *, regather: bool = False
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h]; y is placed as x is. Weights as `shards.mlp_layout` places them."""
    return forward(_mlp, group, (x,), prefixed("mlp", weights), activation, regather)


def mlp_grad(group: Group, dy: Placed, kept: KeptLayer, weights: Weights) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name)."""
    check_dy("w_2" if "w_2" in weights else "w_down", dy, kept)
    dx, grads = backward(group, dy.local, kept, prefixed("mlp", weights))
    assert dx is not None
    return dx, inside("mlp", grads)


def swiglu_mlp(
    group: Group, x: Placed, weights: Weights, *, regather: bool = False
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h], placed as x is. Weights as `shards.swiglu_layout` places them."""
    return forward(_mlp, group, (x,), prefixed("mlp", weights), "swiglu", regather)


swiglu_mlp_grad = mlp_grad


def _mlp(
    group: Group, given: tuple[Placed], weights: Weights, kernel: str, regather: bool
) -> LayerRule:
    (x,) = given
    if kernel != "swiglu":
        tile.find_activation(kernel)
    y = feed_forward(group, x, inside("mlp", weights), kernel)
    told: dict[str, Any] = {"unit": "", "kernel": kernel}
    return LayerRule("feed_forward", y, told, tokens=x, regather=regather)


def feed_forward(group: Group, x: Placed, weights: Weights, kernel: str) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    gated, fused = kernel == "swiglu", "w_gate_up" in weights
    into = ["_1"] if not gated else ["_gate_up"] if fused else ["_gate", "_up"]
    last = "_down" if gated else "_2"
    check_weights(weights, [*into, last])
    made = [by_columns(group, f"w{n}", x, weights[f"w{n}"], weights.get(f"b{n}")) for n in into]
    z = _half(made[0], weights) if gated and fused else made[0]
    if len(made) == 2:
        same_placement("swiglu", "gate", made[0], "up", made[1])
    w, b = weights[f"w{last}"], weights.get(f"b{last}")
    return by_rows(group, f"w{last}", z, w, b, x.placement, x.shards)


def _half(both: Placed, weights: Weights) -> Placed:
    """The placement of the gate, and of what it is multiplied with."""
    _, inner = weights["w_down"].split
    if both.shards != side_by_side(inner, inner):
        refuse(
            "swiglu_mlp",
            f"w_gate_up must be sharded as gate and up each are, {side_by_side(inner, inner)}, "
            f"so that every rank has what it multiplies; got {both.shards}: take swiglu_layout",
        )
    return both._replace(shape=(*both.shape[:-1], inner.extent), shards=inner)
