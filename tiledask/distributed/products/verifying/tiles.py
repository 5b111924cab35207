"""Is a tile C the sum of the panels that were multiplied? By Freivalds, as they come.

    A panel, B panel     C += A panel @ B panel      e += A panel @ (B panel @ w)
    the tile is done                                 C @ w against e, row by row

w are random signs. What is compared comes from the same panels, in the memory of the same process:
this sees what went wrong in the product and in C. (Where blocks come from other workers, see
by_signs.py.)
"""

import secrets
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.distributed.products.verifying.by_signs import SAFETY, Pieces, finfo_of
from tiledask.distributed.products.verifying.exact_rows import ExactRows
from tiledask.plan.products.regions import Region, extents_of, overlap, within
from tiledask.tile import accumulator
from tiledask.tile.backend import array_namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["RowCheck", "TileCheck", "TileChecks"]

PARTS = 4
"""Parts of a panel whose sums say how large its terms are."""


class TileCheck:
    """What a line that multiplies tells it of its tile, and whether that is right."""

    def __init__(self) -> None:
        self.region: Region | None = None

    def begin(self, region: Region, c: Any, adds: bool) -> None:
        """None; before a panel is multiplied for the tile ``c``, which holds a sum if it ``adds``
        to that."""
        if region == self.region and adds:
            return
        self.region, self.depth = region, 0
        bits = np.random.default_rng(secrets.randbits(32)).integers(0, 2, extents_of(region[-1:]))
        self.w = (2 * bits - 1).astype(np.float32)
        held = self._times(c) if adds else np.zeros(extents_of(region[:-1]))
        self.expected, self.squares = held, held**2

    def add(self, a: Pieces, b: Pieces) -> None:
        """None; the pieces of a panel were multiplied."""
        region = self.region
        assert region is not None
        for at, x in a:
            rows = within(at[:-1], region[:-1])
            for to, y in b:
                if (both := overlap(at[-1:], to[:1])) is None:
                    continue
                ((start, stop),) = both
                signs = self.w[within(to[1:], region[-1:])]
                of_a = x[..., start - at[-1][0] : stop - at[-1][0]]
                of_b = y[start - to[0][0] : stop - to[0][0]]
                self.depth += stop - start
                for first, last in _parts(stop - start):
                    part = _product(of_a[..., first:last], of_b[first:last], signs)
                    with np.errstate(over="ignore", invalid="ignore"):
                        self.expected[rows] += part
                        self.squares[rows] += part * part

    def off(self, c: Any) -> Region | None:
        """The row of the tile ``c`` that is further off than rounding is; None if none is."""
        wide = accumulator(c.dtype)
        about, size = finfo_of(wide.name), off_device(c).astype(wide, copy=False)
        least = SAFETY * (self.depth + 1) * len(self.w) * float(about.tiny)
        with np.errstate(invalid="ignore", over="ignore"):
            norm = np.einsum("...n,...n->...", size, size, dtype=float)
            large = np.sqrt(np.where(np.isfinite(norm), norm, 0.0) + self.squares)
            usual = SAFETY * float(about.eps) / 2 * np.sqrt(self.depth + 16) * large + least
            off = np.abs(self._times(c) - self.expected) / usual
            # what overflows, or comes of what is not finite, nothing can be said of
            said = np.isfinite(self.expected)
            said &= 64 * large * np.sqrt(self.depth + 1) < float(about.max)
        off = np.where(said, np.where(np.isnan(off), np.inf, off), 0.0)
        if not off.size or off.max() <= 1.0:
            return None
        region, at = self.region, np.unravel_index(int(off.argmax()), off.shape)
        assert region is not None
        begins = (start + int(i) for i, (start, _) in zip(at, region[:-1], strict=True))
        found = ((begin, begin + 1) for begin in begins)
        return *found, region[-1]

    def _times(self, c: Any) -> np.ndarray:
        xp, wide = array_namespace(c), accumulator(c.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            found: np.ndarray = off_device(c.astype(wide, copy=False) @ xp.asarray(self.w, wide))
        return found.astype(float)


class RowCheck(TileCheck):
    """The same for one row of one tile, in float64: whether rounding explains how far it is off."""

    def __init__(self, tile: Region, row: Region) -> None:
        self.tile, self.row = tile, row
        self.region, self.exact = None, ExactRows(row)

    def begin(self, region: Region, c: Any, adds: bool) -> None:
        begins, self.region = region != self.region, region
        if adds and begins and region == self.tile:
            self.exact.begin(c[within(self.row, region)])

    def add(self, a: Pieces, b: Pieces) -> None:
        if self.region == self.tile:
            self.exact.add(a, b)

    def off(self, c: Any) -> Region | None:
        if self.region != self.tile:
            return None
        return None if self.exact.explain(c[within(self.row, self.tile)]) else self.row


class TileChecks(TileCheck):
    """`TileCheck` of all tiles but those of ``rows``, which are looked at in float64."""

    def __init__(self, rows: Iterable[RowCheck]) -> None:
        self.region, self.all = None, TileCheck()
        self.rows = {row.tile: row for row in rows}

    @property
    def one(self) -> TileCheck:
        """The check of the tile that is multiplied."""
        return self.rows.get(self.region, self.all) if self.region else self.all

    def begin(self, region: Region, c: Any, adds: bool) -> None:
        self.region = region
        self.one.begin(region, c, adds)

    def add(self, a: Pieces, b: Pieces) -> None:
        self.one.add(a, b)

    def off(self, c: Any) -> Region | None:
        return self.one.off(c)


def _product(x: Any, y: Any, signs: np.ndarray) -> np.ndarray:
    xp, wide = array_namespace(x), accumulator(x.dtype)
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        found: np.ndarray = off_device(x @ (y @ xp.asarray(signs, wide)))
    return found.astype(float)


def _parts(depth: int) -> list[tuple[int, int]]:
    ends = sorted({depth * part // PARTS for part in range(PARTS + 1)})
    return list(pairwise(ends))
