"""Weights sharded over ranks, put together again, and sharded over another number of ranks.

A layout says how every weight is placed; a checkpoint written under one is read under another:

    whole = put_together(one dict of Placed for each of 4 ranks)
    shard_weights(group of 3, whole, attention_layout(heads, 3))
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, replicate, shard, sharded
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shards, deal_heads, even_shards, side_by_side
from tiledask.plan.products.placement import Partial, Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import to_numpy

__all__ = [
    "Sharding",
    "Shardings",
    "attention_layout",
    "block_layout",
    "draw_sharded",
    "embedding_layout",
    "mlp_layout",
    "put_together",
    "shard_weights",
    "swiglu_layout",
    "whole_of",
]


class Sharding(NamedTuple):
    """How one weight is placed on the ranks of a group."""

    placement: Replicate | Shard
    shards: Shards | None = None
    """Who holds what of the dimension that a Shard cuts; None for Replicate."""

    @property
    def split(self) -> tuple[int, Shards] | None:
        """(the dimension that is sharded, who holds what of it); None if every rank has all."""
        if not isinstance(self.placement, Shard) or self.shards is None:
            return None
        return self.placement.dim, self.shards

    def owned(self, shape: tuple[int, ...], rank: int) -> np.ndarray:
        """Which numbers of ``rank``'s block of a weight of ``shape`` no lower rank holds as well.

        >>> Sharding(Replicate()).owned((2,), 1).tolist()
        [False, False]
        >>> Sharding(Shard(0), Shards(3, (((0, 2),), ((1, 3),)))).owned((3,), 1).tolist()
        [False, True]
        """
        if self.split is None:
            return np.full(shape, rank == 0)
        dim, shards = self.split
        mine = indices(shards, rank)
        before = np.concatenate([np.arange(0), *(indices(shards, r) for r in range(rank))])
        line = np.expand_dims(~np.isin(mine, before), tuple(range(1, len(shape) - dim)))
        return np.broadcast_to(line, (*shape[:dim], len(mine), *shape[dim + 1 :]))


Shardings = dict[str, Sharding]
"""Shardings by the weight's name. Names that weights do not have, such as biases, may be there."""


def mlp_layout(inner: int, ranks: int) -> Shardings:
    """The layout of `mlp` with ``inner`` columns between its matrices.

    >>> mlp_layout(17, 2)["w_1"].shards.counts
    (9, 8)
    """
    shards = even_shards(inner, ranks)
    return _by_columns("_1", shards) | _by_rows("_2", shards)


def swiglu_layout(inner: int, ranks: int) -> Shardings:
    """The layout of `swiglu_mlp`, gate and up apart or fused."""
    shards = even_shards(inner, ranks)
    both = side_by_side(shards, shards)
    into = _by_columns("_gate", shards) | _by_columns("_up", shards)
    return into | _by_columns("_gate_up", both) | _by_rows("_down", shards)


def attention_layout(heads: tile.Heads, ranks: int) -> Shardings:
    """The layout of `self_attention`, fused or not; kv heads on every rank that looks at them.

    >>> attention_layout(tile.Heads(query=4, kv=1, width=8), 4)["wk"].shards.counts
    (8, 8, 8, 8)
    """
    q, kv = (each.scaled(heads.width) for each in deal_heads(heads.query, heads.kv, ranks))
    into = _by_columns("q", q) | _by_columns("k", kv) | _by_columns("v", kv)
    return into | _by_columns("qkv", side_by_side(q, kv, kv)) | _by_rows("o", q)


def embedding_layout(vocabulary: int, ranks: int) -> Shardings:
    """The layout of a table [V, h], by rows, and of ``w_head`` [h, V] to logits, by columns."""
    shards = even_shards(vocabulary, ranks)
    return {"table": Sharding(Shard(0), shards)} | _by_columns("_head", shards)


def block_layout(heads: tile.Heads, inner: int, ranks: int) -> Shardings:
    """The layout of a decoder block, in one dict; the weights of its norms are on every rank."""
    norms = {f"{n}.{kind}": Sharding(Replicate()) for n in ("norm_1", "norm_2") for kind in "wb"}
    feed = mlp_layout(inner, ranks) | swiglu_layout(inner, ranks)
    return (
        norms
        | {
            f"attention.{name}": sharding
            for name, sharding in attention_layout(heads, ranks).items()
        }
        | {f"mlp.{name}": sharding for name, sharding in feed.items()}
    )


def shard_weights(group: Group, weights: dict[str, Any], layout: Shardings) -> dict[str, Placed]:
    """This rank's blocks, copied, of weights that it has in full."""
    chosen = _specs(weights, layout)
    return {
        name: shard(group, w, *split) if (split := chosen[name].split) else replicate(w.copy())
        for name, w in weights.items()
    }


def draw_sharded(
    group: Group,
    parameters: dict[str, tile.Parameter],
    layout: Shardings,
    seed: int,
    prefix: str = "",
    dtype: Any = "float32",
    xp: str = "numpy",
    nudge: tile.Nudge | None = None,
) -> dict[str, Placed]:
    """This rank's blocks of newly drawn weights: those that one device would draw, and no others."""  # noqa: E501
    chosen = _specs(parameters, layout)
    parts: dict[str, Sequence[Any] | None] = {}
    for name, sharding in chosen.items():
        if split := sharding.split:
            dim, shards = split
            axes: list[Any] = [slice(None)] * len(parameters[name].shape)
            axes[dim] = indices(shards, group.rank)
            parts[name] = tuple(axes)
    drawn = tile.initialise(parameters, seed, parts, prefix, dtype, xp, nudge)
    return {
        name: sharded(group, w, *split) if (split := chosen[name].split) else replicate(w)
        for name, w in drawn.items()
    }


def put_together(by_rank: Sequence[dict[str, Placed]]) -> dict[str, np.ndarray]:
    """Weights in full, in host memory, from those of rank 0, 1, ...: what a checkpoint holds.

    Raises PlacementError if ranks differ in what they both hold.
    """
    return {name: whole_of([weights[name] for weights in by_rank]) for name in by_rank[0]}


def whole_of(blocks: Sequence[Placed]) -> np.ndarray:
    """The array, in host memory, of which rank 0, 1, ... have these blocks.

    >>> whole_of([replicate(np.ones(2)), replicate(np.ones(2))]).tolist()
    [1.0, 1.0]
    """
    first, locals_ = blocks[0], [to_numpy(block.local) for block in blocks]
    if isinstance(first.placement, Partial):
        total: np.ndarray = np.sum(locals_, axis=0)
        return total
    if isinstance(first.placement, Replicate):
        for rank, local in enumerate(locals_):
            _check_same(first, 0, locals_[0], rank, local)
        return locals_[0]
    dim, shards = first.split
    if not shards.covers or shards.ranks != len(blocks):
        raise PlacementError(
            f"{len(blocks)} blocks of {first} do not make the array: they are {shards}; "
            f"pass those of all {shards.ranks} ranks"
        )
    made, held = np.empty(first.shape, locals_[0].dtype), np.full(shards.extent, -1)
    made = np.moveaxis(made, dim, 0)
    for rank, local in enumerate(locals_):
        at, local = indices(shards, rank), np.moveaxis(local, dim, 0)
        twice = held[at] >= 0
        if twice.any():
            _check_same(first, held[at][twice][0], made[at[twice]], rank, local[twice])
        made[at], held[at] = local, rank
    return np.moveaxis(made, 0, dim)


def indices(shards: Shards, rank: int) -> np.ndarray:
    """Every index that ``rank`` holds, in the order in which it holds them."""
    intervals = [np.arange(start, stop) for start, stop in shards.parts[rank]]
    return np.concatenate([np.arange(0), *intervals])


def _check_same(whole: Placed, one: int, a: np.ndarray, other: int, b: np.ndarray) -> None:
    if not np.array_equal(a, b, equal_nan=True):
        raise PlacementError(
            f"ranks {one} and {other} both hold parts of {whole} and differ there by up to "
            f"{np.abs(a - b).max():.3g}: if both were updated, it was by different gradients: "
            f"sum those of what several ranks hold before the step"
        )


def _specs(weights: dict[str, Any], layout: Shardings) -> Shardings:
    missing = [name for name in weights if name not in layout]
    if missing:
        raise PlacementError(
            f"the layout does not say how {', '.join(missing)} is placed; it knows "
            f"{', '.join(layout)}"
        )
    return {name: layout[name] for name in weights}


def _by_columns(name: str, shards: Shards) -> Shardings:
    return {f"w{name}": Sharding(Shard(1), shards), f"b{name}": Sharding(Shard(0), shards)}


def _by_rows(name: str, shards: Shards) -> Shardings:
    return {f"w{name}": Sharding(Shard(0), shards), f"b{name}": Sharding(Replicate())}
