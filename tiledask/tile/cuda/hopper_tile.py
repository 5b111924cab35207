"""How `wgmma_ws_persistent` goes over C: a tile and its ring, in clusters; the choice of one.

Blocks stay for good and take one tile after another, so that a product takes as long as the
multiprocessor with the most tiles. How many those are is counted, not measured.
"""

from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.tile import levels
from tiledask.tile.levels import Tile

__all__ = ["RASTER", "WGMMA_TILES", "AnyTile", "HopperTile", "as_tile", "chosen", "wgmma_memory"]

WGMMA_TILES: tuple[Tile, ...] = ((128, 256, 64), (128, 128, 64))
RASTER = 8
"""Rows of clusters that are walked column by column (the kernel's own)."""
SHARED_BYTES = 227 * 1024
"""Shared memory of a block of compute capability 9.0 (CUDA C++ Programming Guide, its table)."""


@dataclass(frozen=True)
class HopperTile:
    """A tile of `wgmma_ws_persistent` and how it is made.

    Goes where a tile goes: ``td.tile.matmul(a, b, "wgmma_ws_persistent", tile=HopperTile())``.

    >>> HopperTile(), HopperTile((128, 128, 64), staged=False).stages
    (HopperTile(tile=(128, 256, 64), stages=3, cluster=2, staged=True), 7)
    """

    tile: Tile = WGMMA_TILES[0]
    stages: int = 0
    """Places in the ring; 0 for as many as a block's shared memory holds."""
    cluster: int = 2
    """Blocks, 1 or 2, one above the other, that share what they load of B."""
    staged: bool = True
    """Whether C leaves through shared memory; it does so only as halves that nobody reads, where
    all of its rows start and end on boundaries of 16 bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tuple(self.tile))
        if self.tile not in WGMMA_TILES:
            built = " or ".join(map(str, WGMMA_TILES))
            raise KernelError(f"wgmma_ws_persistent is built for tiles of {built}, got {self.tile}")
        most, _ = wgmma_memory(self.tile[1], self.staged)
        object.__setattr__(self, "stages", self.stages or most)
        if not 2 <= self.stages <= most or self.cluster not in (1, 2):
            raise KernelError(
                f"a block's {SHARED_BYTES} bytes of shared memory hold 2 to {most} stages of "
                f"{self.tile}{' and C' if self.staged else ''}, and a cluster is 1 or 2 blocks, "
                f"got {self.stages} and {self.cluster}; leave them out"
            )

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring, and C on its way out."""
        return self.stages * _stage(self.tile[1]) + self.staged * _panels(self.tile[1])


AnyTile = Tile | HopperTile
"""A tile as some kernel takes it."""


def as_tile(tile: int | AnyTile) -> AnyTile:
    """``tile`` as (tm, tn, tk), or itself if it is a HopperTile."""
    return tile if isinstance(tile, HopperTile) else levels.as_tile(tile)


def wgmma_memory(columns: int, staged: bool) -> tuple[int, int]:
    """(stages, bytes of shared memory) of `wgmma_ws_persistent`: as many stages as a block holds.

    A stage is 128 rows of A and ``columns`` of B, 128 bytes each, and two barriers; C goes through
    shared memory if ``staged``.

    >>> wgmma_memory(256, staged=True), wgmma_memory(256, staged=False)
    ((3, 213040), (4, 196672))
    """
    panels = staged * _panels(columns)
    stages = (SHARED_BYTES - panels) // _stage(columns)
    return stages, stages * _stage(columns) + panels


def _stage(columns: int) -> int:
    return (128 + columns) * 128 + 16


def _panels(columns: int) -> int:
    return 128 * columns * 2


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
    batches: int,
    multiprocessors: int,
    staged: bool = True,
    tile: Tile | None = None,
) -> HopperTile:
    """The tile and cluster of the least predicted time; of tiles only ``tile`` if given.

    ``staged`` says whether C can leave through shared memory. The time is that of a multiprocessor
    with the most tiles, each of ceil(k / 64) steps and an end. What clusters cannot fill counts:
    with 3 rows of tiles a quarter of them is empty. Where nothing is gained it is the usual one. A
    supposition in numbers, not a measurement.

    >>> chosen(8192, 8192, 8192, 1, 132).cluster, chosen(384, 2**20, 4096, 1, 132).cluster
    (2, 1)
    >>> chosen(1024, 1024, 1024, 1, 132).tile  # 64 tiles for 132 multiprocessors, not 32
    (128, 128, 64)
    """
    tiles = WGMMA_TILES if tile is None else (tile,)
    clusters = (2, 1) if m > 128 else (1,)

    def cycles(way: HopperTile) -> float:
        columns = way.tile[1]
        count = -(-m // (128 * way.cluster)) * -(-n // columns) * batches
        rounds = -(-count // max(1, multiprocessors // way.cluster))
        step = _CYCLES[columns] * (_ALONE if way.cluster == 1 else 1)
        return rounds * (-(-k // 64) * step + _END[columns])

    return min(
        (HopperTile(t, cluster=c, staged=staged) for t in tiles for c in clusters), key=cycles
    )
