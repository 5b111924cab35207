"""d2l's LeNet by its shapes, over how many ranks it is split each way, and what each of them has.

images [n, 1, 28, 28]
conv1  w 20x1x3x3    26x26   relu   mean of 2x2   ->   20 channels of 13x13
conv2  w 50x20x5x5   9x9     relu   mean of 2x2   ->   50 channels of 4x4
fc1    w 800x128             relu                 ->  128
fc2    w 128x10                                   ->   10 classes

                   a rank has                  so its gradients
data parallel      some of the images          are partial sums
network            some consecutive layers     are there
by output units    some units of each layer    are there
space              some rows of each image     are partial sums

The ways multiply: 2 data parallel x 2 network x 2 by output units are 8 ranks. Rank (copy, stage,
part) is number (copy * stages + stage) * parts + part.

Zhang et al., Dive into Deep Learning, "Training on Multiple GPUs": the shapes of its `lenet`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from math import prod

import numpy as np

from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.products.placement import Replicate, Shard, Tiling, split
from tiledask.plan.program.count import PlannedCall
from tiledask.plan.whole import whole_number

__all__ = [
    "DENSE",
    "EACH",
    "NAMES",
    "OUT",
    "PARAMETERS",
    "SHAPES",
    "SIDE",
    "UNITS",
    "WAYS",
    "Need",
    "Split",
    "flops",
    "rows_of",
    "stages_of",
    "unit_dim",
]


WAYS = ("data parallel", "network", "by output units", "space")
SIDE = 28
"""Rows and columns of an image."""
DENSE = 2
"""Number of the first layer without rows."""
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "conv1": {"w": (20, 1, 3, 3), "b": (20,)},
    "conv2": {"w": (50, 20, 5, 5), "b": (50,)},
    "fc1": {"w": (800, 128), "b": (128,)},
    "fc2": {"w": (128, 10), "b": (10,)},
}
"""Of its weights."""
NAMES = tuple(SHAPES)
PARAMETERS = sum(prod(shape) for shapes in SHAPES.values() for shape in shapes.values())
OUT = {"conv1": (26, 26), "conv2": (9, 9), "fc1": (1, 1), "fc2": (1, 1)}
"""Rows and columns of what a layer's products make, before pooling."""
UNITS = {name: shapes["b"][0] for name, shapes in SHAPES.items()}
"""Output channels, or outputs of a linear layer: what is sharded of what it gives the next one."""
EACH = {"conv1": 13 * 13, "conv2": 4 * 4, "fc1": 1, "fc2": 1}
"""Numbers of a unit, behind the pooling."""


def unit_dim(shape: tuple[int, ...]) -> int:
    """Along which output units are: the rows of a convolution's w and of b, a matrix's columns."""
    return 1 if len(shape) == 2 else 0


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

        >>> Split.of({"data parallel": 2, "by output units": 4})
        Split(copies=2, stages=1, parts=4, in_space=False)
        """
        ways = {ways: ranks} if isinstance(ways, str) else dict(ways)
        if "layerwise" in ways:  # d2l's word, which elsewhere means whole layers on a device
            ways = {"by output units": ways.pop("layerwise")} | ways
        for name, n in ways.items():
            if name not in WAYS:
                raise ConfigError(f"LeNet is split by {', '.join(map(repr, WAYS))}, got {name!r}")
            whole_number(name, n, 1, of="ranks")
        if {"by output units", "space"} <= set(ways):
            raise ConfigError(
                f"a layer is split by its units or in space, got {ways}; keep one, and multiply "
                f"the other into 'data parallel'"
            )
        inner = "space" if "space" in ways else "by output units"
        copies, stages, parts = (int(ways.get(n, 1)) for n in (*WAYS[:2], inner))
        stages_of(stages)
        return cls(copies, stages, parts, in_space=inner == "space")

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

    def tilings(self, name: str) -> dict[str, Tiling]:
        """How the weights of a layer lie on the parts of its stage."""
        found = {}
        for kind, shape in SHAPES[name].items():
            placed = Replicate() if self.in_space else Shard(unit_dim(shape))
            found[kind] = Tiling(shape, (self.parts,), (placed,))
        return found

    def shapes(self, name: str, part: int) -> dict[str, tuple[int, ...]]:
        """Of what a part has of a layer's weights."""
        return {k: tiling.block_shape((part,)) for k, tiling in self.tilings(name).items()}

    def __str__(self) -> str:
        inner = "space" if self.in_space else "by output units"
        names = zip(self.shape, (*WAYS[:2], inner), strict=True)
        return " x ".join(f"{name} {n}" for n, name in names if n > 1) or "a single device"


@dataclass(frozen=True)
class Need:
    """What a split needs of its ranks in one training step."""

    calls: tuple[tuple[PlannedCall, ...], ...]
    """By rank: its collectives and messages, in order."""
    parameters: tuple[int, ...]
    """That each rank holds."""
    flops: tuple[int, ...]
    """Of each rank's products."""

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        return tuple(sum(call.sent for call in mine) for mine in self.calls)

    @property
    def messages(self) -> int:
        """That all ranks send."""
        return sum(call.messages for mine in self.calls for call in mine)

    @property
    def barriers(self) -> int:
        """How often a rank waits for all of a group: the most of any rank."""
        return max(sum(call.kind not in ("send", "recv") for call in mine) for mine in self.calls)

    @property
    def transfers(self) -> int:
        """Messages from one rank to another that no other waits for."""
        return sum(call.kind == "send" for mine in self.calls for call in mine)

    @property
    def imbalance(self) -> float:
        """Operations of the busiest rank over their mean: 1 is perfect."""
        return max(self.flops) * len(self.flops) / sum(self.flops)


@cache
def rows_of(parts: int) -> dict[str, RowSplit]:
    """Who makes which rows in each layer that has any, by its name; pooling as "conv1/pool".

    >>> rows_of(4)["conv1"].out, rows_of(4)["conv2/pool"].out
    ((6, 7, 7, 6), (1, 2, 1, 0))
    """
    rows, found = even(SIDE, parts), {}
    for name in NAMES[:DENSE]:
        found[name] = split_rows(rows, SHAPES[name]["w"][2])
        found[f"{name}/pool"] = split_rows(found[name].out, 2, 2)
        rows = found[f"{name}/pool"].out
    return found


def stages_of(ranks: int) -> list[tuple[int, ...]]:
    """Which layers each stage has. Raises PlacementError for more stages than layers.

    >>> stages_of(4), stages_of(3)
    ([(0,), (1,), (2,), (3,)], [(0, 1), (2,), (3,)])
    """
    if ranks > len(NAMES):
        raise PlacementError(
            f"a stage has a layer or more, and LeNet has {len(NAMES)}: got {ranks} ranks; use "
            f"{len(NAMES)} or fewer"
        )
    return list(map(tuple, starmap(range, split(0, len(NAMES), ranks))))


def flops(name: str, images: int, units: int | None = None) -> int:
    """Floating-point operations of a layer's products, forward and backward.

    2 for each weight at each place: forward, again for dw, and again for dx, which the first layer
    does not need. ``units``: of the output channels or columns, default all.

    >>> flops("fc2", 256)
    1966080
    """
    inputs = prod(SHAPES[name]["w"]) // UNITS[name]
    once = 2 * images * prod(OUT[name]) * inputs * (UNITS[name] if units is None else units)
    return once * (2 if name == "conv1" else 3)
