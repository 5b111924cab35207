"""The embedding over ranks: a table sharded by rows; each rank adds the rows that it has."""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.f_g import leaving
from tiledask.distributed.tensor.layer_programs import (
    KeptLayer,
    LayerRule,
    Weights,
    backward,
    forward,
)
from tiledask.distributed.tensor.placed import (
    EVERYWHERE,
    Placed,
    fits,
    need,
    refuse,
    replicate,
    same_placement,
)
from tiledask.plan.collectives.shards import Shards
from tiledask.plan.products.placement import Partial, Placement, Shard

__all__ = ["embedding", "embedding_grad", "sharded_along"]


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
    same_placement("embedding's gradient", "dy", dy, "y", kept.y)
    return backward(group, dy.local, kept, {"table": table})[1]["table"]


def _embedding(
    group: Group,
    given: tuple[Placed],
    weights: Weights,
    to: Placement,
    shards: Shards | None,
) -> LayerRule:
    table, (tokens,) = weights["table"], given
    counts = sharded_along(group, "embedding", "table", table, 0).counts
    y = leaving(group, Placed(None, Partial(), (*tokens.shape, table.shape[1])), to, shards)
    return LayerRule("embedding", y, {"counts": counts}, tokens=y)


def sharded_along(group: Group, operation: str, name: str, x: Placed, dim: int) -> Shards:
    """Who holds what of ``x``; raises PlacementError unless it is sharded along ``dim``, one part
    behind the other."""
    need(operation, name, x, (Shard,), f"each rank has its part of dimension {dim}")
    at, shards = x.split
    if at != dim % x.ndim or not shards.in_a_row:
        refuse(
            operation,
            f"{name} must be sharded along dimension {dim}, one part behind the other, got {x}",
        )
    fits(group, operation, name, x)
    return shards
