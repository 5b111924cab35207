"""Waves: the tiles of C that run at the same time, their tail, and DRAM's traffic.

    group = 2, 4 slots             the order of tiles, and waves a, b, c of 4 at a time
      0  2  4 | 6  8                 a a b | b c
      1  3  5 | 7  9                 a a b | b c       a touches 2 rows and 2 columns of tiles

What a wave needs of A and B streams along k through L2 once, whoever of the wave uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tiledask.plan.inputs.hardware import Device
from tiledask.plan.units import format_bytes
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.residency import as_device, occupancy
from tiledask.tile.cuda.hopper_tile import cut_along_k
from tiledask.tile.levels import traffic

__all__ = ["DramTraffic", "Waves", "dram_traffic", "raster", "touched", "waves"]


_MOST_WAVES = 5_000
"""Most waves that are walked one by one: about a second."""


def raster(rows: int, columns: int, group: int = 1) -> Iterator[tuple[int, int]]:
    """The tiles (i, j) of C in the order in which blocks take them: down ``group`` rows of tiles,
    then the next column, then the next group.

    >>> list(raster(3, 2, group=2))
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    for top in range(0, rows, group):
        for j in range(columns):
            for i in range(top, min(top + group, rows)):
                yield i, j


@dataclass(frozen=True)
class Waves:
    """Tiles of C over the slots that compute one at a time.

    >>> config = Config("mine", (128, 256, 64), (64, 256), 384, 2, "bf16", registers=168)
    >>> waves(8192, 8192, config, "H200")
    2048 tiles over 132 slots: 15.52 -> 16 waves, the last 52 % full; efficiency 97.0 %
    """

    rows: int
    """Rows of tiles; whole clusters."""
    columns: int
    slots: int
    """Tiles that run at one time: blocks of a multiprocessor, times multiprocessors."""
    multiprocessors: int
    persistent: bool
    cut: int = 0
    """The last tiles, which are cut along k into slices that are shared out as tiles are."""
    splits: int = 1
    """Slices of each of them."""

    @property
    def tiles(self) -> int:
        return self.rows * self.columns

    @property
    def count(self) -> int:
        """Waves, the last one included; a persistent block walks over as many tiles."""
        return -(-self.tiles // self.slots)

    @property
    def tail(self) -> float:
        """The share of slots that the last wave fills."""
        return (self.tiles - (self.count - 1) * self.slots) / self.slots

    @property
    def length(self) -> float:
        """Waves of whole tiles that take as long: `count`, or less where the last are cut."""
        if not self.cut:
            return self.count
        return self.tiles // self.slots + -(-self.cut * self.splits // self.slots) / self.splits

    @property
    def efficiency(self) -> float:
        """Tiles over the slots of all waves."""
        return self.tiles / (self.length * self.slots)

    @property
    def busiest(self) -> float:
        """Tiles that some multiprocessor must compute, however they are assigned."""
        return self.length if self.cut else -(-self.tiles // self.multiprocessors)

    @property
    def stretch(self) -> float:
        """Time over that of a perfect balance, since a tile or slice is not cut; 1 or more."""
        return self.busiest * self.multiprocessors / self.tiles

    def __repr__(self) -> str:
        works = self.tiles + self.cut * (self.splits - 1)
        walk = f"; {min(self.slots, works)} persistent blocks" * self.persistent
        found = f"{self.count} wave{'s' * (self.count > 1)}, the last {100 * self.tail:.0f} % full"
        if self.cut:
            found = f"{self.length:.2f}, the last {self.cut} tiles in {self.splits} slices of k"
        return (
            f"{self.tiles} tiles over {self.slots} slots: {self.tiles / self.slots:.2f} -> "
            f"{found}; efficiency {100 * self.efficiency:.1f} %{walk}"
        )


def waves(m: int, n: int, config: Config, device: Device | str, k: int = 0) -> Waves:
    """The waves in which ``device`` computes the tiles of an [m, n] product.

    Where ``config`` splits, the last tiles are cut as the kernel cuts them for this ``k``.

    >>> from tiledask.tile.choice.configs import config_of
    >>> from tiledask.tile.cuda.hopper_tile import HopperTile
    >>> config = config_of("wgmma_ws_persistent", tile=HopperTile(splits=4))
    >>> waves(1024, 1024, config, "H200", 16384)
    32 tiles over 132 slots: 0.24 -> 0.25, the last 32 tiles in 4 slices of k; efficiency 97.0 %; \
128 persistent blocks
    """
    device = as_device(device)
    (tm, tn, tk), (up, across) = config.block, config.cluster
    rows, columns = -(-m // tm), -(-n // tn)
    team = up * across
    slots = device.multiprocessors * max(1, occupancy(config, device).blocks)
    found = Waves(
        -(-rows // up) * up,
        -(-columns // across) * across,
        max(team, slots // team * team),
        device.multiprocessors,
        config.persistent,
    )
    cuts = cut_along_k(
        found.tiles // team, -(-k // tk), found.slots // team, team * tm * tn * 4, config.splits
    )
    return replace(found, cut=cuts.cut * team, splits=cuts.splits)


@dataclass(frozen=True)
class DramTraffic:
    """What a product loads from the device's memory into L2, counted wave by wave."""

    a: int
    """Bytes of A."""
    b: int
    c: int
    """Bytes of C, stored once."""
    tile: tuple[int, int]
    """Rows and columns of C that share what is loaded: those that the first wave touches."""
    kept: bool
    """Whether a wave found in L2 some of what an earlier wave had loaded."""
    rule: str
    """What was assumed of L2, in a sentence."""

    @property
    def loaded(self) -> int:
        return self.a + self.b


def dram_traffic(
    m: int, n: int, k: int, config: Config, device: Device | str, out_itemsize: int = 0
) -> DramTraffic:
    """The bytes between DRAM and L2 in a product of [m, k] by [k, n], by walking the waves.

    Two rules. Blocks of one wave go along k together: what must live in L2 is one step along k, in
    all its stages, of the rows and columns that the wave touches; if that is too large, every
    cluster loads for itself. A panel (a row of tiles of A, a column of B) that an earlier wave
    used is still there if no more than L2's bytes were touched since (least recently used, whole
    panels; Mattson's stack distance). If L2's size is unknown, waves share within themselves only.
    More than 5,000 waves are not walked: `traffic` of the first wave's tile stands for them all.
    """
    device = as_device(device)
    size, (tm, tn, tk) = config.itemsize, config.block
    schedule = waves(m, n, config, device)
    rows = np.minimum(tm, m - tm * np.arange(-(-m // tm))) * k * size
    columns = np.minimum(tn, n - tn * np.arange(-(-n // tn))) * k * size
    c = m * n * (out_itemsize or size)
    first = touched(0, schedule.slots, len(rows), len(columns), config.group)
    tile = min(m, len(first[0]) * tm), min(n, len(first[1]) * tn)
    step = sum(tile) * min(tk, k) * size * config.stages
    if device.l2_bytes and step > device.l2_bytes:
        alone = traffic(m, n, k, (*config.loaded_together, tk), size)
        return DramTraffic(
            alone.a,
            alone.b,
            c,
            config.loaded_together,
            False,
            f"a wave's step along k is {format_bytes(step)}, more than L2's "
            f"{format_bytes(device.l2_bytes)}: nothing is shared",
        )
    if schedule.count > _MOST_WAVES:
        even = traffic(m, n, k, (*tile, tk), size)
        return DramTraffic(
            even.a,
            even.b,
            c,
            tile,
            False,
            f"{schedule.count} waves are too many to walk: each is taken to be as the first, and "
            f"L2 to keep none from wave to wave",
        )
    cache = _Panels(rows, columns, device.l2_bytes)
    for begin in range(0, len(rows) * len(columns), schedule.slots):
        cache.load(*touched(begin, begin + schedule.slots, len(rows), len(columns), config.group))
    of_a, of_b = cache.loaded
    size_of_l2 = format_bytes(device.l2_bytes) if device.l2_bytes else "an unknown number of bytes"
    return DramTraffic(
        of_a,
        of_b,
        c,
        tile,
        cache.kept,
        f"a wave shares in L2 what it needs, {format_bytes(step)} a step along k; L2 has "
        f"{size_of_l2}, and {'keeps some' if cache.kept else 'keeps none'} from wave to wave",
    )


def touched(
    begin: int, end: int, rows: int, columns: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows and columns of tiles among the tiles begin .. end - 1 of the `raster`."""
    end, whole = min(end, rows * columns), group * columns
    i: list[np.ndarray] = []
    j: list[np.ndarray] = []
    for g in range(begin // whole, -(-end // whole)):
        height = min(group, rows - g * group)
        first, last = max(begin - g * whole, 0), min(end - g * whole, height * columns)
        steps = np.arange(first, min(last, first + height))
        i.append(g * group + steps % height)
        j.append(np.arange(first // height, -(-last // height)))
    return np.unique(np.concatenate(i)), np.unique(np.concatenate(j))


class _Panels:
    """Panels of A and B in L2, and what of them had to be loaded."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray, capacity: int) -> None:
        self.sizes = rows, columns
        self.used = np.full(len(rows), -1), np.full(len(columns), -1)  # in which wave, last
        self.capacity = capacity
        self.loaded = [0, 0]
        self.kept = False
        self._of_wave: list[int] = []  # bytes of the panels that were last used in it
        self._oldest = 0  # all that was used since this wave is in L2 ...
        self._held = 0  # ... and takes so many bytes

    def load(self, *panels: np.ndarray) -> None:
        """Go on by one wave, which uses the rows and the columns of tiles ``panels``."""
        while self._held > self.capacity:
            self._held -= self._of_wave[self._oldest]
            self._oldest += 1
        now = len(self._of_wave)
        self._of_wave.append(0)
        for sizes, used, loaded, mine in zip(self.sizes, self.used, (0, 1), panels, strict=True):
            size, last = sizes[mine], used[mine]
            missing = last < self._oldest  # never used is -1
            self.loaded[loaded] += int(size[missing].sum())
            self._held += int(size[missing].sum())
            self.kept |= not missing.all()
            for wave in np.unique(last[last >= 0]):
                self._of_wave[wave] -= int(size[last == wave].sum())
            used[mine] = now
            self._of_wave[now] += int(size.sum())
