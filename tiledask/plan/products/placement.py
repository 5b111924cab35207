"""How an array lies on a mesh of ranks: one placement per mesh axis, and who owns which block.

A mesh (2, 2) with (Shard(0), Shard(1)), the words of PyTorch's DTensor:

              mesh axis 1
               0    1             rank (i, j) holds rows   I_i  (array_split of dim 0 over axis 0)
    axis 0  0 [00] [01]                       and columns  J_j  (array_split of dim 1 over axis 1)
            1 [10] [11]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from tiledask.errors import PlacementError
from tiledask.plan.products.regions import Region
from tiledask.plan.whole import is_whole

__all__ = [
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "Tiling",
    "fixed_axes",
    "split",
]


@dataclass(frozen=True)
class Shard:
    """Split dimension ``dim`` over this mesh axis; the first ``n % parts`` blocks get one more."""

    dim: int

    def __post_init__(self) -> None:
        if not is_whole(self.dim):
            raise PlacementError(
                f"Shard takes the number of a dimension, 0 for the first; got {self.dim!r}"
            )

    def __repr__(self) -> str:
        return f"Shard({self.dim})"


@dataclass(frozen=True)
class Replicate:
    """A full copy on every rank of this mesh axis."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True)
class Partial:
    """A partial sum on every rank of this mesh axis; the array is their sum."""

    def __repr__(self) -> str:
        return "Partial()"


Placement = Shard | Replicate | Partial


def split(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """``parts`` consecutive intervals of start..stop, as even as numpy.array_split makes them.

    >>> split(0, 10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    return [_part(start, stop, parts, i) for i in range(parts)]


def _part(start: int, stop: int, parts: int, i: int) -> tuple[int, int]:
    """Interval ``i`` of ``split``."""
    size, extra = divmod(stop - start, parts)
    i = range(parts)[i]  # IndexError, as of the list, for one that is not there
    first = start + i * size + (i if i < extra else extra)
    return first, first + size + (i < extra)


@dataclass(frozen=True)
class Tiling:
    """An array's shape, the mesh's shape and a placement per mesh axis: who owns what.

    >>> t = Tiling((5, 4), (2, 2), (Shard(0), Shard(1)))
    >>> t.region((0, 1)), t.block_shape((1, 0)), t.rank((1, 1))
    (((0, 3), (2, 4)), (2, 2), 3)
    """

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        for name, extents, least in (("shape", self.shape, 0), ("mesh", self.mesh, 1)):
            if not all(is_whole(n, least) for n in extents):
                raise PlacementError(
                    f"a {name} is a tuple of whole numbers of {least} or more, got {extents}"
                )
        if len(self.placements) != len(self.mesh):
            raise PlacementError(
                f"a mesh of {len(self.mesh)} axes {self.mesh} needs one placement per axis, got "
                f"{len(self.placements)}: {self.placements}; add Replicate() for an axis that "
                f"does not split the array"
            )
        for placement in self.placements:
            if not isinstance(placement, Shard | Replicate | Partial):
                raise PlacementError(
                    f"a placement is Shard(dim), Replicate() or Partial(), got {placement!r}"
                )
            if isinstance(placement, Shard) and not 0 <= placement.dim < len(self.shape):
                raise PlacementError(
                    f"Shard({placement.dim}) needs a dimension 0..{len(self.shape) - 1} of an "
                    f"array of shape {self.shape}; choose one of those"
                )

    def __reduce__(self) -> tuple[type["Tiling"], tuple[tuple[Any, ...], ...]]:
        """To another process go the fields alone, not the regions of all ranks."""
        return Tiling, (self.shape, self.mesh, self.placements)

    @property
    def ranks(self) -> int:
        return prod(self.mesh)

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Mesh coordinates of rank 0, 1, ...: row-major."""
        return product(*map(range, self.mesh))

    def rank(self, at: Sequence[int]) -> int:
        """Rank of mesh coordinates ``at``."""
        rank = 0
        for size, i in zip(self.mesh, at, strict=True):
            rank = rank * size + i
        return rank

    def at(self, rank: int) -> tuple[int, ...]:
        """Mesh coordinates of a rank."""
        return self._at[rank]

    @cached_property
    def _at(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.coordinates())

    def region(self, at: Sequence[int]) -> Region:
        """What the rank at ``at`` holds: (start, stop) per dimension.

        Two axes that split the same dimension split it one inside the other, in mesh order.
        """
        region = [(0, n) for n in self.shape]
        for size, i, placement in zip(self.mesh, at, self.placements, strict=True):
            if isinstance(placement, Shard):
                region[placement.dim] = _part(*region[placement.dim], size, i)
        return tuple(region)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """What rank 0, 1, ... holds."""
        return tuple(map(self.region, self.coordinates()))

    def block_shape(self, at: Sequence[int]) -> tuple[int, ...]:
        """Shape of the block at ``at``."""
        return tuple(stop - start for start, stop in self.region(at))

    def replaced(self, *placements: Placement) -> "Tiling":
        """The same array and mesh under other placements."""
        return Tiling(self.shape, self.mesh, tuple(placements))


def fixed_axes(tiling: Tiling, keep: Sequence[int] = ()) -> tuple[int, ...]:
    """The mesh's axes along which a rank asks nobody but those with its own coordinate: what is
    replicated is there, and in ``keep`` it goes on with its own partial sum."""
    return tuple(
        axis
        for axis, placement in enumerate(tiling.placements)
        if placement == Replicate() or (placement == Partial() and axis in keep)
    )
