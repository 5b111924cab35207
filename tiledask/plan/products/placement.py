"""How an array lies on a mesh of ranks: one placement per mesh axis, and who owns which block.

A mesh (2, 2) with (Shard(0), Shard(1)), the words of PyTorch's DTensor:

              mesh axis 1
               0    1             rank (i, j) holds rows   I_i  (array_split of dim 0 over axis 0)
    axis 0  0 [00] [01]                       and columns  J_j  (array_split of dim 1 over axis 1)
            1 [10] [11]

Who holds which indices of one dimension, if that is not even, are Shards:

                    rank 0   rank 1   rank 2   rank 3
even(10, 4)         0 1 2    3 4 5    6 7      8 9
side by side        gate 0 1 2 | up 0 1 2, ...            each rank has its part of both
10 heads over 5     kv 0 1   1 2      3        4          kv head 1 is on ranks 0 and 1
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.intervals import Interval, part_of, split
from tiledask.plan.products.regions import Region, TensorSlice, overlap, within
from tiledask.plan.whole import is_whole

__all__ = ["ANY", "Partial", "Placement", "Replicate", "Shard", "Shards", "Tiling"]
__all__ += ["even_shards", "local_shapes"]


@dataclass(frozen=True)
class Shards:
    """Parts of a dimension: a tuple of intervals for each rank, which may overlap others'."""

    extent: int
    parts: tuple[tuple[Interval, ...], ...]

    ranks: int = field(init=False, compare=False, repr=False)
    counts: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Indices that each rank holds."""
    in_a_row: bool = field(init=False, compare=False, repr=False)
    """Whether the parts, one rank's after the other's, are the dimension."""

    def __post_init__(self) -> None:
        counts = tuple(sum(stop - start for start, stop in part) for part in self.parts)
        flat = [at for part in self.parts for at in part]
        joined = [0, *(stop for _, stop in flat)] == [*(start for start, _ in flat), self.extent]
        vars(self).update(ranks=len(self.parts), counts=counts, in_a_row=joined)

    def scaled(self, width: int) -> "Shards":
        """The same parts, each index being ``width`` indices: heads as columns."""
        parts = (tuple((width * a, width * b) for a, b in part) for part in self.parts)
        return Shards(width * self.extent, tuple(parts))

    def shared(self) -> Iterator[tuple[tuple[int, ...], Interval]]:
        """(ranks, interval) of what more than one rank holds, in rising order."""
        ends = sorted({end for part in self.parts for at in part for end in at})
        runs: list[tuple[tuple[int, ...], Interval]] = []
        for start, stop in pairwise(ends):
            held = (any(a <= start < b for a, b in part) for part in self.parts)
            holders = tuple(rank for rank, holds in enumerate(held) if holds)
            if runs and runs[-1][0] == holders:
                start = runs.pop()[1][0]
            runs.append((holders, (start, stop)))
        return (run for run in runs if len(run[0]) > 1)

    def indices(self, rank: int) -> np.ndarray:
        """Every index that ``rank`` holds, in the order in which it holds them."""
        intervals = [np.arange(start, stop) for start, stop in self.parts[rank]]
        return np.concatenate([np.arange(0), *intervals])

    def __str__(self) -> str:
        parts = (" + ".join(f"{a}..{b}" for a, b in part) or "none" for part in self.parts)
        return f"{self.extent} as {' | '.join(parts)}"


@lru_cache(4096)
def even_shards(extent: int, ranks: int) -> Shards:
    """Parts in a row, as even as numpy.array_split makes them; some empty if ranks > extent."""
    intervals = split(0, extent, ranks)
    return Shards(extent, tuple((at,) if at[0] < at[1] else () for at in intervals))


@dataclass(frozen=True)
class Shard:
    """Split dimension ``dim`` over this mesh axis; the first ``n % parts`` blocks get one more."""

    dim: int
    shards: Shards | None = None
    """Who holds what of it, if that is not even."""

    def __post_init__(self) -> None:
        if not is_whole(self.dim):
            rule = "Shard takes the number of a dimension, 0 for the first"
            raise PlacementError(f"{rule}; got {self.dim!r}")

    def interval(self, whole: Interval, ranks: int, rank: int) -> Interval:
        """What ``rank`` of ``ranks`` has of ``whole``; refused if it is not in one piece."""
        if self.shards is None:
            return part_of(*whole, ranks, rank)
        part = self.shards.parts[rank] or ((0, 0),)
        if len(part) > 1:
            raise PlacementError(
                f"rank {rank} holds {len(part)} pieces of dimension {self.dim}, {self.shards}, and "
                f"one is needed; place the array evenly"
            )
        return part[0]

    def __repr__(self) -> str:
        return f"Shard({self.dim})"


@dataclass(frozen=True)
class Replicate:
    """A full copy on every rank of this mesh axis."""


@dataclass(frozen=True)
class Partial:
    """A part of a sum on every rank of this mesh axis; the array is their sum."""


Placement = Shard | Replicate | Partial

ANY = 0
"""The extent of a mesh's axis of any number of ranks, along which nothing is sharded."""


@dataclass(frozen=True)
class Tiling:
    """An array's shape, the mesh's shape and a placement per mesh axis: who owns what.

    >>> t = Tiling((5, 4), (2, 2), (Shard(0), Shard(1)))
    >>> t.region((0, 1)), t.block_shape((1, 0))
    (((0, 3), (2, 4)), (2, 2))
    """

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]
    ranks: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        sharded = [p.dim for p in self.placements if isinstance(p, Shard)]
        for name, extents, least in (("shape", self.shape, 0), ("mesh", self.mesh, bool(sharded))):
            if not all(is_whole(n, int(least)) for n in extents):
                rule = f"a {name} is a tuple of whole numbers of {least:d} or more"
                raise PlacementError(f"{rule}, got {extents}")
        if len(self.placements) != len(self.mesh):
            raise PlacementError(
                f"a mesh of {len(self.mesh)} axes {self.mesh} needs one placement per axis, got "
                f"{len(self.placements)}: {self.placements}; add Replicate() for an axis that "
                f"does not split the array"
            )
        for ranks, placement in zip(self.mesh, self.placements, strict=True):
            if not isinstance(placement, Placement):
                rule = "a placement is Shard(dim), Replicate() or Partial()"
                raise PlacementError(f"{rule}, got {placement!r}")
            if not isinstance(placement, Shard):
                continue
            dim, shards = placement.dim, placement.shards
            if not 0 <= dim < len(self.shape):
                raise PlacementError(
                    f"Shard({dim}) needs a dimension 0..{len(self.shape) - 1} of an array of shape "
                    f"{self.shape}; choose one of those"
                )
            if shards is None:
                continue
            extent = self.shape[dim]
            if shards == even_shards(extent, ranks):  # what is even is not said
                even = (Shard(dim) if p is placement else p for p in self.placements)
                vars(self).update(placements=tuple(even))
            elif (shards.ranks, shards.extent) != (ranks, extent) or sharded.count(dim) > 1:
                raise PlacementError(
                    f"shards of {shards.extent} indices over {shards.ranks} ranks do not fit "
                    f"dimension {dim} of an array of {list(self.shape)} over {ranks}, if along "
                    f"several axes then evenly; make them by even_shards({extent}, {ranks})"
                )
        vars(self).update(ranks=prod(self.mesh))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tiling, (self.shape, self.mesh, self.placements)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Mesh coordinates of rank 0, 1, ...: row-major."""
        return tuple(product(*map(range, self.mesh)))

    def region(self, at: Sequence[int]) -> Region:
        """What the rank at ``at`` holds; of one dimension, axes split what axes before them did."""
        region = [(0, n) for n in self.shape]
        for size, i, placement in zip(self.mesh, at, self.placements, strict=True):
            if isinstance(placement, Shard):
                region[placement.dim] = placement.interval(region[placement.dim], size, i)
        return tuple(region)

    def slice(self, at: Sequence[int]) -> TensorSlice:
        """What the rank at ``at`` holds, which may be several pieces of a dimension."""
        pieces = {p.dim: p.shards.parts[i] for p, i in zip(self.placements, at, strict=True)
                  if isinstance(p, Shard) and p.shards}  # fmt: skip
        even = [Replicate() if isinstance(p, Shard) and p.shards else p for p in self.placements]
        for dim, (start, stop) in enumerate(self.replaced(*even).region(at)):
            pieces.setdefault(dim, ((start, stop),) if start < stop else ())
        return TensorSlice(self.shape, tuple(pieces[dim] for dim in range(len(self.shape))))

    def shards(self, axis: int = 0) -> Shards | None:
        """Who holds what of the dimension that is cut along an axis; None if none is."""
        placement = self.placements[axis]
        if not isinstance(placement, Shard):
            return None
        return placement.shards or even_shards(self.shape[placement.dim], self.mesh[axis])

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """What rank 0, 1, ... holds."""
        return tuple(map(self.region, self.coordinates))

    def block_shape(self, at: Sequence[int]) -> tuple[int, ...]:
        return self.slice(at).local_shape

    def owned(self, rank: int) -> np.ndarray:
        """Which numbers of ``rank``'s block no lower rank holds as well."""
        mine, *lower = (self.slice(self.coordinates[each]) for each in (rank, *range(rank)))
        owned = np.ones(mine.local_shape, np.bool_)
        for box, view in mine.views(owned):
            for other in (each for piece in lower for each in piece.boxes):
                if (both := overlap(box, other)) is not None:
                    view[within(both, box)] = False
        return owned

    def replaced(self, *placements: Placement) -> "Tiling":
        """The same array and mesh under other placements."""
        return Tiling(self.shape, self.mesh, tuple(placements))

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.placements))} of {list(self.shape)}"


def local_shapes(tilings: Mapping[str, Tiling], rank: int) -> dict[str, tuple[int, ...]]:
    """By name, the shapes of what a rank of a group holds of arrays."""
    return {name: tiling.block_shape((rank,)) for name, tiling in tilings.items()}
