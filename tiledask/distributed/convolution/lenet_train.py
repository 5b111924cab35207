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

It is a model for `Trainer`, whose units are the layers. Each rank draws its own weights and its
copy's images from the seed. A step's program is that of plan/program/making/lenet.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.arrays.digests import digest_of
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.convolution.lenet import LENET
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.records import Records
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training.by_layer import frame_of
from tiledask.distributed.training.config import recipe_for
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan import html
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import split as cut
from tiledask.plan.products.placement import Tiling
from tiledask.plan.program.making.lenet import (
    NAMES,
    PARTS,
    SIDE,
    STAGES,
    UNITS,
    Need,
    Split,
    lenet_program,
    need,
    stages_of,
    unit_dim,
)
from tiledask.plan.program.making.zero import DATA
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number
from tiledask.tile import layers as L
from tiledask.tile.backend import to_numpy
from tiledask.tile.datasets import Images
from tiledask.tile.optimizers import Adam, Rule

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LeNetTrainer", "TrainedLeNet", "train_lenet"]

AT_ONCE = 100
"""Images that are looked at in one go when all are classified: their windows take memory."""


@dataclass(frozen=True, repr=False)
class TrainedLeNet:
    """What came of a training."""

    split: Split
    losses: np.ndarray
    """[steps] float64: the mean over each step's batch, before its update."""
    weights: dict[str, dict[str, np.ndarray]]
    """The weights in full, by layer and name, after the last step."""
    held: list[dict[str, int]]
    """Bytes that each rank keeps from step to step, by tensor class."""
    flops: list[int]
    """FLOP of each rank's products in a step, counted from the arrays that are multiplied."""
    seconds: np.ndarray
    """[steps]: of the slowest rank, waiting included."""
    records: Records
    """Every collective and message."""
    planned: Need
    """What a step was to need: what its program does."""

    def classify(self, inputs: np.ndarray) -> np.ndarray:
        """[count] the class that each image [count, 1, 28, 28] is given, on this machine."""
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(inputs), AT_ONCE):
            x = inputs[start : start + AT_ONCE].astype(self.weights["fc2"]["w"].dtype, copy=False)
            for layer in LENET:
                x, _ = layer.forward(self.weights[layer.name], x)
            found.append(x.argmax(axis=1))
        return np.concatenate(found)

    def accuracy(self, images: Images) -> float:
        """The share of ``images`` that is classified rightly."""
        return float(np.mean(self.classify(images.inputs()) == images.labels))

    def to_frame(self) -> "pd.DataFrame":
        """A row per step: loss, bytes sent and messages of all ranks, barriers of the busiest,
        seconds of the slowest."""
        return frame_of(self.records, self.losses).assign(seconds=self.seconds)

    def __repr__(self) -> str:
        ends = "no loss"
        if len(self.losses):
            ends = f"loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"
        return f"TrainedLeNet({len(self.losses)} steps on {self.split}, {ends})"

    def _repr_html_(self) -> str:
        return f"<p>{html.words(repr(self))}</p>{self.to_frame().to_html()}"


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
) -> TrainedLeNet:
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
    split, most = Split.of(ways), UNITS[NAMES[-1]]
    if data.pixels.shape[1:] != (SIDE, SIDE) or data.classes > most:
        raise ConfigError(
            f"LeNet takes images of {SIDE} x {SIDE} and up to {most} classes, got {data!r}; "
            f'td.load_images("digits") has such'
        )
    whole_number("steps", steps, 0)
    whole_number("batch", batch, 1, of="images")
    if dtype not in ("float32", "float64"):
        raise ConfigError(f"dtype is 'float32' or 'float64', got {dtype!r}")
    if mesh is not None and mesh.ranks != split.ranks:
        raise PlacementError(
            f"{split} takes {split.ranks} ranks, and the mesh has {mesh.ranks}: use "
            f"td.Mesh(cluster, ({split.ranks},)), or other ways"
        )
    rule, itemsize = rule or Adam(), np.dtype(dtype).itemsize
    recipe = recipe_for(rule, dtype)
    job = LeNetJob(split, batch, recipe, data, steps, rule, dtype, seed)
    given = job, lenet_program(split, batch, recipe, itemsize).check()
    if mesh is None:
        done = run_threads(_train_rank, split.ranks, *given, timeout=timeout)
    else:
        done = run_ranks(_train_rank, mesh, *given, timeout=timeout, again=True)
    taken = np.zeros((split.ranks, steps))
    for each in done.records.steps:
        taken[each.rank, each.step] = each.end - each.begin
    return TrainedLeNet(
        split,
        np.sum([part.losses for part in done.results], axis=0, dtype=float),
        _whole_weights(split, done, steps),
        [part.held for part in done.results],
        [part.flops for part in done.results],
        taken.max(axis=0),
        done.records,
        need(split, batch, split.ranks, itemsize),
    )


def _whole_weights(split: Split, done: Ranks, steps: int) -> dict[str, dict[str, Any]]:
    """All weights in full. Raises PlacementError if ranks with the same weights differ."""
    parts, first = done.results, dict[tuple[int, int], int]()
    for rank, part in enumerate(parts):
        _, stage, inner = split.at(rank)
        one = first.setdefault((stage, 0 if split.in_space else inner), rank)
        if part.digest != parts[one].digest:
            raise PlacementError(
                f"ranks {one} and {rank} hold the same weights, and these differ after "
                f"{steps} steps: what was added up over them was not the same on both"
            )
    found: dict[str, dict[str, Any]] = {}
    for stage in range(split.stages):
        blocks = [parts[stage * split.parts + part].weights for part in range(split.parts)]
        for name, w in T.put_together(blocks).items():
            layer, _, kind = name.partition(".")
            found.setdefault(layer, {})[kind] = w
    return found


# -- on a rank -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeNetJob:
    """What every rank is given: a training's configuration, and its model."""

    split: Split
    batch: int
    recipe: Recipe
    data: Images
    steps: int
    rule: Rule
    dtype: str
    seed: int
    zero: ClassVar[int] = 0
    scale: ClassVar[None] = None
    clip: ClassVar[None] = None
    gated: ClassVar[bool] = False

    @property
    def model(self) -> "LeNetJob":
        return self

    def units(self, stage: int) -> tuple[str, ...]:
        """The layers of a stage."""
        return tuple(NAMES[i] for i in stages_of(self.split.stages)[stage])

    def parameters(self, unit: str) -> dict[str, L.Parameter]:
        return dict(LENET[NAMES.index(unit)].parameters)

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        return self.split.tilings(unit)

    def shapes(self, unit: str, ranks: int, rank: int) -> dict[str, tuple[int, ...]]:
        return self.split.shapes(unit, rank)


class LeNetTrainer(Trainer):
    """One rank's part of LeNet, with newly drawn weights."""

    flops = 0
    """Of the products of the last step, counted from the arrays that are multiplied."""

    def step(self, batch: Any) -> float:
        self.flops = 0
        return super().step(batch)

    def _bind(self, op: Op, block: str, told: dict[str, Any]) -> Callable[..., Any]:
        kernel = super()._bind(op, block, told)

        def counted(*arrays: Any) -> Any:
            made = kernel(*arrays)
            # 2 for each weight that goes into each number of y, or of dy
            y, w = made, arrays[1]
            if op.name.endswith("_grad_weight"):
                y, w = arrays[0], made[0]
            elif op.name.endswith("_grad_input"):
                y, w = arrays[0], arrays[-1]
            self.flops += 2 * y.size * w.size // max(1, w.shape[unit_dim(w.shape)])
            return made

        return counted if op["product"] else kernel


class _Part(NamedTuple):
    """What a rank brings back."""

    losses: list[float]
    weights: dict[str, T.Placed]
    digest: bytes
    held: dict[str, int]
    flops: int


def _train_rank(rank: Rank, job: LeNetJob, program: Program) -> _Part:
    """What a rank does, step after step."""
    trainer = LeNetTrainer(rank, job, program, axes=(DATA, PARTS, STAGES))
    split, batch = job.split, job.batch
    copy, losses = split.at(rank.index)[0], []
    rows = slice(*cut(0, batch, split.copies)[copy])
    for number in range(job.steps):

        def images(_: int, number: int = number) -> tuple[np.ndarray, np.ndarray]:
            return job.data.batch(job.seed, number, batch, rows, job.dtype)

        with rank.step(number):
            losses.append(trainer.step(images))
    weights = {
        f"{unit}.{name}": T.Placed(to_numpy(w), trainer.tilings[unit][name])
        for unit, flat in trainer.arrays["weights"].items()
        for name, w in trainer.packings[unit].unpack(flat).items()
    }
    held = {tensor: n for tensor, n in trainer.held.items() if tensor != "gradients"}
    return _Part(losses, weights, digest_of(w.local for w in weights.values()), held, trainer.flops)
