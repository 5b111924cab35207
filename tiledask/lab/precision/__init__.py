"""Precision, as lessons that run: each returns a table of what is said and what came out.

formats.py   floating-point formats by their definition, in exact fractions
lessons.py   overflow, underflow, lost updates, the order of sums, loss scaling
drift.py     how far the loss of a split run may be from one device's: theory, verdict, run
controls.py  how long two losses can be compared at all: one device against itself
blame.py     why a loss does not fall: every suspect with the experiment that settles it
replicas.py  replicas whose fp16 gradients are added up: overflow, and its remedies
small.py     the network that is trained for it, split as tensor parallelism splits it
"""

from tiledask.lab.precision.blame import EXPERIMENTS, Blame, TrainingSetting, blame
from tiledask.lab.precision.controls import Compared, compared
from tiledask.lab.precision.drift import GRADES, Drift, acceptable, drift, likely, verdicts, worst
from tiledask.lab.precision.formats import FORMATS, Format
from tiledask.lab.precision.lessons import (
    loss_scaling,
    lost_update,
    order_of_sums,
    overflow,
    underflow,
)
from tiledask.lab.precision.replicas import (
    REMEDIES,
    Reduction,
    ReplicasRun,
    sum_error,
    train_replicas,
)
from tiledask.lab.precision.small import Small, SmallRun, train

__all__ = [
    "EXPERIMENTS",
    "FORMATS",
    "GRADES",
    "REMEDIES",
    "Blame",
    "Compared",
    "Drift",
    "Format",
    "Reduction",
    "ReplicasRun",
    "Small",
    "SmallRun",
    "TrainingSetting",
    "acceptable",
    "blame",
    "compared",
    "drift",
    "likely",
    "loss_scaling",
    "lost_update",
    "order_of_sums",
    "overflow",
    "sum_error",
    "train",
    "train_replicas",
    "underflow",
    "verdicts",
    "worst",
]
