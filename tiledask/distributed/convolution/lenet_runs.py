"""One step of d2l's LeNet on the ranks of a program: d2l's three splits by name, and any other.

layerwise        each layer's output units on all ranks: gathered, and summed on the way back
network          consecutive layers on each rank: activations go on, gradients come back
data parallel    all layers on every rank, and some of the images: gradients are added up once
space            all layers on every rank, and some rows of each image

Each is a step of a `LeNetTrainer` on weights and images that every rank has in full; its program
is that of plan/program/making/lenet.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from tiledask.distributed.convolution.lenet import LENET, Weights
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.tensor.placed import block_of
from tiledask.distributed.training.trainer import Trainer
from tiledask.distributed.training.validate import recipe_for
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.lenet import NAMES, Split, unit_dim
from tiledask.plan.program.making.lenet import (
    PARTS,
    STAGES,
    LeNetTerms,
    lenet_program,
)
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.program.ops import Block, Op
from tiledask.plan.program.program import Program
from tiledask.tile import layers as L
from tiledask.tile.backend import to_numpy
from tiledask.tile.optimizers import SGD, Rule

__all__ = [
    "PARTITIONINGS",
    "LeNetJob",
    "LeNetTrainer",
    "StepShare",
    "put_together",
    "run_step",
    "whole_weights",
]


@dataclass(frozen=True)
class LeNetUnits:
    """The layers of a split as units of a `Trainer`."""

    split: Split
    gated: ClassVar[bool] = False

    def parameters(self, unit: str) -> dict[str, L.Parameter]:
        return dict(LENET[NAMES.index(unit)].parameters)

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        return self.split.tilings(unit)

    def shapes(self, unit: str, ranks: int, rank: int) -> dict[str, tuple[int, ...]]:
        return self.split.shapes(unit, rank)


@dataclass(frozen=True, kw_only=True)
class LeNetJob(LeNetTerms):
    """What every rank is told."""

    rule: Rule
    dtype: str
    seed: int = 0
    zero: ClassVar[int] = 0
    scale: ClassVar[None] = None
    clip: ClassVar[None] = None

    @classmethod
    def of(cls, split: Split, batch: int, rule: Rule, dtype: str, **told: Any) -> Self:
        """The job of a step, or of many."""
        terms = split, batch, recipe_for(rule, dtype), np.dtype(dtype).itemsize
        return cls(*terms, rule=rule, dtype=dtype, **told)

    @property
    def program(self) -> Program:
        """Of a step."""
        return lenet_program(LeNetTerms(self.split, self.batch, self.recipe, self.itemsize))

    @property
    def model(self) -> LeNetUnits:
        return LeNetUnits(self.split)

    def units(self, stage: int) -> tuple[str, ...]:
        """The layers of a stage."""
        return tuple(NAMES[i] for i in self.split.layers(stage))


class LeNetTrainer(Trainer):
    """One rank's part of LeNet, with newly drawn weights."""

    def __init__(self, rank: Rank, job: LeNetJob) -> None:
        if rank.ranks != job.split.ranks:
            raise PlacementError(
                f"{job.split} takes {job.split.ranks} ranks, and the mesh has {rank.ranks}; use a "
                f"mesh of {job.split.ranks}"
            )
        self.flops = 0
        """Of the products of the last step, counted from the arrays that are multiplied."""
        super().__init__(rank, job, job.program, axes=(DATA, PARTS, STAGES))

    def step(self, batch: Any) -> float:
        self.flops = 0
        return super().step(batch)

    def unpacked(self, flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Arrays by layer and name, in host memory, from a flat one for each layer."""
        return {
            unit: {n: to_numpy(a) for n, a in self.packings[unit].unpack(each).items()}
            for unit, each in flat.items()
        }

    def _bind(self, op: Op, block: Block, told: dict[str, Any]) -> Callable[..., Any]:
        kernel = super()._bind(op, block, told)
        if not op["product"]:
            return kernel

        def counted(*arrays: Any) -> Any:
            made = kernel(*arrays)
            self.flops += _flops(op.name, arrays, made)
            return made

        return counted


def _flops(kernel: str, arrays: Sequence[Any], made: Any) -> int:
    """Of a product: 2 for each weight that goes into each number of y, or of dy."""
    if kernel.endswith("_grad_weight"):
        y, w = arrays[0], made[0]
    elif kernel.endswith("_grad_input"):
        y, w = arrays[0], arrays[-1]
    else:
        y, w = made, arrays[1]
    total: int = 2 * y.size * w.size // max(1, w.shape[unit_dim(w.shape)])
    return total


# -- a step of weights that all have ---------------------------------------------------------------


@dataclass(frozen=True)
class StepShare:
    """What a rank has of a training step."""

    loss: float
    """Its part: the ranks' parts add up to the loss."""
    grads: dict[str, dict[str, Any]]
    """The gradients of the weights that it holds, by layer and name."""
    weight_bytes: int
    """Bytes of the weights that it holds."""
    flops: int
    """FLOP of its products, counted from the arrays that are multiplied."""


class _OneStep(LeNetTrainer):
    """Keeps the gradients of its step, and leaves the weights."""

    def _step(self, updates: Any, gradients: Any, *_: Any, **told: Any) -> None:
        self.found.append(gradients)

    def step(self, batch: Any) -> float:
        self.found: list[Any] = []
        """By unit, in their order."""
        return super().step(batch)


def run_step(rank: Rank, weights: Weights, images: Any, classes: Any, ways: Any) -> StepShare:
    """One step of a split; every rank is given all weights and images, and uses its own.

    ``ways``: the name of one way for all ranks, or how many ranks each way has.
    """
    split, dtype = Split.of(ways, rank.ranks), images.dtype.name
    trainer = _OneStep(rank, LeNetJob.of(split, len(images), SGD(), dtype))
    for unit in trainer.units:
        at = (trainer.tensor.rank,)
        mine = {n: block_of(weights[unit][n], t, at) for n, t in trainer.tilings[unit].items()}
        trainer.put("weights", unit, {n: rank.on_device(w) for n, w in mine.items()})
    here = split.images(len(images), split.at(rank.index)[0])
    loss = trainer.step(lambda _: (images[here], classes[here]))
    grads = trainer.unpacked(dict(zip(trainer.units, trainer.found, strict=True)))
    return StepShare(loss, grads, trainer.held["weights"], trainer.flops)


PARTITIONINGS: Mapping[str, Callable[..., StepShare]] = {
    name: partial(run_step, ways=name) for name in ("layerwise", "network", "data parallel")
}
"""d2l's three, by name."""


def put_together(
    ways: Mapping[str, int] | str, shares: Sequence[StepShare]
) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, all gradients) of a step, from what `run_step` brought back with these ``ways``."""
    split = Split.of(ways, len(shares))
    whole = whole_weights(split, [share.grads for share in shares[: split.stages * split.parts]])
    return sum(share.loss for share in shares), whole


def whole_weights(split: Split, held: Sequence[Weights]) -> dict[str, dict[str, Any]]:
    """All weights, from those of the ranks of one copy: shards one behind the other."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for rank, weights in enumerate(held):
        for layer, each in weights.items():
            if not split.in_space or rank % split.parts == 0:
                found.setdefault(layer, []).append(each)
    return {
        layer.name: {
            kind: np.concatenate([each[kind] for each in found[layer.name]], axis=unit_dim(p.shape))
            for kind, p in layer.parameters.items()
        }
        for layer in LENET
    }
