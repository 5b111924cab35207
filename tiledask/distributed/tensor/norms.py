"""Norms of tokens that every rank has, or that are sharded: each token is normed by itself.

With sharded tokens (sequence parallel) no rank sees all of them, so the gradient of the norm's
weight is a partial sum on each, and is summed; without, it is the same on all and must not be.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, need, refuse, same_placement
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace

__all__ = ["KeptShardedNorm", "layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad"]


class KeptShardedNorm(NamedTuple):
    """What a norm keeps."""

    tile: Any
    given: Placed
    """The placement of x."""
    name: str


def layer_norm(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    eps: float = 1e-5,
    name: str = "layer_norm",
) -> tuple[Placed, KeptShardedNorm]:
    """(y, kept) for x [..., h], on every rank or sharded along its tokens; w and b on every rank.

    ``name`` labels the collective of the backward.
    """
    _check(name, x, w, b)
    y, kept = tile.layer_norm(x.local, w.local, None if b is None else b.local, eps)
    return x.like(y), KeptShardedNorm(kept, x.spec, name)


def layer_norm_grad(
    group: Group, dy: Placed, kept: KeptShardedNorm, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, placed as x was, dw and db on every rank)."""
    same_placement(f"{kept.name}'s gradient", "dy", dy, "y", kept.given)
    dx, dw, db = tile.layer_norm_grad(dy.local, kept.tile, w.local, None if b is None else b.local)
    grads = [dw] if b is None else [dw, db]
    dw, *rest = _over_all_tokens(group, dy, grads, kept.name)
    return dy.like(dx), w.like(dw), None if b is None else b.like(*rest)


def rms_norm(
    group: Group, x: Placed, w: Placed, eps: float = 1e-6, name: str = "rms_norm"
) -> tuple[Placed, KeptShardedNorm]:
    """(y, kept), as `layer_norm`, without a mean and a bias."""
    _check(name, x, w, None)
    y, kept = tile.rms_norm(x.local, w.local, eps)
    return x.like(y), KeptShardedNorm(kept, x.spec, name)


def rms_norm_grad(
    group: Group, dy: Placed, kept: KeptShardedNorm, w: Placed
) -> tuple[Placed, Placed]:
    """(dx, placed as x was, dw on every rank)."""
    same_placement(f"{kept.name}'s gradient", "dy", dy, "y", kept.given)
    dx, dw = tile.rms_norm_grad(dy.local, kept.tile, w.local)
    (dw,) = _over_all_tokens(group, dy, [dw], kept.name)
    return dy.like(dx), w.like(dw)


def _check(name: str, x: Placed, w: Placed, b: Placed | None) -> None:
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
    for label, weight in (("w", w), ("b", b)):
        if weight is not None:
            need(name, label, weight, (Replicate,), "every rank has whole tokens")


def _over_all_tokens(group: Group, dy: Placed, grads: Sequence[Any], name: str) -> Sequence[Any]:
    """``grads`` [h] summed over the ranks if these have different tokens, in one all_reduce."""
    if isinstance(dy.placement, Replicate):
        return grads
    with group.label(name, "backward"):
        return list(group.all_reduce(array_namespace(*grads).stack(grads)))
