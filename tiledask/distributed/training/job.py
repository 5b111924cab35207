"""What every rank of a training is told, and one rank's way through its steps."""

from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training import saved
from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.history import History
from tiledask.distributed.training.reports import Say, reported
from tiledask.distributed.training.trainer import Trainer
from tiledask.errors import ConfigError
from tiledask.plan.digests import digest_of
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.program.program import Program
from tiledask.tile.backend import to_numpy
from tiledask.tile.optimizers import LossScale, Rule

__all__ = ["StateKept", "TrainedRank", "TrainingJob", "train_rank"]


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
    attempt: int = 0
    """How often it was begun before, until a worker was lost."""
    history: str = ""
    """The folder of what ranks measured before each checkpoint, to go on from there."""

    def is_saved(self, done: int) -> bool:
        """Whether there is a checkpoint after so many steps, and more to do."""
        every = self.save_every
        return every is not None and done % every == 0 and self.first < done < self.steps


class StateKept(NamedTuple):
    """What saving before the last step came to, and where a training went on."""

    times: int
    """How often each rank saved its state, since the last attempt began."""
    seconds: float
    """That it took, on the slowest rank."""
    resumed: tuple[int, ...] = ()
    """The step from which the run went on, each time that a worker had been lost."""


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
) -> TrainedRank:
    """What a rank does with its ``program``, step after step, and at the ``end``; ``say`` is told
    of steps."""
    copies = rank.group(0)
    trainer = Trainer(rank, job, program, end)
    losses: list[float] = []
    scales: list[float] = []
    growing: tuple[list[Any], ...] = rank.records, rank.steps, losses, scales, trainer.guard.norms
    history, saves = History(job.history, rank, growing), list[float]()
    if job.first:
        saved.load(trainer, job)
        history.load(job.first)

    def save(step: int) -> dict[str, T.Placed]:
        return trainer.end(partial(saved.save, trainer, job, step, job.attempt > 0))

    for number in reported(range(job.first, job.steps), losses, rank, say, job.attempt):

        def batch(microbatch: int, number: int = number) -> tuple[np.ndarray, np.ndarray]:
            rows = job.rows(copies.size, copies.rank, microbatch)
            return _drawn(job, number, rows)

        scales.append(trainer.guard.loss_scale)
        # what overflows becomes infinite, as on a GPU; the norm finds it
        with rank.step(number), np.errstate(over="ignore", invalid="ignore"):
            losses.append(trainer.step(batch))
        if job.is_saved(number + 1):
            begun = perf_counter()
            save(number + 1)
            history.save(number + 1)
            saves.append(perf_counter() - begun)
    weights = save(job.steps)
    weights = {name: w.like(to_numpy(w.local)) for name, w in weights.items()}
    return TrainedRank(
        losses,
        trainer.guard.norms,
        scales,
        None if copies.rank else weights,
        digest_of(w.local for w in weights.values()) if copies.size > 1 else b"",
        trainer.held,
        StateKept(len(saves), sum(saves)),
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
