"""Norms of tokens that every rank has, or that are sharded: each token is normed by itself.

With sharded tokens (sequence parallel) no rank sees all of them, so the gradient of the norm's
weight is a partial sum on each, and is summed; without, it is the same on all and must not be.
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
from tiledask.distributed.tensor.placed import Placed, need, refuse, same_placement
from tiledask.plan.products.placement import Replicate, Shard

__all__ = ["layer_norm", "layer_norm_grad", "normed", "rms_norm", "rms_norm_grad"]


def layer_norm(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    eps: float = 1e-5,
    name: str = "layer_norm",
) -> tuple[Placed, KeptLayer]:
    """(y, kept) for x [..., h], on every rank or sharded along its tokens; w and b on every rank.

    ``name`` labels the collective of the backward.
    """
    weights = {"w": w} if b is None else {"w": w, "b": b}
    return forward(_norm, group, (x,), prefixed("norm", weights), False, eps, name)


def layer_norm_grad(
    group: Group, dy: Placed, kept: KeptLayer, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, placed as x was, dw and db on every rank)."""
    dx, grads = _gradients(group, dy, kept, {"w": w} if b is None else {"w": w, "b": b})
    return dx, grads["w"], grads.get("b")


def rms_norm(
    group: Group, x: Placed, w: Placed, eps: float = 1e-6, name: str = "rms_norm"
) -> tuple[Placed, KeptLayer]:
    """(y, kept), as `layer_norm`, without a mean and a bias."""
    return forward(_norm, group, (x,), prefixed("norm", {"w": w}), True, eps, name)


def rms_norm_grad(group: Group, dy: Placed, kept: KeptLayer, w: Placed) -> tuple[Placed, Placed]:
    """(dx, placed as x was, dw on every rank)."""
    dx, grads = _gradients(group, dy, kept, {"w": w})
    return dx, grads["w"]


def _gradients(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights
) -> tuple[Placed, Weights]:
    same_placement(f"{kept.key[1][-1]}'s gradient", "dy", dy, "y", kept.y)
    dx, grads = backward(group, dy.local, kept, prefixed("norm", weights))
    assert dx is not None
    return dx, inside("norm", grads)


def _norm(
    group: Group, given: tuple[Placed], weights: Weights, gated: bool, eps: float, name: str
) -> LayerRule:
    (x,) = given
    y = normed(name, x, inside("norm", weights))
    told: dict[str, Any] = {"unit": "", "name": "norm", "label": name, "gated": gated, "eps": eps}
    return LayerRule("norm", y, told, tokens=x)


def normed(name: str, x: Placed, weights: Weights) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    need(
        name,
        "x",
        x,
        (Replicate, Shard),
        "the norm of a sum is not the sum of norms; sum first, by g(group, x)",
    )
    if x.dim == x.ndim - 1:
        refuse(
            name,
            f"{x} is sharded along the columns that a token's norm is taken of, and each rank "
            f"would take that of its own part; gather it, or shard its tokens",
        )
    for label, weight in weights.items():
        need(name, label, weight, (Replicate,), "every rank has whole tokens")
    return x.spec
