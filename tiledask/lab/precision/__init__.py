"""Half precision: what it loses, how far two losses may drift apart, why a loss does not fall.

formats.py   floating-point formats; underflow and lost updates, as tables
drift.py     how far the loss of a split run may be from one device's: theory, verdict
blame.py     why a loss does not fall: every suspect with the experiment that settles it
replicas.py  replicas whose fp16 gradients are added up: overflow, and its remedies
small.py     the network that is trained for it, split as tensor parallelism splits it
"""

from tiledask.lab.precision.blame import EXPERIMENTS, Blame, TrainingSetting, blame
from tiledask.lab.precision.drift import GRADES, Drift, acceptable, likely, verdicts, worst
from tiledask.lab.precision.formats import FORMATS, Format, lost_update, underflow
from tiledask.lab.precision.replicas import (
    REMEDIES,
    Reduction,
    ReplicasRun,
    sum_error,
    train_replicas,
)
from tiledask.lab.precision.small import Small, SmallRun, train

__all__ = ["EXPERIMENTS", "FORMATS", "GRADES", "REMEDIES", "Blame", "Drift", "Format", "Reduction",
           "ReplicasRun", "Small", "SmallRun", "TrainingSetting", "acceptable", "blame", "likely",
           "lost_update", "sum_error", "train", "train_replicas", "underflow", "verdicts",
           "worst"]  # fmt: skip
