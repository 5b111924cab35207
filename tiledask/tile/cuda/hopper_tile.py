"""How `wgmma_ws_persistent` goes over C: a tile and its ring, in clusters; the choice of one.

Blocks stay for good and take one tile after another, so that a product takes as long as the
multiprocessor with the most tiles. How many those are is counted, not measured.
"""

from typing import NamedTuple

from tiledask.tile.levels import Tile

__all__ = ["RASTER", "WGMMA_TILES", "HopperTile", "chosen"]

WGMMA_TILES: tuple[Tile, ...] = ((128, 256, 64), (128, 128, 64))
RASTER = 8
"""Rows of clusters that are walked column by column (the kernel's own)."""
SHARED_BYTES = 227 * 1024
"""Shared memory of a block of compute capability 9.0 (CUDA C++ Programming Guide, its table)."""


class HopperTile(NamedTuple):
    """A tile and how it is made; a stage is 128 rows of A and the columns of B, 128 bytes each, and
    two barriers.

    >>> HopperTile().stages, HopperTile(staged=False).stages, HopperTile().shared_bytes
    (3, 4, 213040)
    """

    tile: Tile = WGMMA_TILES[0]
    cluster: int = 2
    """Blocks, 1 or 2, one above the other, that share what they load of B."""
    staged: bool = True
    """Whether C leaves through shared memory; it does so only as halves that nobody reads, where
    all of its rows start and end on boundaries of 16 bytes."""

    @property
    def stages(self) -> int:
        """Places in the ring: as many as a block's shared memory holds."""
        return (SHARED_BYTES - self._panels) // self._stage

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring, and C on its way out."""
        return self.stages * self._stage + self._panels

    @property
    def _stage(self) -> int:
        return (128 + self.tile[1]) * 128 + 16

    @property
    def _panels(self) -> int:
        return self.staged * 128 * self.tile[1] * 2


_CYCLES = {256: 1024, 128: 600}
"""Cycles of a tensor core for 64 steps of k, by its columns: 1,024 and 512 by the instructions'
rates, of which the narrow tile, that loads 4/3 as much per product, is supposed to lose some."""
_END = {256: 2000, 128: 1000}
"""Cycles from a tile's last product to the next tile's first; supposed."""
_ALONE = 1.04
"""How much longer a tile takes whose B is not shared in a cluster; supposed."""


def chosen(
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    staged: bool = True,
    tile: Tile | None = None,
) -> HopperTile:
    """The tile and cluster of the least predicted time; of tiles only ``tile`` if given.

    ``staged`` says whether C can leave through shared memory. The time is that of a multiprocessor
    with the most tiles, each of ceil(k / 64) steps and an end. What clusters cannot fill counts:
    with 3 rows of tiles a quarter of them is empty. Where nothing is gained it is the usual one. A
    supposition in numbers, not a measurement.

    >>> chosen(8192, 8192, 8192, 132).cluster, chosen(384, 2**20, 4096, 132).cluster
    (2, 1)
    >>> chosen(1024, 1024, 1024, 132).tile  # 64 tiles for 132 multiprocessors, not 32
    (128, 128, 64)
    """

    def cycles(way: HopperTile) -> float:
        columns = way.tile[1]
        count = -(-m // (128 * way.cluster)) * -(-n // columns)
        rounds = -(-count // max(1, multiprocessors // way.cluster))
        step = _CYCLES[columns] * (_ALONE if way.cluster == 1 else 1)
        return rounds * (-(-k // 64) * step + _END[columns])

    tiles, clusters = WGMMA_TILES if tile is None else (tile,), (2, 1) if m > 128 else (1,)
    return min((HopperTile(t, c, staged) for t in tiles for c in clusters), key=cycles)
