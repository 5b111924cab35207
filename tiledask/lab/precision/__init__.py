"""Half precision: how far two losses may drift apart, why a loss does not fall.

drift.py     how far the loss of a split run may be from one device's: theory, verdict
blame.py     why a loss does not fall: every suspect with the experiment that settles it
small.py     the network that is trained for it, split as tensor parallelism splits it
"""

from tiledask.lab.precision.blame import EXPERIMENTS, Blame, TrainingSetting, blame
from tiledask.lab.precision.drift import GRADES, Drift, acceptable, likely, verdicts, worst
from tiledask.lab.precision.small import Small, SmallRun, train

__all__ = ["EXPERIMENTS", "GRADES", "Blame", "Drift", "Small", "SmallRun", "TrainingSetting",
           "acceptable", "blame", "likely", "train", "verdicts", "worst"]  # fmt: skip
