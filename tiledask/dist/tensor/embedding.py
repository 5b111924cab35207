"""The embedding over ranks: a table sharded by rows; each rank adds the rows that it has."""

from typing import Any, NamedTuple

from tiledask.dist.ranks.group import Group
from tiledask.dist.tensor.conjugates import leave, leave_grad
from tiledask.dist.tensor.placed import EVERYWHERE, Placed, fits, need, partial, refuse, same_lay
from tiledask.plan.collectives.shards import Shards
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace

__all__ = ["embedding", "embedding_grad", "first_of"]


class KeptEmbedding(NamedTuple):
    """What the embedding keeps."""

    tile: Any
    given: Placed
    """How y lies."""


def embedding(
    group: Group, tokens: Any, table: Placed, *, to: Replicate | Shard = EVERYWHERE,
    shards: Shards | None = None,
) -> tuple[Placed, KeptEmbedding]:  # fmt: skip
    """(y [..., h], kept) for tokens [...], which every rank has, and a table [V, h] in Shard(0).

    ``to``: where y lies, as for `row_linear`. Raises KernelError for tokens outside of V.

    >>> import numpy as np
    >>> from tiledask.dist.ranks.threads import run_threads
    >>> from tiledask.dist.tensor.placed import shard
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
    return placed, KeptEmbedding(kept, placed.lay)


def embedding_grad(group: Group, dy: Placed, kept: KeptEmbedding, table: Placed) -> Placed:
    """dtable, which lies as the table does."""
    same_lay("embedding's gradient", "dy", dy, "y", kept.given)
    with group.label("embedding", "backward"):
        whole = leave_grad(group, dy)
    return table.like(tile.embedding_grad(whole.local, kept.tile)[: len(table.local)])


def first_of(group: Group, operation: str, name: str, x: Placed, dim: int) -> int:
    """The first index of ``dim`` that this rank has; raises PlacementError unless x is sharded
    along it, one part behind the other."""
    need(operation, name, x, (Shard,), f"each rank has its part of dimension {dim}")
    if x.dim != dim % x.ndim or not x.shards.in_a_row:
        refuse(
            operation,
            f"{name} must be sharded along dimension {dim}, one part behind the other, got {x}",
        )
    fits(group, operation, name, x)
    return sum(x.shards.counts[: group.rank])
