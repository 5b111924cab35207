"""Why a loss does not fall: every suspect has an experiment, and the one that helps names it.

suspect                 experiment                        what it settles
the loss scale is low   scale x 2^16                      gradients that fp16 rounds to 0
the loss scale is high  scale / 2^16                      gradients that overflow to inf
no master weights       masters in fp32                   updates below a weight's last digit
the rate is too high    rate / 10                         steps too long in any format
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean

from tiledask.lab.precision.small import Small, SmallRun, train
from tiledask.tile.optimizers import SGD

__all__ = ["EXPERIMENTS", "Blame", "TrainingSetting", "blame"]

HEALTHY = "nothing"
SMALL = Small(hidden=16, inner=32, blocks=1)
STEPS, LAST = 32, 8
"""Steps of a training, and those at its end whose mean loss is looked at."""
HELPS = 1.1
"""Times as much of the loss has to go with an experiment, before it names anything."""
UNTRAINED = 1e-12
"""A rate at which nothing is learned."""


@dataclass(frozen=True)
class TrainingSetting:
    """How the small network is trained."""

    dtype: str = "float16"
    rate: float = 0.02
    scale: float = 1.0
    """Of the loss, beside that at which its gradients are in the middle of fp16."""
    master: bool = True

    def run(self) -> SmallRun:
        """The training; the same bits every time."""
        return train(
            self.dtype,
            STEPS,
            rule=SGD(self.rate),
            times=self.scale,
            master=self.master,
            small=SMALL,
        )


EXPERIMENTS: dict[str, tuple[str, Callable[[TrainingSetting], TrainingSetting]]] = {
    "the loss scale is too low": ("loss scale x 2^16", lambda s: replace(s, scale=s.scale * 2**16)),
    "the loss scale is too high": (
        "loss scale / 2^16",
        lambda s: replace(s, scale=s.scale / 2**16),
    ),
    "no master weights": ("masters in fp32", lambda s: replace(s, master=True)),
    "the rate is too high": ("rate / 10", lambda s: replace(s, rate=s.rate / 10)),
}
"""Suspect -> (the experiment in words, the setting that it makes)."""


@dataclass(frozen=True)
class Blame:
    """What the experiments said."""

    untrained: float
    """The mean loss of the same batches without any training."""
    loss: float
    """As it was: the mean at the end; infinite if it is no number."""
    after: dict[str, float]
    """Suspect -> the same after its experiment, the most helpful first."""

    @property
    def cause(self) -> str:
        """The suspect whose experiment helps most; "nothing" if none does."""
        suspect, loss = next(iter(self.after.items()))
        learned = max(0.0, self.untrained - self.loss)
        return suspect if self.untrained - loss > HELPS * learned else HEALTHY


def blame(setting: TrainingSetting) -> Blame:
    """The Blame of a training, which is run as it is and once for every suspect.

    >>> blame(TrainingSetting(scale=2.0**-22)).cause
    'the loss scale is too low'
    """
    after = {name: _end(change(setting)) for name, (_, change) in EXPERIMENTS.items()}
    ranked = dict(sorted(after.items(), key=lambda each: each[1]))
    return Blame(_end(TrainingSetting("float32", UNTRAINED)), _end(setting), ranked)


def _end(setting: TrainingSetting) -> float:
    loss = fmean(setting.run().losses[-LAST:])
    return loss if isfinite(loss) else float("inf")
