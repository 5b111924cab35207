"""Regions of arrays: which indices somebody holds, wants or writes.

whole array   ((0, 8), (0, 6))       one (start, stop) per dimension
a block       ((4, 8), (0, 3))
what is wanted of it, as the block counts:  ends_within(((4, 6), (1, 3)), block)
several blocks        TensorSlice      what a rank holds, one behind the other in its own array
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from typing import Any

from tiledask.errors import CheckpointError
from tiledask.plan.intervals import Interval, ends_of

__all__ = ["Region", "TensorSlice", "around", "ends_within", "extents_of", "overlap"]
__all__ += ["region_size", "slices", "within"]

Region = tuple[tuple[int, int], ...]
"""One (start, stop) per dimension of the whole array."""


def extents_of(region: Region) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in region])


def region_size(region: Region) -> int:
    return prod([stop - start for start, stop in region])


def overlap(one: Region, other: Region) -> Region | None:
    """What is in both; None if nothing."""
    both = tuple(
        [(a if a > c else c, b if b < d else d) for (a, b), (c, d) in zip(one, other, strict=True)]
    )
    return both if all(start < stop for start, stop in both) else None


def ends_within(region: Region, block: Region) -> Region:
    """``region`` of the whole array, counted from the start of ``block``."""
    return tuple([(a - start, b - start) for (a, b), (start, _) in zip(region, block, strict=True)])


def slices(region: Region) -> tuple[slice, ...]:
    return tuple([slice(start, stop) for start, stop in region])


def within(region: Region, block: Region) -> tuple[slice, ...]:
    """``region`` of the whole array as an index into ``block``."""
    return slices(ends_within(region, block))


def around(region: Region, hole: Region) -> Iterator[Region]:
    """What of ``region`` is outside ``hole``, all of it but along one dimension, or nothing."""
    if not region_size(hole):
        yield region
        return
    for d, ((start, stop), (first, last)) in enumerate(zip(region, hole, strict=True)):
        for ends in ((start, first), (last, stop)):
            if ends[0] < ends[1]:
                yield (*region[:d], ends, *region[d + 1 :])


@dataclass(frozen=True)
class TensorSlice:
    """Some indices of a whole array: a tuple of intervals per axis, in the local array's order."""

    shape: tuple[int, ...]
    parts: tuple[tuple[Interval, ...], ...]
    local_shape: tuple[int, ...] = field(init=False, compare=False)
    boxes: tuple[Region, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        ends = zip(self.shape, self.parts, strict=False)
        inside = all(0 <= a < b <= n for n, part in ends for a, b in part)
        if len(self.parts) != len(self.shape) or not inside:
            raise CheckpointError(
                f"a piece of an array of shape {self.shape} has intervals start < stop inside it "
                f"for each axis, () where nothing is held; got {self.parts}"
            )
        local_shape = tuple(sum(b - a for a, b in part) for part in self.parts)
        vars(self).update(local_shape=local_shape, boxes=tuple(product(*self.parts)))

    def views(self, local: Any) -> Iterator[tuple[Region, Any]]:
        """(box, the view of ``local`` that holds it)."""
        ends = [ends_of(stop - start for start, stop in part) for part in self.parts]
        places = product(*([slice(*at) for at in pairwise(each)] for each in ends))
        for box, place in zip(self.boxes, places, strict=True):
            yield box, local[(*place, ...)]  # with ..., of an array without axes a view too
