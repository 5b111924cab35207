"""The small network trained by replicas whose gradients are added up in fp16, and three remedies.

    rank 0   scaled gradient 40000 --.
    rank 1   scaled gradient 40000 --+-- fp16: 80000 > 65504, so inf --> / 2 = inf --> all NaN

Every replica's gradient is finite, and so is their mean: only the sum on the way to it is not.
"""

from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.precision.small import Small, gradients
from tiledask.plan.products.placement import split
from tiledask.tile import layers
from tiledask.tile.datasets import load_images
from tiledask.tile.optimizers import SGD, LossScale, advance, begin, flush, unscaled

__all__ = ["REMEDIES", "Reduction", "ReplicasRun", "sum_error", "train_replicas"]

RULE = SGD(0.02)
SUMMED = 4096
"""Gradients whose sums are looked at."""
SMALL = Small(hidden=16, inner=32, blocks=1)


@dataclass(frozen=True)
class Reduction:
    """How replicas bring their gradients together."""

    dtype: str = "float16"
    """In which they are added up."""
    divided_first: bool = False
    """Divided by the number of replicas before the sum, and not behind it."""
    dynamic: bool = False
    """The loss scale gives way where something overflows, and that step is left out."""


REMEDIES = {
    "as it was": Reduction(),
    "divided before the sum": Reduction(divided_first=True),
    "summed in fp32": Reduction(dtype="float32"),
    "dynamic loss scale": Reduction(dynamic=True),
}


@dataclass(frozen=True)
class ReplicasRun:
    """What one replica saw; losses are the mean over all of them."""

    losses: tuple[float, ...]
    largest: float
    """The largest scaled gradient of any replica before a sum, as long as all was finite."""
    skipped: int

    @property
    def finite(self) -> bool:
        """Whether every loss is a number."""
        return all(map(isfinite, self.losses))


def train_replicas(
    rank: Any,
    reduction: Reduction,
    scale: float,
    steps: int = 12,
    batch: int = 32,
    dtype: str = "float16",
    seed: int = 0,
) -> ReplicasRun:
    """One rank's ReplicasRun: a program for `tiledask.run_ranks` or `tiledask.run_threads`.

    ``scale`` multiplies the loss; ``dtype`` is that of weights and activations, with fp32 masters.
    Each replica has the mean loss over its rows of the batch, so the mean of their gradients is
    that of the whole batch.
    """
    if batch % rank.ranks:
        raise ConfigError(
            f"replicas share a batch evenly: {batch} rows on {rank.ranks}; take a multiple"
        )
    digits, group, copies = load_images("digits"), rank.group(), rank.ranks
    rows = slice(*split(0, batch, copies)[rank.index])
    state = begin(layers.initialise(SMALL.parameters(), seed), RULE, dtype)
    losses, largest = list[float](), 0.0
    log: Any = LossScale(scale)
    before = copies if reduction.divided_first else 1
    with np.errstate(all="ignore"):  # what overflows here is what is looked at
        for step in range(steps):
            x, labels = digits.batch(seed, step, batch, rows=rows, dtype=dtype)
            x = x.reshape(len(x), -1)
            loss, mine = gradients(state.weights, SMALL, x, labels, 1, log.scale)
            losses.append(float(group.all_reduce(np.array([loss / copies]))[0]))
            if isfinite(losses[-1]):
                most = max(float(np.abs(g.astype(np.float64)).max()) for g in mine.values())
                largest = max(largest, float(group.all_reduce(np.array([most]), op="max")[0]))
            added = {
                name: group.all_reduce(flush(g / before, reduction.dtype), algorithm="ring")
                for name, g in mine.items()
            }
            mean = unscaled(added, copies / before)
            if reduction.dynamic:
                state, log, _ = advance(state, RULE, mean, log)
            else:
                state, _, _ = advance(state, RULE, unscaled(mean, log.scale))
    return ReplicasRun(tuple(losses), largest, log.skipped)


def sum_error(rank: Any, dtype: str, seed: int = 0) -> tuple[float, float]:
    """(relative error of a ring all-reduce in ``dtype``, that of additions in a loop).

    A program for ranks. Each brings SUMMED numbers of a normal distribution, rounded to ``dtype``;
    errors are root mean squares over those of the exact sums.
    """
    drawn = flush(np.random.default_rng(seed).standard_normal((rank.ranks, SUMMED)), dtype)
    exact = drawn.astype(np.float64).sum(0)
    total = rank.group().all_reduce(drawn[rank.index], algorithm="ring")
    looped = reduce(lambda a, b: flush(a + b, dtype), drawn)
    size = float(np.sqrt((exact**2).mean()))
    ring, loop = (
        float(np.sqrt(((found.astype(np.float64) - exact) ** 2).mean())) / size
        for found in (total, looped)
    )
    return ring, loop
