"""Over how many ranks LeNet is split each way, and what of it each of them has.

                 a rank has                  so its gradients
data parallel    some of the images          are partial sums
network          some consecutive layers     are there
layerwise        some units of each layer    are there
space            some rows of each image     are partial sums

The ways multiply: 2 data parallel x 2 network x 2 layerwise are 8 ranks. Rank (copy, stage, part)
is number (copy * stages + stage) * parts + part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from math import isqrt
from typing import NamedTuple

import numpy as np

from tiledask.distributed.convolution.lenet import BOUNDARIES, LENET, SHAPES, SIDE
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.rank import Rank
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.products.placement import split
from tiledask.plan.whole import whole_number

__all__ = ["WAYS", "RankGroups", "Split", "rows_of", "stages_of"]

WAYS = ("data parallel", "network", "layerwise", "space")


@dataclass(frozen=True)
class Split:
    """How many ranks there are each way; `Split.of` makes it from names."""

    copies: int = 1
    """Copies of the network, each for some of the images."""
    stages: int = 1
    """Stages of a copy, each with some of the layers."""
    parts: int = 1
    """Parts of a stage."""
    in_space: bool = False
    """Whether a part has some rows of the images; otherwise some units of the layers."""

    @classmethod
    def of(cls, ways: Mapping[str, int] | str, ranks: int = 1) -> "Split":
        """The Split with as many ranks each way, or of all ``ranks`` one way.

        >>> Split.of({"data parallel": 2, "layerwise": 4})
        Split(copies=2, stages=1, parts=4, in_space=False)
        """
        ways = {ways: ranks} if isinstance(ways, str) else dict(ways)
        for name, n in ways.items():
            if name not in WAYS:
                raise ConfigError(f"LeNet is split by {', '.join(map(repr, WAYS))}, got {name!r}")
            whole_number(name, n, 1, of="ranks")
        if {"layerwise", "space"} <= set(ways):
            raise ConfigError(
                f"a layer is split by its units or in space, got layerwise={ways['layerwise']} and "
                f"space={ways['space']}; keep one, and multiply the other into 'data parallel'"
            )
        inner = "space" if "space" in ways else "layerwise"
        copies, stages, parts = (int(ways.get(n, 1)) for n in (*WAYS[:2], inner))
        made = cls(copies, stages, parts, in_space=inner == "space")
        stages_of(made.stages)
        return made

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.copies, self.stages, self.parts

    @property
    def ranks(self) -> int:
        return self.copies * self.stages * self.parts

    def at(self, rank: int) -> tuple[int, int, int]:
        """(copy, stage, part) of a rank."""
        copy, stage, part = map(int, np.unravel_index(rank, self.shape))
        return copy, stage, part

    def images(self, batch: int, copy: int) -> slice:
        """The images of a batch that a copy has; there may be none."""
        return slice(*split(0, batch, self.copies)[copy])

    def layers(self, stage: int) -> tuple[int, ...]:
        """Numbers of a stage's layers."""
        return stages_of(self.stages)[stage]

    def shares(self, layer: int, images: int) -> tuple[int, ...]:
        """Numbers of a layer's output that each part has, of ``images`` images."""
        boundary = BOUNDARIES[layer]
        if not self.in_space:
            return tuple(images * boundary.each * n for n in even(boundary.units, self.parts))
        if boundary.each == 1:
            return tuple(n * boundary.units for n in even(images, self.parts))
        rows = rows_of(self.parts)[f"{boundary.name}/pool"].out
        return tuple(images * boundary.units * n * isqrt(boundary.each) for n in rows)

    def __str__(self) -> str:
        inner = "space" if self.in_space else "layerwise"
        names = zip(self.shape, (*WAYS[:2], inner), strict=True)
        return " x ".join(f"{name} {n}" for n, name in names if n > 1) or "a single device"


class RankGroups(NamedTuple):
    """The groups of ranks that one rank works with, and which copy it is of."""

    split: Split
    copy: int
    stages: Group
    """This copy's ranks with the same part of each stage."""
    parts: Group
    """The parts of this stage of this copy."""
    adding: Group
    """The ranks that have partial sums of the same gradients."""

    @classmethod
    def of(cls, rank: Rank, split: Split) -> "RankGroups":
        """The groups of ``rank``; made once, as groups count their calls."""
        if rank.ranks != split.ranks:
            raise PlacementError(
                f"{split} takes {split.ranks} ranks, and the mesh has {rank.ranks}; use a mesh of "
                f"{split.ranks}"
            )
        numbers = np.arange(split.ranks).reshape(split.shape)
        copy, stage, part = split.at(rank.index)
        made: dict[tuple[int, ...], Group] = {}

        def group(members: np.ndarray) -> Group:
            key = tuple(map(int, members.ravel()))
            return made.setdefault(key, rank.group().among(key))

        adding = numbers[:, stage] if split.in_space else numbers[:, stage, part]
        same = group(numbers[copy, :, part]), group(numbers[copy, stage])
        return cls(split, copy, *same, group(adding))


@cache
def rows_of(parts: int) -> dict[str, RowSplit]:
    """Who makes which rows in each layer that has any, by its name; pooling as "conv1/pool".

    >>> rows_of(4)["conv1"].out, rows_of(4)["conv2/pool"].out
    ((6, 7, 7, 6), (1, 2, 1, 0))
    """
    rows, found = even(SIDE, parts), {}
    for layer in LENET[:2]:
        found[layer.name] = split_rows(rows, SHAPES[layer.name][2])
        found[f"{layer.name}/pool"] = split_rows(found[layer.name].out, 2, 2)
        rows = found[f"{layer.name}/pool"].out
    return found


def stages_of(ranks: int) -> list[tuple[int, ...]]:
    """Which layers each stage has. Raises PlacementError for more stages than layers.

    >>> stages_of(4), stages_of(3)
    ([(0,), (1,), (2,), (3,)], [(0, 1), (2,), (3,)])
    """
    if ranks > len(LENET):
        raise PlacementError(
            f"a stage has a layer or more, and LeNet has {len(LENET)}: got {ranks} ranks; use "
            f"{len(LENET)} or fewer"
        )
    return list(map(tuple, starmap(range, split(0, len(LENET), ranks))))
