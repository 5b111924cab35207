"""Weights sharded over ranks, put together again, and sharded over another number of ranks.

A layout says how every weight is placed; a checkpoint written under one is read under another:

    whole = put_together(one dict of Placed for each of 4 ranks)
    shard_weights(group of 3, whole, attention_layout(heads, 3))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, block_of
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import (
    Shardings,
    attention_layout,
    block_layout,
    embedding_layout,
    mlp_layout,
)
from tiledask.plan.products.placement import ANY, Partial, Tiling
from tiledask.plan.products.regions import Region, overlap, slices
from tiledask.tile import layers as tile
from tiledask.tile.backend import to_numpy

__all__ = [
    "attention_layout",
    "block_layout",
    "draw_sharded",
    "embedding_layout",
    "mlp_layout",
    "put_together",
    "shard_weights",
    "whole_of",
]


def shard_weights(group: Group, weights: dict[str, Any], layout: Shardings) -> dict[str, Placed]:
    """This rank's blocks, copied, of weights that it has in full."""
    tilings = _tilings(group, weights, layout)
    return {name: block_of(group, w, tilings[name]) for name, w in weights.items()}


def draw_sharded(
    group: Group,
    parameters: dict[str, tile.Parameter],
    layout: Shardings,
    seed: int,
    prefix: str = "",
    dtype: Any = "float32",
    xp: str = "numpy",
) -> dict[str, Placed]:
    """This rank's blocks of newly drawn weights, and no others: those that one device would draw."""  # noqa: E501
    tilings = _tilings(group, parameters, layout)
    parts = {name: part_of(tiling, group.rank) for name, tiling in tilings.items()}
    drawn = tile.initialise(parameters, seed, parts, prefix, dtype, xp)
    return {name: Placed(w, tilings[name]) for name, w in drawn.items()}


def part_of(tiling: Tiling, rank: int) -> Sequence[Any] | None:
    """Which of an array's numbers a rank of a group has, as an index; None for all of them."""
    dim, shards = Placed(None, tiling).dim, tiling.shards()
    if dim is None or shards is None:
        return None
    axes: list[Any] = [slice(None)] * len(tiling.shape)
    axes[dim] = shards.indices(rank)
    return axes


def put_together(by_rank: Sequence[dict[str, Placed]]) -> dict[str, np.ndarray]:
    """Weights in full, in host memory, from those of rank 0, 1, ...: what a checkpoint holds.

    Raises PlacementError if ranks differ in what they both hold.
    """
    return {name: whole_of([weights[name] for weights in by_rank]) for name in by_rank[0]}


def whole_of(blocks: Sequence[Placed]) -> np.ndarray:
    """The array, in host memory, of which rank 0, 1, ... have these blocks.

    >>> from tiledask.distributed.tensor.placed import replicate
    >>> whole_of([replicate(np.ones(2)), replicate(np.ones(2))]).tolist()
    [1.0, 1.0]
    """
    first, locals_ = blocks[0], [to_numpy(block.local) for block in blocks]
    tiling = first.tiling
    if tiling.placements == (Partial(),):
        total: np.ndarray = np.sum(locals_, axis=0)
        return total
    ranks, shards = len(blocks) if ANY in tiling.mesh else tiling.ranks, first.shards
    held = [shards.indices(rank) for rank in range(shards.ranks)] if shards else []
    if ranks != len(blocks) or (shards and len(np.unique(np.concatenate(held))) < shards.extent):
        raise PlacementError(
            f"{len(blocks)} blocks of {first} do not make the array: they are {shards}; pass those "
            f"of all {tiling.ranks} ranks"
        )
    made, views = np.empty(first.shape, locals_[0].dtype), list[tuple[int, Region, Any]]()
    for rank, local in enumerate(locals_):
        views += [(rank, box, view) for box, view in tiling.slice((rank,)).views(local)]
    for _, box, view in reversed(views):  # what several hold is then the first one's
        made[slices(box)] = view
    for rank, box, view in views:
        there = made[slices(box)]
        if not (np.array_equal(there, view) or np.array_equal(there, view, equal_nan=True)):
            one = next(other for other, mine, _ in views if overlap(box, mine))
            raise PlacementError(
                f"ranks {one} and {rank} both hold this part of {first} and differ there by up to "
                f"{np.abs(there - view).max():.3g}. Before a step, sum the gradients over all "
                f"ranks that hold a copy"
            )
    return made


def _tilings(group: Group, weights: dict[str, Any], layout: Shardings) -> dict[str, Tiling]:
    missing = [name for name in weights if name not in layout]
    if missing:
        raise PlacementError(
            f"the layout does not say how {', '.join(missing)} is placed; it knows "
            f"{', '.join(layout)}"
        )
    return {
        name: Tiling(tuple(w.shape), (group.size,), (layout[name],)) for name, w in weights.items()
    }
