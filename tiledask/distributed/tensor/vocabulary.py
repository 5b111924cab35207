"""The first and the last layer over ranks: a table sharded by rows, and logits sharded by classes.

Of the embedding each rank adds the rows that it has. Of the loss, logits never meet; 3 numbers a
token are summed up:

    rank 0  z[:, 0..V/t]   largest    sum of exp, target's logit       dz[:, 0..V/t]
    rank 1  z[:, V/t..]      |          |                              dz[:, V/t..]
                         all_reduce   all_reduce                       nothing to wait for

tile/layers/cross_entropy.py has the formulas. On logits that were gathered before, every rank
would count every class: the sum is t times too large and the loss is larger by ln t. Shoeybi et
al., arXiv:1909.08053, section 3.
"""

from math import log
from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.f_g import entering, leaving
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights, replicate
from tiledask.distributed.tensor.propagate import propagate
from tiledask.plan.products.placement import Partial, Placement
from tiledask.plan.products.shards import Shards
from tiledask.tile import layers as tile
from tiledask.tile.layers.cross_entropy import check_count

__all__ = ["KeptShardedLoss", "cross_entropy", "cross_entropy_grad", "embedding", "embedding_grad"]


def embedding(
    group: Group,
    tokens: Any,
    table: Placed,
    *,
    to: Placement = EVERYWHERE,
    shards: Shards | None = None,
) -> tuple[Placed, KeptLayer]:
    """(y [..., h], kept) for tokens [...], which every rank has, and a table [V, h] in Shard(0).

    ``to``: where y is, as for `row_linear`. Raises KernelError for tokens outside of V.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import shard
    >>> def program(rank):
    ...     table = shard(rank.group(), np.array([[1.0], [2.0], [3.0]]), 0)
    ...     return embedding(rank.group(), np.array([2, 0]), table)[0].local.tolist()
    >>> run_threads(program, 2).results
    [[[3.0], [1.0]], [[3.0], [1.0]]]
    """
    return forward(_embedding, group, (replicate(tokens),), {"table": table}, to, shards)


def embedding_grad(group: Group, dy: Placed, kept: KeptLayer, table: Placed) -> Placed:
    """dtable, placed as the table is."""
    dtable: Placed = backward(group, dy, kept, {"table": table})[1]["table"]
    return dtable


def _embedding(
    group: Group,
    given: tuple[Placed],
    weights: Weights,
    to: Placement,
    shards: Shards | None,
) -> LayerRule:
    table, (tokens,) = weights["table"], given
    propagate(group, "embedding", "v!H", "each rank has its part of dimension 0", table=table)
    entering(group, table)
    counts = table.split[1].counts
    y = leaving(group, Placed.of(None, Partial(), (*tokens.shape, table.shape[1])), to, shards)
    return LayerRule("embedding", y, {"counts": counts}, "embedding", "", y)


class KeptShardedLoss(NamedTuple):
    """What the loss keeps."""

    layer: KeptLayer
    divisor: float
    """What the sum of the tokens' losses was divided by."""


def cross_entropy(
    group: Group,
    logits: Placed,
    targets: Any,
    smoothing: float = 0.0,
    ignore: int = -100,
    count: float | None = None,
) -> tuple[Any, KeptShardedLoss]:
    """(loss, kept): the same scalar on every rank; logits [..., V] in Shard(-1), targets [...].

    As tile's `cross_entropy`: the mean over the targets that are not ``ignore``, or their sum over
    ``count``. Smoothing shares out over all V classes, wherever they are. Replicated logits are
    refused.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import shard
    >>> def program(rank):
    ...     logits = shard(rank.group(), np.zeros((2, 5)), -1)
    ...     return round(float(cross_entropy(rank.group(), logits, np.array([4, -100]))[0]), 4)
    >>> run_threads(program, 2).results  # log 5
    [1.6094, 1.6094]
    """
    counted = tile.count_targets(targets, tile.LossRule(logits.shape[-1], smoothing, ignore))
    count = counted if count is None else count
    check_count(count)
    given = logits, replicate(targets)
    y, kept = forward(_loss, group, given, {}, smoothing, ignore)
    return y.local / count, KeptShardedLoss(kept, count)


def cross_entropy_grad(group: Group, dloss: float, kept: KeptShardedLoss) -> Placed:
    """dlogits, placed as the logits are. Nothing is exchanged."""
    seed = Placed.of(dloss / kept.divisor, EVERYWHERE, ())
    dlogits: Placed = backward(group, seed, kept.layer, {})[0]
    return dlogits


def _loss(
    group: Group, given: tuple[Placed, Placed], weights: Weights, smoothing: float, ignore: int
) -> LayerRule:
    logits, _ = given
    why = (
        f"each of {group.size} ranks would count every class, and the loss would be larger by "
        f"ln {group.size} = {log(group.size):.4f}; hand over what column_linear gives without "
        f"gathering it, or use tiledask.tile.layers.cross_entropy on all of it"
    )
    propagate(group, "cross_entropy", "*v!", why, logits=logits)
    entering(group, logits)
    counts = logits.split[1].counts
    told = {"counts": counts, "count": 1.0, "smoothing": smoothing, "ignore": ignore}
    return LayerRule("loss", Placed.of(None, EVERYWHERE, ()), told, "cross_entropy")
