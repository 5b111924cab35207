"""The program of one rank: its part of the model, step after step; and what every rank is told."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.data_parallel.chain import Layer
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training import saved
from tiledask.distributed.training.gpt import GPT, Flow
from tiledask.distributed.training.grad_norm import Guard
from tiledask.distributed.training.reports import Say, reported
from tiledask.distributed.training.stages import PIPELINE, Stages
from tiledask.distributed.training.states import States
from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.products.placement import split
from tiledask.tile import layers as tile
from tiledask.tile.backend import accumulator, as_dtype, to_numpy
from tiledask.tile.optimizers import LossScale, Rule

__all__ = ["TrainedRank", "TrainingJob", "train_rank"]


@dataclass(frozen=True)
class TrainingJob:
    """What every rank is told."""

    model: GPT
    data: Any
    steps: int
    batch: int
    schedule: Schedule
    cut: tuple[int, ...]
    sequence_parallel: bool
    zero: int
    rule: Rule
    dtype: str
    seed: int
    recipe: Recipe
    """What is kept of each number, and in how many bytes."""
    scale: LossScale | None = None
    """The loss scale of the first step."""
    clip: float | None = None
    folder: str | None = None
    """Where checkpoints are."""
    first: int = 0
    """Steps that are done already, by the newest of them."""
    nudge: int = 0
    """Whether, and by which draw, the weights begin a rounding away."""
    recompute: bool = False
    """Whether a block's forward is done again in its backward, from its input alone."""

    @property
    def itemsize(self) -> int:
        """Bytes of a number of activations."""
        return as_dtype(self.dtype).itemsize

    @property
    def scaled(self) -> bool:
        """Whether the loss is multiplied by a scale before its gradients are taken."""
        return self.scale is not None

    def rows(self, copies: int, copy: int, microbatch: int) -> slice:
        """The rows of the batch of one micro-batch of one copy of the model; there may be none."""
        mine = split(0, self.batch, copies)[copy]
        return slice(*split(*mine, self.schedule.microbatches)[microbatch])

    def units(self, device: int) -> tuple[str, ...]:
        """What a pipeline rank holds."""
        place = self.schedule.place
        here = [s for s in range(self.schedule.stages) if place[s] == device]
        mine = {unit for s in here for unit in self.model.stage_units(s, self.cut)}
        return tuple(unit for unit in self.model.units if unit in mine)

    @property
    def guarded(self) -> tuple[int, ...]:
        """The mesh's axes over which the norm of all gradients is added up; none if it is not
        asked for. Copies of the model have the same gradients, unless ZeRO shards these."""
        if self.scale is None and self.clip is None:
            return ()
        return (0, 1, 2) if self.zero else (1, 2)


class TrainedRank(NamedTuple):
    """What one rank brings back."""

    losses: list[float]
    norms: list[float]
    """The norm of all gradients, step by step; none where nobody asks for it."""
    scales: list[float]
    """What each step's loss was multiplied by."""
    weights: dict[str, T.Placed] | None
    """The weights here of the first copy of the model; None on others."""
    digest: bytes
    held: dict[str, int]


def train_rank(rank: Rank, job: TrainingJob, say: Say | None = None) -> TrainedRank:
    """The program of one rank; ``say`` is told of its steps."""
    copies = rank.group(0)
    stages = _stages(rank, job)
    losses: list[float] = []
    scales: list[float] = []
    if job.first:
        saved.load(stages, job)
    for number in reported(range(job.first, job.steps), losses, rank, say):

        def batch(microbatch: int, number: int = number) -> tuple[np.ndarray, np.ndarray]:
            rows = job.rows(copies.size, copies.rank, microbatch)
            return _drawn(job, number, rows)

        scales.append(stages.guard.loss_scale)
        # what overflows becomes infinite, as on a GPU; the norm finds it
        with rank.step(number), np.errstate(over="ignore", invalid="ignore"):
            losses.append(stages.step(batch, job.batch * job.model.sequence))
    if job.folder and losses:
        saved.save(stages, job, losses[-1])
    weights = {
        f"{unit}.{name}": w
        for unit, arrays in stages.states.whole().items()
        for name, w in stages.placed(unit, arrays).items()
    }
    digest = blake2b(b"".join(to_numpy(w.local).tobytes() for w in weights.values())).digest()
    weights = {name: w._replace(local=to_numpy(w.local)) for name, w in weights.items()}
    return TrainedRank(
        losses,
        stages.guard.norms,
        scales,
        None if copies.rank else weights,
        digest,
        stages.states.held,
    )


def _drawn(job: TrainingJob, number: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """(ids, targets) of some rows of a step's batch. Raises ConfigError if they are not those."""
    sequence = job.model.sequence
    ids, targets = job.data.batch(job.seed, number, job.batch, sequence, rows)
    wanted = (rows.stop - rows.start, sequence)
    if not np.shape(ids) == np.shape(targets) == wanted:
        raise ConfigError(
            f"data.batch gives ids and targets of the rows that it is asked for: rows "
            f"{rows.start} up to {rows.stop} of {sequence} tokens are {wanted}, got "
            f"{np.shape(ids)} and {np.shape(targets)}"
        )
    return ids, targets


def _stages(rank: Rank, job: TrainingJob) -> Stages:
    """The stages of this rank, with newly drawn weights: those that one device would draw."""
    model, tensor = job.model, rank.group(1)
    units = job.units(rank.coordinates[PIPELINE])
    layouts = {unit: model.layout(unit, tensor.size) for unit in units}
    weights = {
        unit: {
            name: w.local
            for name, w in T.draw_sharded(
                tensor,
                model.parameters(unit),
                layouts[unit],
                job.seed,
                f"{unit}.",
                accumulator(job.dtype),
                rank.backend,
                tile.Nudge(job.nudge, job.dtype) if job.nudge else None,
            ).items()
        }
        for unit in units
    }
    shapes = {
        unit: {name: tile.Parameter(w.shape) for name, w in arrays.items()}
        for unit, arrays in weights.items()
    }
    layers = [Layer(unit, shapes[unit], _unused, _unused) for unit in units]
    states = States(
        rank.group(0), layers, weights, job.recipe, job.zero, rule=job.rule, half=job.dtype
    )
    angles = None
    if model.gated:
        at, width = np.arange(model.sequence), model.block.heads.width
        angles = tile.rotary_angles(at, width, dtype=job.dtype, xp=rank.backend)
    flow = Flow(tensor, model, job.sequence_parallel)
    guard = Guard(rank.group(job.guarded or None), job.scale, job.clip)
    return Stages(rank, flow, job.schedule, job.cut, states, layouts, angles, guard)


def _unused(*_: Any) -> Any:
    raise AssertionError("stages.py goes through the layers")
