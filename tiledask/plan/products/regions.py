"""Regions of arrays: which indices somebody holds, wants or writes.

whole array   ((0, 8), (0, 6))       one (start, stop) per dimension
a block       ((4, 8), (0, 3))
what is wanted of it, as the block counts:  ends_within(((4, 6), (1, 3)), block)
"""

from collections.abc import Iterator

__all__ = [
    "Region",
    "around",
    "ends_within",
    "extents_of",
    "overlap",
    "region_size",
    "slices",
    "within",
]

Region = tuple[tuple[int, int], ...]
"""One (start, stop) per dimension of the whole array."""


def extents_of(region: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple([stop - start for start, stop in region])


def region_size(region: Region) -> int:
    """Elements of a region."""
    size = 1
    for start, stop in region:
        size *= stop - start
    return size


def overlap(one: Region, other: Region) -> Region | None:
    """What is in both; None if nothing.

    >>> overlap(((0, 4), (0, 3)), ((2, 6), (1, 9))), overlap(((0, 4),), ((4, 6),))
    (((2, 4), (1, 3)), None)
    """
    both = tuple(
        [(a if a > c else c, b if b < d else d) for (a, b), (c, d) in zip(one, other, strict=True)]
    )
    return both if all(start < stop for start, stop in both) else None


def ends_within(region: Region, block: Region) -> Region:
    """``region`` of the whole array, counted from the start of ``block``."""
    return tuple([(a - start, b - start) for (a, b), (start, _) in zip(region, block, strict=True)])


def slices(region: Region) -> tuple[slice, ...]:
    """``region`` as an index."""
    return tuple([slice(start, stop) for start, stop in region])


def within(region: Region, block: Region) -> tuple[slice, ...]:
    """``region`` of the whole array as an index into ``block``."""
    return slices(ends_within(region, block))


def around(region: Region, hole: Region) -> Iterator[Region]:
    """What of ``region`` lies before and after ``hole``, which is all of it but along one
    dimension; all of it around a hole in which nothing lies.

    >>> list(around(((0, 9), (0, 5)), ((3, 6), (0, 5))))
    [((0, 3), (0, 5)), ((6, 9), (0, 5))]
    """
    if any(start == stop for start, stop in hole):
        yield region
        return
    for d, ((start, stop), (first, last)) in enumerate(zip(region, hole, strict=True)):
        for ends in ((start, first), (last, stop)):
            if ends[0] < ends[1]:
                yield (*region[:d], ends, *region[d + 1 :])
