"""The product of a panel's pieces on one worker: as few local products as can be.

       b0 | b1            pieces of B [k, n]
a0   [ C   C ]            every piece of A [..., k] with every piece of B,
a1   [ C   C ]            each into its place in C
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from tiledask.plan.products.regions import Region, slices, within
from tiledask.tile import TileTraffic
from tiledask.tile.product import accumulate

__all__ = ["Held", "held_of", "matrices", "multiply_panel", "place_in"]

Held = list[tuple[Region, Any]]
"""Pieces of an operand: where each lies in the whole array, and its numbers."""


def held_of(regions: Sequence[tuple[Region, Region]], arrays: Sequence[Any]) -> Held:
    """The pieces that a program's product reads: (which part of what is read, or () for all of it;
    where that lies)."""
    pairs = zip(regions, arrays, strict=True)
    return [(region, x[slices(ends)] if ends else x) for (ends, region), x in pairs]


def multiply_panel(
    a: Held, b: Held, c: Any, region: Region, strip: Region, adds: bool, kernel: str, tile: Any
) -> Iterator[TileTraffic | None]:
    """What each local product loaded, once the ``strip`` of C, which has ``region``, holds A @ B,
    or that was added to it."""
    rows = len(a[0][0]) - 1
    for region_a, x in _cut(a, (*strip[:rows], None)):
        for region_b, y in _cut(b, (None, *strip[rows:])):
            z = c[place_in((*region_a[:-1], *region_b[1:]), region)]
            if y.ndim == 1:
                y, z = y[:, None], z[..., None]
            if x.ndim == 1:
                x, z = x[None], z[None]
            for part, there in matrices(x, z):
                yield accumulate(part, y, there, kernel, tile, beta=float(adds))


def place_in(region: Region, whole: Region) -> tuple[Any, ...]:
    """``region`` as an index that gives a view, of an array without dimensions too."""
    return *within(region, whole), ...


def _cut(pieces: Held, ends: tuple[Any, ...]) -> Iterator[tuple[Region, Any]]:
    """Views of pieces within ``ends``, (start, stop) per dimension or None for all of it."""
    for region, x in pieces:
        both = tuple(
            own if limits is None else (max(own[0], limits[0]), min(own[1], limits[1]))
            for own, limits in zip(region, ends, strict=True)
        )
        if all(start < stop for start, stop in both):
            yield both, x[within(both, region)]


def matrices(x: Any, c: Any) -> Iterator[tuple[Any, Any]]:
    """Views of two dimensions that together are x [..., k] and c [..., n]; nothing is copied."""
    if c.ndim == 2:
        yield x, c
    elif _one_stride(x) and _one_stride(c):
        rows = prod(c.shape[:-1])
        yield x.reshape(rows, x.shape[-1]), c.reshape(rows, c.shape[-1])
    else:
        for inner in zip(x, c, strict=True):
            yield from matrices(*inner)


def _one_stride(x: Any) -> bool:
    """Whether it is equally far from each row to the next, over all dimensions but the last."""
    steps = [(n, s) for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    return all(outer == n * s for (_, outer), (n, s) in pairwise(steps))
