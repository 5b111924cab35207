"""The nouns of a step's time: a layout's numbers, a piece's work, the parts of the whole.

Each number may be one value or an array with one value per layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Generic, TypeVar

from tiledask.plan.arrays import Array, Values
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.layer_time import NOTHING, Seconds

__all__ = ["Numbers", "Parts", "Work"]

V = TypeVar("V", float, Values)


@dataclass(frozen=True)
class Numbers:
    """The numbers of a Layout: each one value, or an array with one value per layout."""

    dp: int | Array = 1
    tp: int | Array = 1
    pp: int | Array = 1
    cp: int | Array = 1
    ep: int | Array = 1
    microbatch: int | Array = 1
    microbatches: int | Array = 1
    zero: int | Array = 0
    interleave: int | Array = 1
    sequence_parallel: bool | Array = False
    flash_attention: bool | Array = False
    recompute: str | Array = "none"
    schedule: str | Array = "1f1b"

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

    def __rmul__(self, times: Values) -> "Work":
        return Work(*(times * getattr(self, f.name) for f in fields(self)))

    @property
    def seconds(self) -> Seconds:
        """Forward and backward, everything together."""
        every: Iterator[Seconds] = (getattr(self, f.name) for f in fields(self))
        return reduce(add, every)

    @property
    def total(self) -> Values:
        return self.seconds.total


@dataclass(frozen=True)
class Parts(Generic[V]):
    """Seconds of a step by what they go to, on the stage that the others wait for."""

    compute: V
    recompute: V
    tp: V
    cp: V
    ep: V
    pp: V
    dp: V
    bubble: V
    optimizer: V

    @property
    def total(self) -> V:
        every: Iterator[V] = (getattr(self, f.name) for f in fields(self))
        return sum(every)
