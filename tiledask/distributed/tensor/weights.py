"""Weights sharded over ranks, put together again, and sharded over another number of ranks.

A layout says how every weight is placed; a checkpoint written under one is read under another:

    whole = {name: whole_of(its blocks, of ranks 0 to 3)}
    shard_weights(group of 3, whole, attention_layout(heads, 3))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import Placed, block_of
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shardings, attention_layout, block_layout, mlp_layout
from tiledask.plan.products.placement import ANY, Partial, Tiling
from tiledask.plan.products.regions import slices
from tiledask.tile.backend import to_numpy

__all__ = [
    "attention_layout",
    "block_layout",
    "mlp_layout",
    "shard_weights",
    "whole_of",
]


def shard_weights(group: Group, weights: dict[str, Any], layout: Shardings) -> dict[str, Placed]:
    """This rank's blocks, copied, of weights that it has in full."""
    missing = [name for name in weights if name not in layout]
    if missing:
        raise PlacementError(
            f"the layout does not say how {', '.join(missing)} is placed; it knows "
            f"{', '.join(layout)}"
        )
    return {
        name: block_of(group, w, Tiling(tuple(w.shape), (group.size,), (layout[name],)))
        for name, w in weights.items()
    }


def part_of(tiling: Tiling, rank: int) -> Sequence[Any] | None:
    """Which of an array's numbers a rank of a group has, as an index; None for all of them."""
    dim, shards = Placed(None, tiling).dim, tiling.shards()
    if dim is None or shards is None:
        return None
    axes: list[Any] = [slice(None)] * len(tiling.shape)
    axes[dim] = shards.indices(rank)
    return axes


def whole_of(blocks: Sequence[Placed]) -> np.ndarray:
    """The array, in host memory, of which rank 0, 1, ... have these blocks.

    Raises PlacementError if ranks differ in what they both hold.

    >>> from tiledask.distributed.tensor.placed import replicate
    >>> whole_of([replicate(np.ones(2)), replicate(np.ones(2))]).tolist()
    [1.0, 1.0]
    """
    first, locals_ = blocks[0], [to_numpy(block.local) for block in blocks]
    tiling = first.tiling
    if tiling.placements == (Partial(),):
        total: np.ndarray = np.sum(locals_, axis=0)
        return total
    made, known = np.empty(first.shape, locals_[0].dtype), np.zeros(first.shape, bool)
    for rank, local in enumerate(locals_):
        for box, view in tiling.slice((rank,)).views(local):
            there, before = made[slices(box)], known[slices(box)]
            same = np.where(before, there, view) if before.any() else view
            if not np.array_equal(same, view, equal_nan=True):
                raise PlacementError(
                    f"rank {rank} and one before it both hold this part of {first} and differ "
                    f"there by up to {np.abs(same - view).max():.3g}. Before a step, sum the "
                    f"gradients over all ranks that hold a copy"
                )
            there[...], before[...] = same, True
    if not known.all() or len(blocks) != (tiling.ranks if ANY not in tiling.mesh else len(blocks)):
        raise PlacementError(
            f"{len(blocks)} blocks of {first} do not make the array: they are {first.shards}; pass "
            f"those of all {tiling.ranks} ranks"
        )
    return made
