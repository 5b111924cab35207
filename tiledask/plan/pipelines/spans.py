"""Spans of actions and transfers in flat columns: what a simulation and a measured run both are."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["COMPUTE", "KINDS", "TRANSFER", "Spans"]

COMPUTE = ("F", "B", "I", "W", "U", "M")
"""Kinds of compute, PyTorch's letters: forward, full backward, input gradient, weight gradient; and
of no stage the update of a training, and the panels of a blocked product (M, multiply)."""
TRANSFER = "T"
"""A block on its way to the device; it may overlap compute and is never counted as busy. Its stage
and micro-batch are those of the action that made it, or -1 where that is not known."""
KINDS = (*COMPUTE, TRANSFER)
"""The kinds of a Timeline's spans; its column of kinds holds positions in them."""


@dataclass(frozen=True, eq=False, repr=False)
class Spans:
    """Columns, a row for each span."""

    devices: int
    """Number of devices, those that did nothing included."""
    device: np.ndarray
    """int32, rising: one device's spans follow the other's, each in the order of their starts."""
    code: np.ndarray
    """int8: the kind of each span, as a position in KINDS."""
    stage: np.ndarray
    microbatch: np.ndarray
    start: np.ndarray
    """Seconds."""
    end: np.ndarray
    """Seconds."""
    origin: str = "simulated"
    """"simulated" or "measured"."""

    @cached_property
    def computes(self) -> np.ndarray:
        """bool: which spans are compute."""
        return self.code < len(COMPUTE)

    @cached_property
    def turns(self) -> np.ndarray:
        """int [devices + 1]: where each device's spans begin, and where the last one's end."""
        return np.searchsorted(self.device, np.arange(self.devices + 1))

    @cached_property
    def acts(self) -> "Spans":
        """The compute spans alone."""
        return self.only(self.computes)

    @cached_property
    def makespan(self) -> float:
        """Seconds from time 0 to the end of the last compute span."""
        return float(self.acts.end.max(initial=0.0))

    def only(self, rows: np.ndarray) -> "Spans":
        """Those of these ``rows``, a mask."""
        columns = self.device[rows], self.code[rows], self.stage[rows], self.microbatch[rows]
        return Spans(self.devices, *columns, self.start[rows], self.end[rows], self.origin)
