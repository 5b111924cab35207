"""Attention over ranks: each has some of the query heads, and the kv heads that these look at.

10 query heads on 4 ranks, 5 kv heads           rank    0        1        2       3
                                                query   0 1 2    3 4 5    6 7     8 9
                                                kv      0 1      1 2      3       4

Nothing is exchanged between the projections: wq, wk and wv by columns, wo by rows. A kv head on
several ranks is computed on each of them; each finds the part of its gradient that comes from its
own query heads, and these parts are added among the ranks that have the head.
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
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, refuse
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shards, deal_heads, side_by_side
from tiledask.plan.products.placement import Shard
from tiledask.tile import layers as tile
from tiledask.tile.layers.linear import check_weights

__all__ = ["attend", "self_attention", "self_attention_grad", "with_angles"]


def self_attention(
    group: Group,
    x: Placed,
    weights: Weights,
    heads: tile.Heads,
    angles: tile.Angles | None = None,
    causal: bool = True,
    scale: float | None = None,
    *,
    regather: bool = False,
) -> tuple[Placed, KeptLayer]:
    """(y [b, s, h], kept) for x [b, s, h]; y is placed as x is.

    ``heads`` are those of the whole layer; weights sharded as `shards.attention_layout` says.
    ``angles`` are of all tokens: every rank has all of them when it attends.
    """
    given, mine = with_angles(x, angles), prefixed("attention", weights)
    return forward(_attention, group, given, mine, heads, causal, scale, regather)


def self_attention_grad(
    group: Group, dy: Placed, kept: KeptLayer, weights: Weights
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name); kv heads' are whole on each of their ranks."""
    check_dy("wo", dy, kept)
    dx, grads = backward(group, dy.local, kept, prefixed("attention", weights))
    assert dx is not None
    return dx, inside("attention", grads)


def with_angles(x: Placed, angles: tile.Angles | None) -> tuple[Placed, ...]:
    """What a layer is given that turns its heads by ``angles``."""
    return (x,) if angles is None else (x, Placed(angles, EVERYWHERE, ()))


def _attention(
    group: Group,
    given: tuple[Placed, ...],
    weights: Weights,
    heads: tile.Heads,
    causal: bool,
    scale: float | None,
    regather: bool,
) -> LayerRule:
    y = attend(group, given[0], inside("attention", weights), heads)
    told: dict[str, Any] = {"unit": "", "causal": causal, "scale": scale}
    told |= {"angles": None} if len(given) == 1 else {}
    counts = heads.query, heads.kv, heads.width
    return LayerRule("self_attention", y, told, given[0], counts, regather)


def attend(group: Group, x: Placed, weights: Weights, heads: tile.Heads) -> Placed:
    """The placement of y; PlacementError for what does not go together."""
    if len(x.shape) != 3:
        raise PlacementError(f"attention takes x [batch, tokens, width], got {x}")
    query, kv = _by_heads(heads, group.size)
    names = ["qkv"] if "wqkv" in weights else ["q", "k", "v"]
    check_weights(weights, [*names, "o"])
    wanted = {"wq": query, "wk": kv, "wv": kv, "wqkv": side_by_side(query, kv, kv), "wo": query}
    for name, shards in wanted.items():
        if name in weights and weights[name].shards != shards:
            refuse(
                "self_attention",
                f"{name} must be sharded by heads, {shards}; got "
                f"{weights[name].shards or weights[name]}: take attention_layout",
            )
    for name in names:
        by_columns(group, f"w{name}", x, weights[f"w{name}"], weights.get(f"b{name}"))
    c = Placed(None, Shard(2), (*x.shape[:2], query.extent), query)
    return by_rows(group, "wo", c, weights["wo"], weights.get("bo"), x.placement, x.shards)


def _by_heads(heads: tile.Heads, ranks: int) -> tuple[Shards, Shards]:
    """(columns of query heads, columns of kv heads) of every rank."""
    if tuple(heads.kv_of) != tile.shared_heads(heads.query, heads.kv):
        raise PlacementError(
            f"over ranks, equally many neighbouring query heads share a kv head; got kv_of="
            f"{heads.kv_of} of {heads.query} query and {heads.kv} kv heads: leave kv_of out"
        )
    query, kv = deal_heads(heads.query, heads.kv, ranks)
    return query.scaled(heads.width), kv.scaled(heads.width)
