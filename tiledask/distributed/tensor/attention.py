"""Attention over ranks: each has some of the query heads, and the kv heads that these look at.

10 query heads on 4 ranks, 5 kv heads           rank    0        1        2       3
                                                query   0 1 2    3 4 5    6 7     8 9
                                                kv      0 1      1 2      3       4

Nothing is exchanged between the projections: wq, wk and wv by columns, wo by rows. A kv head on
several ranks is computed on each of them; each finds the part of its gradient that comes from its
own query heads, and these parts are added among the ranks that have the head.
"""

from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.elementwise import add
from tiledask.distributed.tensor.linear import KeptLinear
from tiledask.distributed.tensor.named_linear import Weights, column, column_grad, row, row_grad
from tiledask.distributed.tensor.placed import Placed, refuse
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shards, deal_heads, side_by_side
from tiledask.plan.products.placement import Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.attention import by_head, merged
from tiledask.tile.layers.linear import check_weights

__all__ = ["KeptShardedSelfAttention", "self_attention", "self_attention_grad"]


class KeptShardedSelfAttention(NamedTuple):
    """What the layer keeps."""

    into: tuple[KeptLinear, ...]
    core: Any
    """What tile's attention keeps; q and k in it are turned already."""
    out: KeptLinear
    angles: tile.Angles | None
    heads: tile.Heads
    """The heads of the whole layer."""


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
) -> tuple[Placed, KeptShardedSelfAttention]:
    """(y [b, s, h], kept) for x [b, s, h]; y is placed as x is.

    ``heads`` are those of the whole layer; weights sharded as `shards.attention_layout` says.
    ``angles`` are of all tokens: every rank has all of them when it attends.
    """
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
    with group.label("attention"):
        made = [column(group, x, weights, name, regather) for name in names]
        into = tuple(kept for _, kept in made)
        parts = [y.local for y, _ in made]
        if len(parts) == 1:
            parts = _apart(parts[0], query.counts[group.rank], kv.counts[group.rank])
        q, k, v = (by_head(part, heads.width) for part in parts)
        if angles is not None:
            q, k = tile.rotate(q, angles)[0], tile.rotate(k, angles)[0]
        c, core = tile.attention(q, k, v, _kv_of(heads, group), causal, scale)
        shape = (*x.shape[:2], query.extent)
        y, out = row(group, Placed(merged(c), Shard(2), shape, query), weights, "o", x)
    return y, KeptShardedSelfAttention(into, core, out, angles, heads)


def self_attention_grad(
    group: Group, dy: Placed, kept: KeptShardedSelfAttention, weights: Weights
) -> tuple[Placed, Weights]:
    """(dx, the gradient of each weight by its name); kv heads' are whole on each of their ranks."""
    heads = kept.heads
    grads: Weights = {}
    query, kv = _by_heads(heads, group.size)
    with group.label("attention"):
        dc = row_grad(group, dy, kept.out, weights, "o", grads)
        dq, dk, dv = tile.attention_grad(by_head(dc.local, heads.width), kept.core)
        if kept.angles is not None:
            dq, dk = tile.rotate_grad(dq, kept.angles), tile.rotate_grad(dk, kept.angles)
        parts = {"q": merged(dq), "k": merged(dk), "v": merged(dv)}
        if "wqkv" in weights:
            joined = array_namespace(dq).concatenate(list(parts.values()), axis=-1)
            parts = {"qkv": joined}
        terms = []
        for (name, part), into in zip(parts.items(), kept.into, strict=True):
            w = weights[f"w{name}"]
            placed = Placed(part, Shard(2), (*dy.shape[:2], w.shape[1]), w.shards)
            terms.append(column_grad(group, placed, into, weights, name, grads))
        with group.label("shared kv", "backward"):
            _sum_shared(group, query, kv, grads)
    dx = terms[0]
    for term in terms[1:]:
        dx = add(dx, term)
    return dx, grads


def _by_heads(heads: tile.Heads, ranks: int) -> tuple[Shards, Shards]:
    """(columns of query heads, columns of kv heads) of every rank."""
    if tuple(heads.kv_of) != tile.shared_heads(heads.query, heads.kv):
        raise PlacementError(
            f"over ranks, equally many neighbouring query heads share a kv head; got kv_of="
            f"{heads.kv_of} of {heads.query} query and {heads.kv} kv heads: leave kv_of out"
        )
    query, kv = deal_heads(heads.query, heads.kv, ranks)
    return query.scaled(heads.width), kv.scaled(heads.width)


def _kv_of(heads: tile.Heads, group: Group) -> tuple[int, ...]:
    """The kv head here of each query head here."""
    query, kv = deal_heads(heads.query, heads.kv, group.size)
    if not query.counts[group.rank]:
        return ()
    ((start, stop),), ((first, _),) = query.parts[group.rank], kv.parts[group.rank]
    return tuple(heads.kv_of[i] - first for i in range(start, stop))


def _sum_shared(group: Group, query: Shards, kv: Shards, grads: Weights) -> None:
    """Add, in place, the gradients of kv heads that several ranks have; one sum for each set."""
    for ranks, interval in kv.shared():
        if group.rank not in ranks:
            continue
        columns = kv.local(group.rank, interval)
        views = _columns_of_kv(grads, query.counts[group.rank], kv.counts[group.rank], columns)
        xp = array_namespace(views[0])
        flat = xp.concatenate([view.reshape(-1) for view in views])
        flat, at = group.among(ranks).all_reduce(flat), 0
        for view in views:
            view[...] = flat[at : at + view.size].reshape(view.shape)
            at += view.size


def _columns_of_kv(grads: Weights, query: int, kv: int, columns: slice) -> list[Any]:
    """Views of these columns of the gradients of k and v, weights and biases."""
    views = []
    for kind in "wb":
        if f"{kind}qkv" in grads:
            _, k, v = _apart(grads[f"{kind}qkv"].local, query, kv)
            views += [k[..., columns], v[..., columns]]
        else:
            names = [f"{kind}{name}" for name in "kv" if f"{kind}{name}" in grads]
            views += [grads[name].local[..., columns] for name in names]
    return views


def _apart(joined: Any, query: int, kv: int) -> list[Any]:
    """q, k and v, views of [..., q | k | v]."""
    return [joined[..., :query], joined[..., query : query + kv], joined[..., query + kv :]]
