"""Half precision: how far two losses may drift apart.

drift.py     how far the loss of a split run may be from one device's: theory, verdict
small.py     a small network, trained in any precision
"""

from tiledask.lab.precision.drift import Drift, acceptable
from tiledask.lab.precision.small import Small, SmallRun, train

__all__ = ["Drift", "Small", "SmallRun", "acceptable", "train"]
