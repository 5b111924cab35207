"""Is a tile C the sum of the panels that were multiplied? By Freivalds, as they come.

    A panel, B panel     C += A panel @ B panel      e += A panel @ (B panel @ w)
    the tile is done                                 C @ w against e, row by row

w are random signs. What is compared comes from the same panels, in the memory of the same process:
this sees what went wrong in the product and in C. (Where blocks come from other workers, see
verify.py.)
"""

import secrets
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.distributed.products.verify import SAFETY, finfo_of
from tiledask.plan.products.regions import Region, extents_of, overlap, within
from tiledask.tile import accumulator
from tiledask.tile.backend import array_namespace
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["TileCheck"]

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

    def add(self, a: list[tuple[Region, Any]], b: list[tuple[Region, Any]]) -> None:
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
                    self.expected[rows] += part
                    self.squares[rows] += part * part

    def off(self, c: Any) -> str:
        """ "" if the tile ``c`` is right; "usual" if it is further off than rounding is, "most" if
        further than that can be."""
        wide = accumulator(c.dtype)
        about, size = finfo_of(wide.name), off_device(c).astype(wide, copy=False)
        unit, least = (
            float(about.eps) / 2,
            float(about.tiny) * SAFETY * (self.depth + 1) * len(self.w),
        )
        with np.errstate(invalid="ignore", over="ignore"):
            norm = np.einsum("...n,...n->...", size, size, dtype=float)
            large = np.sqrt(np.where(np.isfinite(norm), norm, 0.0) + self.squares)
            difference = np.abs(self._times(c) - self.expected)
            usual = SAFETY * unit * np.sqrt(self.depth + 16) * large + least
            most = 4 * SAFETY * unit * (self.depth + 16) ** 1.5 * large + least
            # what overflows, or comes of what is not finite, nothing can be said of
            said = np.isfinite(self.expected) & (64 * large * (self.depth + 1) < float(about.max))
        if (said & ~(difference <= most)).any():
            return "most"
        return "usual" if (said & ~(difference <= usual)).any() else ""

    def _times(self, c: Any) -> np.ndarray:
        xp, wide = array_namespace(c), accumulator(c.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            found: np.ndarray = off_device(c.astype(wide, copy=False) @ xp.asarray(self.w, wide))
        return found.astype(float)


def _product(x: Any, y: Any, signs: np.ndarray) -> np.ndarray:
    xp, wide = array_namespace(x), accumulator(x.dtype)
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        found: np.ndarray = off_device(x @ (y @ xp.asarray(signs, wide)))
    return found.astype(float)


def _parts(depth: int) -> list[tuple[int, int]]:
    ends = sorted({depth * part // PARTS for part in range(PARTS + 1)})
    return list(pairwise(ends))
