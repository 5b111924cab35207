"""The nouns of a step's time: a layout's numbers, a piece's work, the parts of the whole.

Each number may be one value or an array with one value per layout.
"""

from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.layer_time import NOTHING, Seconds

__all__ = ["Numbers", "Parts", "Work"]


@dataclass(frozen=True)
class Numbers:
    """The numbers of a Layout: each one value, or an array with one value per layout."""

    dp: int | np.ndarray = 1
    tp: int | np.ndarray = 1
    pp: int | np.ndarray = 1
    cp: int | np.ndarray = 1
    ep: int | np.ndarray = 1
    microbatch: int | np.ndarray = 1
    microbatches: int | np.ndarray = 1
    zero: int | np.ndarray = 0
    interleave: int | np.ndarray = 1
    sequence_parallel: bool | np.ndarray = False
    flash_attention: bool | np.ndarray = False
    recompute: str | np.ndarray = "none"
    schedule: str | np.ndarray = "1f1b"

    @classmethod
    def of(cls, layout: Layout) -> "Numbers":
        """The numbers of one Layout."""
        return cls(**{field.name: getattr(layout, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Work:
    """Seconds of one micro-batch in a piece of the model, by what they go to."""

    compute: Seconds = NOTHING
    recompute: Seconds = NOTHING
    tp: Seconds = NOTHING
    cp: Seconds = NOTHING
    ep: Seconds = NOTHING
    pp: Seconds = NOTHING

    __array_ufunc__ = None  # array x Work is Work's own affair, not NumPy's

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __rmul__(self, times) -> "Work":
        return Work(*(times * getattr(self, f.name) for f in fields(self)))

    @property
    def seconds(self) -> Seconds:
        """Forward and backward, everything together."""
        return reduce(add, (getattr(self, f.name) for f in fields(self)))

    @property
    def total(self):
        return self.seconds.total


@dataclass(frozen=True)
class Parts:
    """Seconds of a step by what they go to, on the stage that the others wait for."""

    compute: float | np.ndarray
    recompute: float | np.ndarray
    tp: float | np.ndarray
    cp: float | np.ndarray
    ep: float | np.ndarray
    pp: float | np.ndarray
    dp: float | np.ndarray
    bubble: float | np.ndarray
    optimizer: float | np.ndarray

    @property
    def total(self):
        return sum(getattr(self, f.name) for f in fields(self))
