"""A block of an array that says what it is a part of: all of it, a shard, or a partial sum.

           rank 0        rank 1
Replicate  [a b c d]     [a b c d]      the array
Shard(0)   [a b]         [c d]          one behind the other they are the array
Partial    [p q r s]     [t u v w]      their sum is the array

The words of PyTorch's DTensor, on one group of ranks. The gradient of a Replicate that every rank
uses for itself is Partial; that of a Partial is Replicate.

A layout says how every weight is placed; a checkpoint written under one is read under another:

    whole = {name: whole_of(its blocks, of ranks 0 to 3)}
    shard_weights(group of 3, whole, attention_layout(heads, 3))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import Tiled
from tiledask.distributed.ranks.group import Group
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shardings, attention_layout, block_layout, mlp_layout
from tiledask.plan.products.placement import (
    ANY,
    Partial,
    Placement,
    Replicate,
    Shard,
    Shards,
    Tiling,
)
from tiledask.plan.products.regions import slices
from tiledask.tile.backend import array_namespace, to_numpy

__all__ = ["Placed", "attention_layout", "block_layout", "mlp_layout", "partial", "replicate"]
__all__ += ["shard", "shard_weights", "whole_of"]

EVERYWHERE = Replicate()
"""The placement of what every rank has in full."""


@dataclass(frozen=True, slots=True, repr=False)
class Placed(Tiled):
    """This rank's block of an array; made by `replicate`, `partial` and `shard`."""

    local: Any
    """The block, a NumPy or CuPy array."""
    tiling: Tiling
    """Who has which block, on the ranks of a group."""

    @classmethod
    def of(
        cls, local: Any, placement: Placement, shape: Sequence[int], shards: Shards | None = None
    ) -> "Placed":
        """On one group, along one axis; of a Shard ``shards`` say who holds what."""
        if isinstance(placement, Shard):
            placement = Shard(placement.dim, shards)
        return cls(local, Tiling(tuple(shape), (shards.ranks if shards else ANY,), (placement,)))

    @property
    def placement(self) -> Placement:
        return self.placements[0]

    @property
    def shards(self) -> Shards | None:
        """Who holds what of the dimension that is sharded; None if none is."""
        return self.tiling.shards()

    @property
    def dim(self) -> int | None:
        """The dimension that is sharded; None if none is."""
        return self.placement.dim if isinstance(self.placement, Shard) else None

    @property
    def split(self) -> tuple[int, Shards]:
        """(the dimension that is sharded, who holds what of it). PlacementError if none is."""
        dim, shards = self.dim, self.shards
        if dim is None or shards is None:
            raise PlacementError(f"{self} is not sharded; shard(group, x, dim) takes its part")
        return dim, shards

    def __str__(self) -> str:
        return str(self.tiling)

    def __repr__(self) -> str:
        here = "nothing" if self.local is None else list(self.local.shape)
        return f"Placed({self}, {here} here)"


Weights = dict[str, Any]
"""Weights, or their gradients, by name: a Placed each, or None."""


def replicate(x: Any) -> Placed:
    """``x``, which every rank has in full."""
    return Placed.of(x, EVERYWHERE, x.shape)


def partial(x: Any) -> Placed:
    """``x``, this rank's partial sum: the array is the sum over the ranks."""
    return Placed.of(x, Partial(), x.shape)


def shard(group: Group, whole: Any, dim: int, shards: Shards | None = None) -> Placed:
    """This rank's part, copied, of an array that it has in full; evenly, unless ``shards`` says.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> run_threads(lambda rank: shard(rank.group(), np.arange(5), 0).local.tolist(), 2).results
    [[0, 1, 2], [3, 4]]
    """
    dim = dim + whole.ndim if dim < 0 else dim
    tiling = Tiling(tuple(whole.shape), (group.size,), (Shard(dim, shards),))
    return block_of(group, whole, tiling)


def block_of(group: Group, whole: Any, tiling: Tiling) -> Placed:
    """This rank's block, copied, of an array that is here in full."""
    mine = tiling.slice((group.rank,))
    local = array_namespace(whole).empty(mine.local_shape, whole.dtype)
    for box, view in mine.views(local):
        view[...] = whole[slices(box)]
    return Placed(local, tiling)


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

    >>> whole_of([replicate(np.ones(2)), replicate(np.ones(2))]).tolist()
    [1.0, 1.0]
    """
    first, locals_ = blocks[0], [to_numpy(block.local) for block in blocks]
    tiling = first.tiling
    ranks = len(blocks) if ANY in tiling.mesh else tiling.ranks
    if tiling.placements == (Partial(),):
        total: np.ndarray = np.sum(locals_, axis=0)
        return total
    made, holder = np.empty(first.shape, locals_[0].dtype), np.full(first.shape, -1, np.int32)
    for rank, local in enumerate(locals_):
        for box, view in tiling.slice((rank,)).views(local):
            at: Any = (..., *slices(box))
            there, before = made[at], holder[at]
            same = np.where(before < 0, view, there) if before.max(initial=-1) >= 0 else view
            if not np.array_equal(same, view, equal_nan=True):
                raise PlacementError(
                    f"ranks {before[before >= 0].min()} and {rank} both hold this part of {first} "
                    f"and differ there by up to {np.abs(same - view).max():.3g}. Before a step, "
                    f"sum the gradients over all ranks that hold a copy"
                )
            there[...], before[before < 0] = same, rank
    if ranks != len(blocks) or (holder < 0).any():
        raise PlacementError(
            f"{len(blocks)} blocks of {first} do not make the array: they are {first.shards}; pass "
            f"those of all {tiling.ranks} ranks"
        )
    return made
