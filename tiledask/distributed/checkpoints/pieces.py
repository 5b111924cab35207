"""What a rank holds of an array: boxes of it, and where in its own array each of them is.

                              0 1 2 3 4 5
TensorSlice  rows 0..2,       . . x x . x        its local array is 2 x 3:   x x x
             columns 2..4, 5  . . x x . x                                    x x x

Flat         numbers 4 .. 9   . . . . x x        its local array is a row:   x x x x x
             row by row       x x x . . .

A TensorSlice is what tensor parallelism cuts; a Flat is what ZeRO shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tiledask.errors import CheckpointError
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.products.regions import Region, TensorSlice, extents_of
from tiledask.plan.products.shards import Shards

__all__ = ["Flat", "TensorSlice", "sharded", "whole"]


@dataclass(frozen=True)
class Flat:
    """Numbers ``start`` .. ``stop`` of an array of ``shape``, row by row; a local array of one axis.

    >>> Flat((2, 6), 4, 9).boxes
    (((0, 1), (4, 6)), ((1, 2), (0, 3)))
    """  # noqa: E501

    shape: tuple[int, ...]
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= prod(self.shape):
            raise CheckpointError(
                f"an array of shape {self.shape} has numbers 0..{prod(self.shape)}, got "
                f"{self.start}..{self.stop}"
            )

    @property
    def local_shape(self) -> tuple[int, ...]:
        return (self.stop - self.start,)

    @property
    def boxes(self) -> tuple[Region, ...]:
        return tuple(_boxes(self.shape, self.start, self.stop))

    def views(self, local: Any) -> Iterator[tuple[Region, Any]]:
        """(box, the view of ``local`` that holds it)."""
        at = 0
        for box in self.boxes:
            size = prod(extents_of(box))
            yield box, local[at : at + size].reshape(extents_of(box))
            at += size


def whole(shape: tuple[int, ...]) -> TensorSlice:
    """All of an array, as each replica holds it.

    >>> whole((4, 6)).boxes
    (((0, 4), (0, 6)),)
    """
    return Tiling(tuple(shape), (), ()).slice(())


def sharded(shape: tuple[int, ...], dim: int, shards: Shards, rank: int) -> TensorSlice:
    """What number ``rank`` holds of an array whose dimension ``dim`` is sharded.

    >>> from tiledask.plan.products.shards import even_shards
    >>> sharded((4, 6), 1, even_shards(6, 4), 3).boxes
    (((0, 4), (5, 6)),)
    """
    if shards.extent != shape[dim]:
        raise CheckpointError(
            f"dimension {dim} of shape {shape} has {shape[dim]} indices, and the shards are of "
            f"{shards.extent}; make them for this dimension"
        )
    return Tiling(tuple(shape), (shards.ranks,), (Shard(dim, shards),)).slice((rank,))


def _boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Region]:
    """Boxes that hold numbers start .. stop row by row, in this order: two for each axis or fewer."""  # noqa: E501
    if start >= stop:
        return
    if len(shape) <= 1:
        yield ((start, stop),) if shape else ()
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # inside of one row
        yield from _in_row(shape, last, start - last * row, stop - last * row)
        return
    yield from _in_row(shape, first - 1, start - (first - 1) * row, row if start % row else 0)
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    yield from _in_row(shape, last, 0, stop - last * row)


def _in_row(shape: tuple[int, ...], at: int, start: int, stop: int) -> Iterator[Region]:
    for box in _boxes(shape[1:], start, stop):
        yield ((at, at + 1), *box)
