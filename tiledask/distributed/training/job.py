"""What every rank of a training is told, and one rank's way through its steps."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.recovering.kept_state import NEVER, Keeper, Keeping, StateKept
from tiledask.distributed.training import saved
from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.reports import Say, reported
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import ConfigError
from tiledask.plan.digests import digest_of
from tiledask.plan.program.making.of_training import TrainingTerms
from tiledask.plan.program.program import Program
from tiledask.tile.backend import to_numpy
from tiledask.tile.optimizers import LossScale, Rule

__all__ = ["TrainedRank", "TrainingJob", "train_rank"]


@dataclass(frozen=True, kw_only=True)
class TrainingJob(TrainingTerms):
    """What every rank is told."""

    model: GPT
    data: Any
    steps: int
    rule: Rule
    dtype: str
    seed: int
    scale: LossScale | None = None
    """The loss scale of the first step."""
    clip: float | None = None
    folder: str | None = None
    """Where checkpoints are."""
    first: int = 0
    """Steps that are done already, by the newest of them."""
    save_every: int | None = None
    """Steps from one checkpoint to the next; there is one after the last."""
    nudge: int = 0
    """Whether, and by which draw, the weights begin a rounding away."""

    def is_saved(self, done: int) -> bool:
        """Whether there is a checkpoint after so many steps, and more to do."""
        every = self.save_every
        return every is not None and done % every == 0 and self.first < done < self.steps


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
    """Of the weights, where there are copies to compare; else none."""
    held: dict[str, int]
    kept: StateKept


def train_rank(
    rank: Rank,
    job: TrainingJob,
    program: Program,
    end: Program,
    say: Say | None = None,
    keeping: Keeping | None = None,
) -> TrainedRank:
    """What a rank does with its ``program``, step after step, and at the ``end``; ``say`` is told
    of steps, and its state is kept as ``keeping`` says."""
    copies = rank.group(0)
    trainer = Trainer(rank, job, program, end)
    losses: list[float] = []
    scales: list[float] = []
    keeping = keeping or Keeping("", every=NEVER)
    growing: tuple[list[Any], ...] = rank.records, rank.steps, losses, scales, trainer.guard.norms
    keeper = Keeper(rank, keeping, trainer.between_steps, growing)
    first = job.first
    if keeping.found is not None:
        trainer.guard.scale, updates = keeper.take_up()
        trainer.resume(updates)
        first = keeping.found.step
    elif job.first:
        saved.load(trainer, job)

    def save(step: int) -> dict[str, T.Placed]:
        return trainer.end(partial(saved.save, trainer, job, step, keeping.attempt > 0))

    for number in reported(range(first, job.steps), losses, rank, say, keeping.attempt):

        def batch(microbatch: int, number: int = number) -> tuple[np.ndarray, np.ndarray]:
            rows = job.rows(copies.size, copies.rank, microbatch)
            return _drawn(job, number, rows)

        scales.append(trainer.guard.loss_scale)
        # what overflows becomes infinite, as on a GPU; the norm finds it
        with rank.step(number), np.errstate(over="ignore", invalid="ignore"):
            losses.append(trainer.step(batch))
        if job.is_saved(number + 1):
            save(number + 1)
        about = lambda: (trainer.guard.scale, trainer.updates)  # noqa: E731
        keeper.stepped(number + 1, about, job.is_saved(number + 1))
    weights = save(job.steps)
    weights = {name: w.like(to_numpy(w.local)) for name, w in weights.items()}
    return TrainedRank(
        losses,
        trainer.guard.norms,
        scales,
        None if copies.rank else weights,
        digest_of(w.local for w in weights.values()) if copies.size > 1 else b"",
        trainer.held,
        StateKept(keeper.count, keeper.seconds),
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
