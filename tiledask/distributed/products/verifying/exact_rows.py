"""Rows of a product in float64, and how far from them rounding can be.

A block that is off and has the same bits again is damage that comes again, or rounding.
"""

from itertools import pairwise, product
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.products.verifying.by_signs import (
    GROUP,
    Pieces,
    finfo_of,
    regions_of,
    sources_of,
)
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import Region, extents_of, overlap, within
from tiledask.tile import accumulator
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["ExactRows", "explained"]


class ExactRows:
    """Some rows of C in float64, and how far from them rounding can be at most."""

    def __init__(self, region: Region) -> None:
        self.region, self.depth = region, 0
        self.c, self.sizes = np.zeros((2, *extents_of(region)))

    def begin(self, held: Any) -> None:
        """None; the rows were ``held`` before anything is added."""
        self.c[...] = off_device(held)
        self.sizes[...] = np.abs(self.c)

    def add(self, a: Pieces, b: Pieces) -> None:
        """None, once A @ B of these pieces is added, as far as it is of the rows."""
        rows, columns = self.region[:-1], self.region[-1:]
        for at, x in a:
            if (here := overlap(rows, at[:-1])) is None:
                continue
            x = off_device(x[within(here, at[:-1])]).astype(float)
            for to, y in b:
                cut, deep = overlap(columns, to[1:]), overlap(at[-1:], to[:1])
                if cut is None or deep is None:
                    continue
                into = *within(here, rows), *within(cut, columns)
                self.depth += deep[0][1] - deep[0][0]
                for start, stop in pairwise([*range(*deep[0], GROUP), deep[0][1]]):
                    of_x = x[..., start - at[-1][0] : stop - at[-1][0]]
                    of_y = y[start - to[0][0] : stop - to[0][0], within(cut, to[1:])[0]]
                    of_y = off_device(of_y).astype(float)
                    self.c[into] += of_x @ of_y
                    self.sizes[into] += np.abs(of_x) @ np.abs(of_y)

    def explain(self, found: Any) -> bool:
        """Whether rounding explains how far the rows ``found`` are from these: each of as many
        roundings as there are terms is of half an eps of the sum of all terms' sizes, at most."""
        found = off_device(found)
        wide, given = (finfo_of(np.dtype(t).name) for t in (accumulator(found.dtype), found.dtype))
        most = 2 * (self.depth + 2) * (float(wide.eps) / 2 * self.sizes + float(given.tiny))
        most += float(given.eps) * np.abs(self.c) * (found.dtype.itemsize < 4)
        with np.errstate(invalid="ignore"):
            right = np.abs(found.astype(float) - self.c) <= most
        too_large = ~np.isfinite(found.astype(float)) & (4 * self.sizes > float(given.max))
        return bool((right | too_large | ~np.isfinite(self.c)).all())


def explained(
    plan: ProductPlan, rank: int, rows: Region, arrays: tuple[ShardedArray, ...], timeout: float
) -> bool:
    """Whether ``rows`` of the block of C on ``rank`` are A @ B but for rounding.

    They are computed in float64 in that rank's slot, from the owners' blocks: ``arrays`` are A, B
    and C. Parts travel by Dask, a pair after the other, and are not counted.
    """
    a, b, c = arrays
    (of_a, of_b, of_c), cluster, slots = regions_of(plan), a.mesh.cluster, a.mesh.at
    cut, slot = of_c[rank][-1:], slots[rank]
    state = cluster.submit(slot, ExactRows, (*rows, *cut), name="verify")

    def part(x: ShardedArray, source: int, block: Region, wanted: Region) -> Any:
        return cluster.submit(
            slots[source], _cut, x.blocks[source], block, wanted, name="verify", beside=True
        )

    for source in sources_of(plan, rank):
        for panel in plan.panels[source]:
            for x, y in product(panel.a, panel.b):
                here = overlap(rows, of_a[x.source][:-1])
                there = overlap(cut, of_b[y.source][1:])
                if here is None or there is None:
                    continue
                left, right = (*here, panel.depth), (panel.depth, *there)
                cuts = (
                    part(a, x.source, of_a[x.source], left),
                    part(b, y.source, of_b[y.source], right),
                )
                state = cluster.submit(slot, _add, state, left, right, *cuts, name="verify")
    mine = part(c, rank, of_c[rank], (*rows, *cut))
    said = cluster.submit(slot, ExactRows.explain, state, mine, name="verify")
    (found,) = cluster.gather([said], "computing rows again in float64", timeout, cancel=True)
    return bool(found)


def _cut(block: Any, region: Region, wanted: Region) -> np.ndarray:
    return off_device(block.reshape(extents_of(region))[within(wanted, region)])


def _add(state: ExactRows, left: Region, right: Region, x: Any, y: Any) -> ExactRows:
    state.add([(left, x)], [(right, y)])
    return state
