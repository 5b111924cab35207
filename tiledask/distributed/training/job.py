"""One rank's way through the steps of a training, and what it brings back."""

from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.arrays.digests import digest_of
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training import saved
from tiledask.distributed.training.progress import Report, step_reporter
from tiledask.plan.program.program import Program
from tiledask.tile.backend import to_numpy

__all__ = ["StateKept", "TrainedRank", "train_rank"]


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

    history: saved.History
    weights: dict[str, T.Placed] | None
    """The weights here of the first copy of the model; None on others."""
    digest: bytes
    """Of the weights, where there are copies to compare; else none."""
    held: dict[str, int]
    flops: int
    saving: list[float]
    """Seconds of each time that it saved its state."""


def train_rank(
    rank: Rank, config: Any, program: Program, end: Program | None = None, say: Report | None = None
) -> TrainedRank:
    """What a rank does with the ``program`` of a RankConfig, step after step, and at the ``end``;
    steps are reported to ``say``."""
    copies, saving = rank.group(0), list[float]()
    trainer = config.trainer(rank, config, program, end)
    if config.done:
        saved.load(trainer, config)
    history = saved.load_history(config, rank.index) if config.done > config.first else []
    report = step_reporter(rank, say) if say else None

    def save(step: int) -> dict[str, T.Placed]:
        weights: dict[str, T.Placed] = trainer.end(partial(saved.save, trainer, config, step))
        return weights

    for number in range(config.done, config.steps):
        saves, scale = config.is_saved(number + 1), float(trainer.numbers["scale"])
        # what overflows becomes infinite, as on a GPU; the norm finds it
        with rank.step(number), np.errstate(over="ignore", invalid="ignore"):
            loss = trainer.step(partial(config.draw, number, copies.rank))
        history.append((loss, scale, trainer.norm))
        if report:
            report(number, loss, saves or number + 1 == config.steps)
        if saves:
            begun = perf_counter()
            saved.save_history(config, rank.index, history)
            save(number + 1)
            saving.append(perf_counter() - begun)
    weights = {name: w.like(to_numpy(w.local)) for name, w in save(config.steps).items()}
    return TrainedRank(
        history,
        None if copies.rank else weights,
        digest_of(w.local for w in weights.values()) if copies.size > 1 else b"",
        {tensor: sum(x.nbytes for x in of.values()) for tensor, of in trainer.arrays.items()},
        trainer.flops,
        saving,
    )
