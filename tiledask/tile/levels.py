"""The bytes that one level of tiles moves: loads and stores of a tiled product, exactly.

           tn                        for every tile of C (tm x tn):
         +----+                        for every step along k:
     tk  | B  |                          load A (tm x tk) and B (tk x tn)
         +----+                        store C once
+----+   +----+
| A  | tm| C  |                     A is loaded ceil(n / tn) times, B ceil(m / tm) times
+----+   +----+
  tk
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["Tile", "TileCount", "TileTraffic", "as_tile", "traffic"]

Tile = tuple[int, int, int]
"""(tm, tn, tk): rows of C, columns of C, and steps along k that one tile covers."""


@dataclass(frozen=True, repr=False)
class TileTraffic:
    """What a tiled product of m x k by k x n moves between two levels of memory.

    Which levels depends on who holds the tile: a GPU's thread block loads from L2 into shared
    memory, a NumPy tile from main memory into the cache.

    >>> t = traffic(4096, 4096, 4096, tile=32, itemsize=4)
    >>> t
    TileTraffic(17.18 GB loaded, 8 FLOP per byte of them, 2097152 tile products of 32x32x32)
    """

    m: int
    n: int
    k: int
    tile: Tile
    itemsize: int  # Bytes of an element of A and B
    tiles: int  # Tile products: (tiles of C) x (steps along k), ragged ones included
    a: int  # Bytes of A loaded
    b: int  # Bytes of B loaded
    c: int  # Bytes of C stored
    c_loaded: int = 0  # Bytes of C loaded: as many as stored if the product is added to it, else 0

    @property
    def loaded(self) -> int:
        """Bytes of A and B loaded."""
        return self.a + self.b

    @property
    def total(self) -> int:
        """Bytes moved: A and B loaded, C stored, and C loaded where it is added to."""
        return self.a + self.b + self.c + self.c_loaded

    @property
    def flops(self) -> int:
        """2 m n k: a multiplication and an addition per element triple."""
        return 2 * self.m * self.n * self.k

    @property
    def intensity(self) -> float:
        """FLOP per byte of A and B loaded, over the whole product; C is not counted.

        2 tm tn / ((tm + tn) itemsize) where the tile divides m and n: of the tile alone, however
        the product around it was cut; below it elsewhere.
        """
        return self.flops / self.loaded

    def __repr__(self) -> str:
        extent = "x".join(map(str, self.tile))
        return (
            f"TileTraffic({format_bytes(self.loaded)} loaded, {self.intensity:.4g} FLOP per byte "
            f"of them, {self.tiles} tile products of {extent})"
        )


@dataclass(frozen=True)
class TileCount:
    """What the tile kernels of several products loaded, each counted as it ran.

    >>> TileCount.of([traffic(4, 4, 4, 2, 4), traffic(4, 4, 8, 2, 4)])
    TileCount(tiles=24, loaded=768, flops=384)
    """

    tiles: int  # Tile products
    loaded: int  # Bytes of A and B
    flops: int

    @classmethod
    def of(cls, counted: Iterable["TileTraffic | TileCount | None"]) -> "TileCount | None":
        """The sum of ``counted``; None if one of them, or nothing at all, was counted."""
        found = list(counted)
        if not found or None in found:
            return None
        sums = (sum(getattr(one, name) for one in found) for name in ("tiles", "loaded", "flops"))
        return cls(*sums)

    @property
    def intensity(self) -> float:
        """FLOP per byte of A and B loaded."""
        return self.flops / self.loaded


def traffic(
    m: int,
    n: int,
    k: int,
    tile: int | Tile,
    itemsize: int,
    accumulate: bool = False,
    out_itemsize: int | None = None,
) -> TileTraffic:
    """The bytes that a tiled product of [m, k] by [k, n] loads and stores, ragged edges exact.

    ``tile`` is (tm, tn, tk) or one number for all three; ``itemsize`` is in bytes, and so is
    ``out_itemsize`` if C's differs; ``accumulate`` counts C as loaded too. Where the tile divides,
    A and B together are itemsize m n k (1/tn + 1/tm). With square tiles that fill a fast memory of
    S elements this is within a constant factor of the least that any order can load (Hong and
    Kung, "I/O complexity: the red-blue pebble game", STOC 1981).

    >>> t = traffic(5, 7, 3, tile=(2, 4, 2), itemsize=4)
    >>> t.a, t.b, t.c, t.tiles
    (120, 252, 140, 12)
    """
    tile = as_tile(tile)
    sizes = {"m": m, "n": n, "k": k, "itemsize": itemsize}
    sizes["out_itemsize"] = itemsize if out_itemsize is None else out_itemsize
    m, n, k, itemsize, out_itemsize = (
        whole_number(name, value, 1, error=KernelError) for name, value in sizes.items()
    )
    rows, columns, steps = (-(-extent // t) for extent, t in zip((m, n, k), tile, strict=True))
    a, b, c = columns * m * k * itemsize, rows * k * n * itemsize, m * n * out_itemsize
    tiles = rows * columns * steps
    return TileTraffic(m, n, k, tile, itemsize, tiles, a, b, c, c if accumulate else 0)


def as_tile(tile: int | Tile) -> Tile:
    """``tile`` as (tm, tn, tk); one number stands for all three.

    >>> as_tile(32), as_tile((64, 64, 8))
    ((32, 32, 32), (64, 64, 8))
    """
    extents = tuple(tile) if isinstance(tile, tuple | list) else (tile,) * 3
    if len(extents) != 3:
        raise KernelError(
            f"a tile has 3 extents (tm, tn, tk), got {len(extents)}: write tile=32 or (32, 32, 8)"
        )
    tm, tn, tk = (
        whole_number(name, extent, 1, error=KernelError)
        for name, extent in zip(("tm", "tn", "tk"), extents, strict=True)
    )
    return tm, tn, tk
