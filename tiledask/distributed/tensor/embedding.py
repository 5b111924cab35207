"""The embedding over ranks: a table sharded by rows; each rank adds the rows that it has."""

from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.f_g import leave, leave_grad
from tiledask.distributed.tensor.placed import (
    EVERYWHERE,
    Placed,
    fits,
    need,
    partial,
    refuse,
    same_placement,
)
from tiledask.plan.collectives.shards import Shards
from tiledask.plan.products.placement import Placement, Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace

__all__ = ["embedding", "embedding_grad", "first_of"]


class KeptShardedEmbedding(NamedTuple):
    """What the embedding keeps."""

    tile: Any
    given: Placed
    """The placement of y."""


def embedding(
    group: Group,
    tokens: Any,
    table: Placed,
    *,
    to: Placement = EVERYWHERE,
    shards: Shards | None = None,
) -> tuple[Placed, KeptShardedEmbedding]:
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
    first = first_of(group, "embedding", "table", table, 0)
    if table.local.shape[0]:
        y, kept = tile.embedding(tokens, table.local, first, table.shape[0])
    else:  # more ranks than rows: a row of zeros stands for none
        zero = array_namespace(table.local).zeros((1, table.shape[1]), table.local.dtype)
        y, kept = tile.embedding(tokens, zero, table.shape[0], table.shape[0])
    with group.label("embedding", "forward"):
        placed = leave(group, partial(y), to, shards)
    return placed, KeptShardedEmbedding(kept, placed.spec)


def embedding_grad(group: Group, dy: Placed, kept: KeptShardedEmbedding, table: Placed) -> Placed:
    """dtable, placed as the table is."""
    same_placement("embedding's gradient", "dy", dy, "y", kept.given)
    with group.label("embedding", "backward"):
        whole = leave_grad(group, dy)
    return table.like(tile.embedding_grad(whole.local, kept.tile)[: len(table.local)])


def first_of(group: Group, operation: str, name: str, x: Placed, dim: int) -> int:
    """The first index of ``dim`` that this rank has; raises PlacementError unless x is sharded
    along it, one part behind the other."""
    need(operation, name, x, (Shard,), f"each rank has its part of dimension {dim}")
    at, shards = x.split
    if at != dim % x.ndim or not shards.in_a_row:
        refuse(
            operation,
            f"{name} must be sharded along dimension {dim}, one part behind the other, got {x}",
        )
    fits(group, operation, name, x)
    return sum(shards.counts[: group.rank])
