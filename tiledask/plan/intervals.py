"""What is cut evenly, and where parts begin and end: whoever shares out indices does it by this.

10 over 4     0 1 2 | 3 4 5 | 6 7 | 8 9       the first get one more, as of numpy.array_split
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

__all__ = ["Interval", "ends_of", "even", "part_of", "split"]

Interval = tuple[int, int]
"""(start, stop) of indices in the whole dimension."""


def split(start: int, stop: int, parts: int) -> list[Interval]:
    """``parts`` consecutive intervals of start..stop, as even as numpy.array_split makes them.

    >>> split(0, 10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    return [part_of(start, stop, parts, i) for i in range(parts)]


def part_of(start: int, stop: int, parts: int, i: int) -> Interval:
    """Interval ``i`` of ``split``."""
    size, extra = divmod(stop - start, parts)
    i = range(parts)[i]  # IndexError, as of the list, for one that is not there
    first = start + i * size + (i if i < extra else extra)
    return first, first + size + (i < extra)


def ends_of(extents: Iterable[int]) -> list[int]:
    """Where parts of these extents, one behind the other, begin and end.

    >>> ends_of((3, 0, 2))
    [0, 3, 3, 5]
    """
    return [0, *accumulate(extents)]


@lru_cache(4096)
def even(elements: int, n: int) -> tuple[int, ...]:
    """Extents of the intervals of ``split``, from 0."""
    return tuple(stop - start for start, stop in split(0, elements, n))
