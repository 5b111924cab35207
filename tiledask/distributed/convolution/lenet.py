"""LeNet trained step after step on the ranks of any split: every split has the same losses.

    >>> import tiledask as td
    >>> digits, _ = td.load_images("digits").split()
    >>> alone, split = (train_lenet(digits, ways, steps=2, batch=6, dtype="float64")
    ...                 for ways in ({}, {"data parallel": 2, "by output units": 2}))
    >>> bool(abs(alone.losses - split.losses).max() < 1e-12)
    True

layerwise        each layer's output units on all ranks: gathered, and summed on the way back
network          consecutive layers on each rank: activations go on, gradients come back
data parallel    all layers on every rank, and some of the images: gradients are added up once
space            all layers on every rank, and some rows of each image

It is a model of a training as a GPT is, whose units are the layers. A step's program is that of
plan/program/making/lenet.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.training.config import RankConfig, recipe_for
from tiledask.distributed.training.run import Trained, run_training
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.intervals import split as cut
from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.making import lenet as making
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.whole import whole_number
from tiledask.tile import layers as L
from tiledask.tile.datasets import Images
from tiledask.tile.optimizers import Adam, Rule

__all__ = ["LeNet", "LeNetConfig", "train_lenet"]


@dataclass(frozen=True)
class LeNet:
    """The LeNet of Dive into Deep Learning's chapter on several GPUs, in units of a layer."""

    split: making.Split
    units: ClassVar[tuple[str, ...]] = making.NAMES
    size: ClassVar[int] = making.PARAMETERS
    gated: ClassVar[bool] = False

    def parameters(self, unit: str) -> dict[str, L.Parameter]:
        """Those of a layer on one device, by name."""
        inputs, outputs, *window = making.SHAPES[unit]["w"]
        if window:  # of a convolution outputs come first
            rows, columns = window
            return L.conv2d_parameters(outputs, inputs, (rows, columns))
        return L.matrix("", inputs, outputs, bias=True)

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        return self.split.tilings(unit)


@dataclass(frozen=True, kw_only=True)
class LeNetConfig(RankConfig):
    """Of a LeNet."""

    batch: int
    axes: ClassVar[tuple[int, int, int]] = (DATA, making.PARTS, making.STAGES)
    loss_slices: ClassVar[slice] = slice(None)

    def units(self, stage: int) -> tuple[str, ...]:
        """The layers of a stage."""
        layers = making.stages_of(self.model.split.stages)[stage]
        return tuple(making.NAMES[i] for i in layers)

    def draw(self, number: int, copy: int, microbatch: int) -> tuple[np.ndarray, np.ndarray]:
        """(images, classes) of a copy's rows of a step's batch."""
        rows = slice(*cut(0, self.batch, self.model.split.copies)[copy])
        images: Images = self.data
        return images.batch(self.seed, number, self.batch, rows, self.dtype)

    def __str__(self) -> str:
        return str(self.model.split)


@bounded
def train_lenet(
    data: Images,
    ways: Mapping[str, int],
    mesh: Mesh | None = None,
    *,
    steps: int,
    batch: int,
    rule: Rule | None = None,
    dtype: str = "float32",
    seed: int = 0,
    timeout: float = 300.0,
) -> Trained:
    """Losses, weights and records of d2l's LeNet, trained on the ranks of a split.

    data
        Images of 28 x 28 of up to 10 classes, as `tiledask.load_images` loads them.
    ways
        How many ranks each way: "data parallel", "network", and "by output units" or "space".
        They multiply; {} is a single device.
    mesh
        Of as many workers, in any shape; or, without one, threads of this process.
    batch
        Images of a step, whatever the split. None of the ways must divide what it splits: some
        ranks get one more, or none.
    rule
        The optimizer; default: Adam().
    dtype
        "float32" or "float64", of everything.

    With equal seeds the result is that of a single device, whatever the split, but for the order
    in which sums are rounded. When a worker dies, the training is done again from its beginning, in
    its time. Raises ConfigError or PlacementError for what does not go together, and what
    `run_ranks` raises.
    """
    if isinstance(ways, str):
        raise ConfigError(f"ways say how many ranks each has: {{{ways!r}: 4}}, got {ways!r} alone")
    split, most, side = making.Split.of(ways), making.UNITS[making.NAMES[-1]], making.SIDE
    if data.pixels.shape[1:] != (side, side) or data.classes > most:
        raise ConfigError(
            f"LeNet takes images of {side} x {side} and up to {most} classes, got {data!r}; "
            f'td.load_images("digits") has such'
        )
    if dtype not in ("float32", "float64"):
        raise ConfigError(f"dtype is 'float32' or 'float64', got {dtype!r}")
    if mesh is not None and mesh.ranks != split.ranks:
        raise PlacementError(
            f"{split} takes {split.ranks} ranks, and the mesh has {mesh.ranks}: use "
            f"td.Mesh(cluster, ({split.ranks},)), or other ways"
        )
    rule, itemsize = rule or Adam(), np.dtype(dtype).itemsize
    config = LeNetConfig(
        model=LeNet(split),
        shape=split.shape,
        recipe=recipe_for(rule, dtype),
        rule=rule,
        dtype=dtype,
        data=data,
        steps=whole_number("steps", steps, 0),
        seed=seed,
        batch=whole_number("batch", batch, 1, of="images"),
    )
    program = making.lenet_program(split, config.batch, config.recipe, itemsize).check()
    if mesh is not None:
        mesh = Mesh(mesh.cluster, split.shape, slots=mesh.at)
    return run_training(config, program, None, mesh, seconds_of(timeout))
