"""Numbers that people give, read as exact fractions, so that no rounding decides a split."""

import math
from collections.abc import Sequence, Sized
from fractions import Fraction

from tiledask.errors import PartitionError, short
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = ["capacities", "count", "exact", "whole"]


Real = float | Fraction


def count(value: object, name: str) -> int:
    """``value`` as an int of at least 1.

    >>> count(4, "stages")
    4
    """
    return whole_number(name, value, 1, MOST_COUNT, error=PartitionError)


def exact(
    values: Sequence[Real],
    name: str,
    length: int | None = None,
    each: str = "",
    positive: bool = False,
) -> list[Fraction]:
    """The values as fractions; what is not usable is refused with its position from 1.

    >>> exact([0.5, 2], "cost")
    [Fraction(1, 2), Fraction(2, 1)]
    """
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise PartitionError(f"give the {name} values as a list of numbers, got {short(values)}")
    if length is not None and len(values) != length:
        raise PartitionError(
            f"got {len(values)} {name} values where {length} are needed: one for each {each}"
        )
    fractions = []
    for i, value in enumerate(values, start=1):
        fraction: Fraction | None = None
        try:
            number = value if isinstance(value, int | Fraction) else float(value)
            fraction = Fraction(number)
        except (TypeError, ValueError, OverflowError):  # not a number, NaN, infinite
            pass
        if fraction is None or fraction < 0 or (positive and fraction == 0):
            rule = "more than 0" if positive else "0 or more"
            raise PartitionError(
                f"{name} number {i} must be a finite number, {rule}; got {short(value)}"
            )
        fractions.append(fraction)
    return fractions


def whole(values: list[Fraction]) -> list[int]:
    """The values in the largest unit that makes all of them whole.

    >>> whole([Fraction(1, 2), Fraction(3), Fraction(3, 2)])
    [1, 6, 3]
    """
    scale = math.lcm(*(v.denominator for v in values))
    scaled = [int(v * scale) for v in values]
    unit = math.gcd(*scaled) or 1
    return [v // unit for v in scaled]


def capacities(capacity: float | Sequence[float], devices: int) -> list[float]:
    """One capacity per device; a single number stands for all, math.inf for no limit.

    >>> capacities(80, 2)
    [80, 80]
    """
    values = capacity if isinstance(capacity, Sized) else [capacity] * devices
    exact([1 if v == math.inf else v for v in values], "capacity", devices, "device", positive=True)
    return list(values)
