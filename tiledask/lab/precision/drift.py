"""Drift of a split run's loss from one device's: the theory, and a verdict.

A sum over k terms that t ranks share is rounded t times, once a rank, and t - 1 times as it is
added up: 2t - 1 roundings of relative size u at most, where one device has one. With one such sum
in each of L layers, after n steps of training

    they agree by chance     u sqrt(L (2t - 1) n)      errors as steps of a random walk
    they all add up          u L (2t - 1) n            the worst case to first order

and the loss feels them relative to its own size. It is a mean over many tokens and moves less: of
halves ten times less, or more, in the first ten steps that were measured. A training that is itself
unstable (its rate too high) multiplies any difference from step to step, and then no envelope
holds. So compare early, in the widest format at hand: a fault is of the same size in every format,
while round-off shrinks with u.
(Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.8 and 4.2.)
"""

from math import inf, isfinite, sqrt
from typing import NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.whole import is_whole

__all__ = ["ROUNDOFF", "Drift", "acceptable"]

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""The largest relative error of a rounding in a format of IEEE 754-2019: half of 1's last digit."""
SAFETY = 2.0
"""Times the random walk that still counts as round-off."""


class Drift(NamedTuple):
    """How far two losses are apart, and what round-off makes of that."""

    grade: str
    """"round-off", "doubtful" (all of it in one direction, or a fault) or "fault"."""
    difference: float
    """Relative to the larger loss; infinite where one is not finite."""
    likely: float
    """What round-off explains, as a random walk."""
    worst: float
    """If every error pointed in one direction."""

    def __bool__(self) -> bool:
        return self.grade == "round-off"


def acceptable(
    loss_a: float, loss_b: float, steps: int, dtype: str, ranks: int = 2, layers: int = 1
) -> Drift:
    """A verdict on two losses after ``steps`` steps, of one device and of ``ranks`` that share it.

    dtype
        In which activations are added up over the ranks.
    layers
        Of the network, each with a sum over the ranks.

    What is a fault in a half is to be looked for after 1 and 2 steps in float64.

    >>> acceptable(2.0, 2.0 + 5e-7, steps=1, dtype="float32", ranks=2, layers=2).grade
    'round-off'
    >>> acceptable(2.3, 2.99, steps=1, dtype="bfloat16", ranks=2, layers=2).grade
    'fault'
    """
    if dtype not in ROUNDOFF:
        raise ConfigError(f"a floating-point format is one of {', '.join(ROUNDOFF)}, got {dtype!r}")
    if not all(is_whole(n, 1) for n in (steps, ranks, layers)):
        raise ConfigError(
            f"losses are compared after 1 step or more, of 1 rank or more with 1 layer or more; "
            f"got steps={steps}, ranks={ranks}, layers={layers}"
        )
    roundings = layers * (2 * ranks - 1) * steps
    by_chance, at_most = ROUNDOFF[dtype] * sqrt(roundings), ROUNDOFF[dtype] * roundings
    difference, largest = inf, max(abs(loss_a), abs(loss_b))
    if isfinite(loss_a) and isfinite(loss_b):
        difference = abs(loss_a - loss_b) / largest if largest else 0.0
    limits = {"round-off": SAFETY * by_chance, "doubtful": at_most, "fault": inf}
    grade = next(name for name, limit in limits.items() if difference <= limit)
    return Drift(grade, difference, by_chance, at_most)
