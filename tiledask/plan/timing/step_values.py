"""The nouns of a step's time: a piece's work, the parts of the whole.

Each number may be one value or an array with one value per layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Generic, TypeVar

from tiledask.plan.arrays import Values
from tiledask.plan.timing.layer_time import NOTHING, Seconds

__all__ = ["Parts", "Work"]

V = TypeVar("V", float, Values)


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
        return Work(*map(add, self.parts, other.parts))

    def __rmul__(self, times: Values) -> "Work":
        return Work(*(times * part for part in self.parts))

    @property
    def parts(self) -> list[Seconds]:
        """The Seconds of each field, in their order."""
        return [*vars(self).values()]

    @property
    def seconds(self) -> Seconds:
        """Forward and backward, everything together."""
        return reduce(add, self.parts)

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

    def __rmul__(self, times: float) -> "Parts[V]":
        return Parts(**{f.name: times * getattr(self, f.name) for f in fields(self)})

    @property
    def total(self) -> V:
        every: Iterator[V] = (getattr(self, f.name) for f in fields(self))
        return sum(every)
