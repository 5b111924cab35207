"""How `wgmma_ws_persistent` goes over C: a tile and its ring, clusters, the raster, slices of k.

Blocks stay for good and take one tile after another, so that a product takes as long as the
multiprocessor with the most tiles. How many those are is counted, not measured. The last tiles, too
few for all, may be cut along k: slices are shared out as tiles are, and what they sum is added up.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from tiledask.errors import KernelError
from tiledask.tile import levels
from tiledask.tile.levels import Tile

__all__ = [
    "WGMMA_TILES",
    "AnyTile",
    "HopperTile",
    "Slices",
    "as_tile",
    "chosen",
    "cut_along_k",
    "hopper_tiles",
    "memory_of",
    "most_partials",
    "named",
    "slices",
    "wgmma_memory",
]

WGMMA_TILES: tuple[Tile, ...] = ((128, 256, 64), (128, 128, 64))

SHARED_BYTES = 227 * 1024
"""Shared memory of a block of compute capability 9.0 (CUDA C++ Programming Guide, its table)."""
_NAME = re.compile(
    r"128x(\d+)x64-s(\d)-c([12])-r(\d+)(-direct)?(?:-p(\d))?(?:-b(\d+))?(?:-k(\d+))?"
)


@dataclass(frozen=True)
class HopperTile:
    """A tile of `wgmma_ws_persistent` and all that can be said of how it is made.

    Goes where a tile goes: ``td.tile.matmul(a, b, "wgmma_ws_persistent", tile=HopperTile())``.

    >>> HopperTile(), HopperTile((128, 128, 64), staged=False, blocks=128).name
    (HopperTile('128x256x64-s3-c2-r8'), '128x128x64-s7-c2-r8-direct-b128')
    """

    tile: Tile = WGMMA_TILES[0]
    stages: int = 0
    """Places in the ring; 0 for as many as a block's shared memory holds."""
    cluster: int = 2
    """Blocks, 1 or 2, one above the other, that share what they load of B."""
    raster: int = 8
    """Rows of clusters that are walked column by column."""
    staged: bool = True
    """Whether C leaves through shared memory; where not all of its rows start and end on boundaries
    of 16 bytes it leaves directly all the same."""
    blocks: int = 0
    """Most blocks at a time; 0 for one per multiprocessor."""
    panels: int = 0
    """Rooms for 64 columns of halves, or 32 of float32, that C leaves through; 0 for a tile of
    halves. With fewer it leaves in several passes, and there may be another stage."""
    splits: int = 1
    """Slices along k of each of the last tiles, where these are too few for all blocks; 1 for none.
    Fewer where k has fewer steps of 64, or partial sums would take more than `PARTIAL_BYTES`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tuple(self.tile))
        if self.tile not in WGMMA_TILES:
            built = " or ".join(map(str, WGMMA_TILES))
            raise KernelError(f"wgmma_ws_persistent is built for tiles of {built}, got {self.tile}")
        whole = self.tile[1] // 64
        object.__setattr__(self, "panels", (self.panels or whole) if self.staged else 0)
        if self.panels < 0 or (self.staged and whole % self.panels):
            raise KernelError(
                f"panels must divide the {whole} of a tile of {self.tile}, got {self.panels}; "
                f"leave it out for all of them"
            )
        most = _stages(self.tile[1], self.panels)
        object.__setattr__(self, "stages", self.stages or most)
        if not 2 <= self.stages <= most:
            raise KernelError(
                f"a block's {SHARED_BYTES} bytes of shared memory hold 2 to {most} stages of "
                f"{self.tile}{' and C' if self.staged else ''}, got {self.stages}; leave it out "
                f"for the most"
            )
        if self.cluster not in (1, 2) or min(self.raster, self.splits) < 1 or self.blocks < 0:
            raise KernelError(
                f"cluster is 1 or 2, raster and splits 1 or more, blocks 0 or more, got "
                f"{self.cluster}, {self.raster}, {self.splits}, {self.blocks}"
            )

    @property
    def name(self) -> str:
        """All of it in a word, from which `named` makes it again."""
        tail = "" if self.staged else "-direct"
        tail += f"-p{self.panels}" if self.staged and self.panels != self.tile[1] // 64 else ""
        tail += f"-b{self.blocks}" if self.blocks else ""
        tail += f"-k{self.splits}" if self.splits > 1 else ""
        by = "x".join(map(str, self.tile))
        return f"{by}-s{self.stages}-c{self.cluster}-r{self.raster}{tail}"

    def at_once(self, multiprocessors: int) -> int:
        """Clusters that a device of so many computes at a time."""
        blocks = min(multiprocessors, self.blocks or multiprocessors)
        return max(1, blocks // self.cluster)

    def __repr__(self) -> str:
        return f"HopperTile({self.name!r})"


AnyTile = Tile | HopperTile
"""A tile as some kernel takes it."""


def named(name: str) -> HopperTile:
    """The one of that name.

    >>> named("128x256x64-s4-c1-r16-direct").staged
    False
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise KernelError(f"such a name is for example {HopperTile().name!r}, got {name!r}")
    columns, stages, cluster, raster, direct, panels, blocks, splits = found.groups()
    return HopperTile(
        (128, int(columns), 64),
        int(stages),
        int(cluster),
        int(raster),
        not direct,
        int(blocks or 0),
        int(panels or 0),
        int(splits or 1),
    )


def as_tile(tile: int | str | AnyTile) -> AnyTile:
    """``tile`` as (tm, tn, tk), or as a HopperTile if it is one or the name of one."""
    if isinstance(tile, str):
        return named(tile)
    return tile if isinstance(tile, HopperTile) else levels.as_tile(tile)


def hopper_tiles() -> dict[str, HopperTile]:
    """What is worth measuring, by name, what differs most from the usual one first.

    Each tile directly or through shared memory, alone or in clusters, with its deepest ring; then
    each with its last tiles in slices; the usual one with other rasters, more and fewer stages, and
    128 blocks.

    >>> len(hopper_tiles()), next(iter(hopper_tiles()))
    (20, '128x256x64-s3-c2-r8')
    """
    ways = [
        HopperTile(tile, cluster=cluster, staged=staged)
        for tile, staged, cluster in product(WGMMA_TILES, (True, False), (2, 1))
    ]
    ways += [HopperTile(tile, splits=splits) for splits, tile in product((2, 4), WGMMA_TILES)]
    ways += [HopperTile(raster=raster) for raster in (4, 16, 32)]
    ways += [HopperTile(panels=2), HopperTile(panels=1)]  # with a fourth stage
    ways += [HopperTile(blocks=128), HopperTile(stages=2), HopperTile(staged=False, raster=16)]
    return {way.name: way for way in ways}


def wgmma_memory(columns: int, staged: int) -> tuple[int, int]:
    """(stages, bytes of shared memory) of `wgmma_ws_persistent`: as many stages as a block holds.

    A stage is 128 rows of A and ``columns`` of B, 128 bytes each, and two barriers; C goes through
    shared memory if ``staged``.

    >>> wgmma_memory(256, staged=1), wgmma_memory(256, staged=0)
    ((3, 213040), (4, 196672))
    """
    panels = staged * columns // 64
    stages = _stages(columns, panels)
    return stages, memory_of(columns, stages, panels)


def memory_of(columns: int, stages: int, panels: int) -> int:
    """Bytes of shared memory of so many stages, and panels of 128 rows of 128 bytes.

    >>> memory_of(256, 4, 2), memory_of(256, 4, 2) <= SHARED_BYTES
    (229440, True)
    """
    return stages * _stage(columns) + panels * 128 * 128


def _stages(columns: int, panels: int) -> int:
    return (SHARED_BYTES - panels * 128 * 128) // _stage(columns)


def _stage(columns: int) -> int:
    return (128 + columns) * 128 + 16


# -- slices along k --------------------------------------------------------------------------------

PARTIAL_BYTES = 2**25
"""The most that partial sums may take: L2 holds them, and what is multiplied beside them."""
COUNTER_BYTES = 2 * 4
"""Of the counters of a block's tile that is cut, one for each warp group that multiplies."""


class Slices(NamedTuple):
    """How many tiles of clusters are computed whole, and how the others after them are cut."""

    whole: int
    cut: int
    splits: int
    """Slices of each tile that is cut."""

    @property
    def works(self) -> int:
        """What clusters take one after another."""
        return self.whole + self.cut * self.splits

    def rounds(self, at_once: int) -> tuple[int, int]:
        """Whole tiles, and slices, that the busiest of so many clusters computes."""
        return -(-self.whole // at_once), -(-self.cut * self.splits // at_once)

    def partials(self, columns: int, cluster: int) -> int:
        """Bytes of float32 of all slices, whole tiles of clusters at C's edges too."""
        return self.cut * self.splits * cluster * _sums(columns)


def slices(tiles: int, k: int, way: HopperTile, multiprocessors: int) -> Slices:
    """How ``tiles`` of clusters are cut: those of the last round, where they do not fill it.

    >>> slices(16, 16384, HopperTile(splits=4), 132), slices(100, 4096, HopperTile(splits=3), 132)
    (Slices(whole=0, cut=16, splits=4), Slices(whole=66, cut=34, splits=3))
    """
    at_once = way.at_once(multiprocessors)
    return cut_along_k(tiles, -(-k // 64), at_once, way.cluster * _sums(way.tile[1]), way.splits)


def cut_along_k(tiles: int, steps: int, at_once: int, nbytes: int, splits: int) -> Slices:
    """The same of any tiles, of so many steps and bytes of float32 each, ``at_once`` at a time."""
    cut = tiles % at_once
    splits = min(splits, steps, PARTIAL_BYTES // (max(cut, 1) * nbytes))
    return Slices(tiles - cut, cut, splits) if cut and splits > 1 else Slices(tiles, 0, 1)


def _sums(columns: int) -> int:
    return 128 * columns * 4


# -- the choice ----------------------------------------------------------------------------------

_CYCLES = {256: 1024, 128: 600}
"""Cycles of a tensor core for 64 steps of k, by its columns: 1,024 and 512 by the instructions'
rates, of which the narrow tile, that loads 4/3 as much per product, is supposed to lose some."""
_END = {256: 2000, 128: 1000}
"""Cycles from a tile's last product to the next tile's first; supposed."""
_ALONE = 1.04
"""How much longer a tile takes whose B is not shared in a cluster; supposed."""
_L2_BYTES = 38
"""Of partial sums a cycle, into L2 or out of it, by one multiprocessor: 5,120 shared by 132."""
_MOST_SPLITS, _LEAST_STEPS = 16, 4
"""Slices that are thought of, and steps of k of each; with fewer none pays."""
_GAIN = 0.05
"""The share of the time that a split must be predicted to save; suppositions are off by some."""


def _tiles(m: int, n: int, batches: int, way: HopperTile) -> int:
    return -(-m // (128 * way.cluster)) * -(-n // way.tile[1]) * batches


def chosen(
    m: int,
    n: int,
    k: int,
    batches: int,
    multiprocessors: int,
    staged: bool = True,
    tile: Tile | None = None,
) -> HopperTile:
    """The tile, cluster and splits of the least predicted time; of tiles only ``tile`` if given.

    ``staged`` says whether C can leave through shared memory.

    The time is that of a multiprocessor with the most tiles, each of ceil(k / 64)
    steps and an end. What clusters cannot fill counts: with 3 rows of tiles a quarter of them is
    empty. Of tiles that are cut each slice has fewer steps, and its partial sums to write; who ends
    last reads those of all. Where nothing is gained it is the usual one, and no tile is cut unless
    that saves 5 %. A supposition in numbers, not a measurement: `hopper_tiles` are what to measure.

    >>> chosen(8192, 8192, 8192, 1, 132), chosen(384, 2**20, 4096, 1, 132)
    (HopperTile('128x256x64-s3-c2-r8'), HopperTile('128x256x64-s3-c1-r8'))
    >>> chosen(1024, 1024, 1024, 1, 132)  # 64 tiles for 132 multiprocessors, not 32
    HopperTile('128x128x64-s6-c2-r8')
    >>> chosen(1024, 1024, 16384, 1, 132)  # twice as many as that, of half of k
    HopperTile('128x128x64-s6-c2-r8-k2')
    """
    tiles = WGMMA_TILES if tile is None else (tile,)
    clusters = (2, 1) if m > 128 else (1,)
    ways = [HopperTile(t, cluster=c, staged=staged) for t in tiles for c in clusters]
    costs = [_Cost(_tiles(m, n, batches, way), k, way, multiprocessors) for way in ways]
    least, best, splits = min((cost.cycles(1), i, 1) for i, cost in enumerate(costs))
    least *= 1 - _GAIN
    for i, cost in enumerate(costs):
        if cost.at_best < least:
            for tried in cost.tried:
                if (cycles := cost.cycles(tried)) < least:
                    least, best, splits = cycles, i, tried
    return ways[best] if splits == 1 else replace(ways[best], splits=splits)


class _Cost:
    """Cycles of the busiest multiprocessor."""

    def __init__(self, tiles: int, k: int, way: HopperTile, multiprocessors: int) -> None:
        columns = way.tile[1]
        self.tiles, self.steps, self.at_once = tiles, -(-k // 64), way.at_once(multiprocessors)
        self.step = _CYCLES[columns] * (_ALONE if way.cluster == 1 else 1)
        self.end, self.bytes = _END[columns], way.cluster * _sums(columns)
        self.moved = _sums(columns) / _L2_BYTES
        """Of a block's partial sums, one way."""

    def cycles(self, splits: int) -> float:
        if splits == 1:
            return -(-self.tiles // self.at_once) * (self.steps * self.step + self.end)
        found = cut_along_k(self.tiles, self.steps, self.at_once, self.bytes, splits)
        whole, cut = found.rounds(self.at_once)
        cycles = whole * (self.steps * self.step + self.end)
        if cut:
            cycles += cut * (-(-self.steps // found.splits) * self.step + self.end + self.moved)
            cycles += found.splits * self.moved
        return cycles

    @property
    def at_best(self) -> float:
        """What no split undercuts: the last tiles shared out evenly, and two slices of each."""
        whole, cut = divmod(self.tiles, self.at_once)
        if not cut:
            return self.cycles(1)
        work = (whole + cut / self.at_once) * self.steps * self.step
        return work + (whole + 1) * self.end + 3 * self.moved

    @property
    def tried(self) -> range:
        return range(2, min(_MOST_SPLITS, self.steps // _LEAST_STEPS) + 1)


def most_partials(m: int, n: int, k: int, tile: AnyTile | None) -> int:
    """Bytes at most that a product allocates where k is split, on whatever GPU.

    Partial sums and counters: of a HopperTile those of its splits; else of such as may be chosen,
    which are those that pay for themselves where all slices run at once.

    >>> most_partials(1024, 1024, 16384, None), most_partials(1024, 1024, 1024, None)
    (33554944, 0)
    """
    split = {tile: tile.splits} if isinstance(tile, HopperTile) else _paying(k, tile)
    found = 0
    for way, splits in split.items():
        if (splits := min(splits, -(-k // 64))) > 1:
            tiles, each = _tiles(m, n, 1, way), way.cluster * _sums(way.tile[1])
            cut = min(tiles, PARTIAL_BYTES // (2 * each))
            partials = min(tiles * splits * each, PARTIAL_BYTES)
            found = max(found, partials + cut * way.cluster * COUNTER_BYTES)
    return found


@lru_cache(1024)
def _paying(k: int, tile: Tile | None) -> dict[HopperTile, int]:
    """The most slices that can pay for themselves, of each way to choose among; 1 if none do."""
    tiles = WGMMA_TILES if tile is None else (tile,)
    ways = [HopperTile(t, cluster=c) for t, c in product(tiles, (2, 1))]
    costs = [_Cost(1, k, way, 10**6) for way in ways]  # all slices at once
    return {
        way: next((s for s in reversed(cost.tried) if cost.cycles(s) < cost.cycles(1)), 1)
        for way, cost in zip(ways, costs, strict=True)
    }
