"""Waves: the tiles of C that run at the same time, and what they load from DRAM.

    group = 2, 4 slots             the order of tiles, and waves a, b, c of 4 at a time
      0  2  4 | 6  8                 a a b | b c
      1  3  5 | 7  9                 a a b | b c       a touches 2 rows and 2 columns of tiles

What a wave needs of A and B streams along k through L2 once, whoever of the wave uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tiledask.plan.inputs.hardware import Device
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.residency import occupancy
from tiledask.tile.levels import traffic

__all__ = ["Waves", "dram_loads", "raster", "waves"]

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
    """Tiles of C over the slots that compute one at a time."""

    rows: int
    """Rows of tiles; whole clusters."""
    columns: int
    slots: int
    """Tiles that run at one time: blocks of a multiprocessor, times multiprocessors."""
    multiprocessors: int

    @property
    def tiles(self) -> int:
        return self.rows * self.columns

    @property
    def count(self) -> int:
        """Waves, the last one included; a persistent block walks over as many tiles."""
        return -(-self.tiles // self.slots)

    @property
    def stretch(self) -> float:
        """Time over that of a perfect balance, as some multiprocessor computes the most; >= 1."""
        return -(-self.tiles // self.multiprocessors) * self.multiprocessors / self.tiles


def waves(m: int, n: int, config: Config, device: Device) -> Waves:
    """The waves in which ``device`` computes the tiles of an [m, n] product.

    >>> from tiledask.plan.inputs.hardware import load_device
    >>> config = Config("mine", (128, 256, 64), (64, 256), 384, 2, "bf16", registers=168)
    >>> found = waves(8192, 8192, config, load_device("H200"))
    >>> found.tiles, found.slots, found.count
    (2048, 132, 16)
    """
    (tm, tn, _), (up, across) = config.block, config.cluster
    team = up * across
    slots = device.multiprocessors * max(1, occupancy(config, device).blocks)
    return Waves(
        -(-m // (tm * up)) * up,
        -(-n // (tn * across)) * across,
        max(team, slots // team * team),
        device.multiprocessors,
    )


def dram_loads(
    m: int, n: int, k: int, config: Config, device: Device
) -> tuple[tuple[int, int], int, int]:
    """(tile of C that shares what is loaded, bytes of A, bytes of B) between DRAM and L2.

    Two rules. Blocks of one wave go along k together: what must live in L2 is one step along k, in
    all its stages, of the rows and columns that the wave touches; if that is too large, every
    cluster loads for itself. A panel (a row of tiles of A, a column of B) that an earlier wave
    used is still there if no more than L2's bytes were touched since (least recently used, whole
    panels; Mattson's stack distance). If L2's size is unknown, waves share within themselves only.
    More than 5,000 waves are not walked: `traffic` of the first wave's tile stands for them all.
    """
    size, (tm, tn, tk), schedule = config.itemsize, config.block, waves(m, n, config, device)
    rows, columns = -(-m // tm), -(-n // tn)
    tiles = raster(rows, columns, config.group)
    first = list(islice(tiles, schedule.slots))
    tile = min(m, len({i for i, _ in first}) * tm), min(n, len({j for _, j in first}) * tn)
    step = sum(tile) * min(tk, k) * size * config.stages
    if too_large := 0 < device.l2_bytes < step:
        tile = config.loaded_together
    if too_large or schedule.count > _MOST_WAVES:
        even = traffic(m, n, k, (*tile, tk), size)
        return tile, even.a, even.b
    panels = {("a", i): min(tm, m - tm * i) * k * size for i in range(rows)}
    panels |= {("b", j): min(tn, n - tn * j) * k * size for j in range(columns)}
    loaded = _walked(first, tiles, schedule.slots, panels, device.l2_bytes)
    return tile, loaded["a"], loaded["b"]


_Panel = tuple[str, int]
"""A row of tiles of A, or a column of B."""


def _walked(
    wave: list[tuple[int, int]],
    rest: Iterator[tuple[int, int]],
    slots: int,
    size: dict[_Panel, int],
    capacity: int,
) -> dict[str, int]:
    """Bytes loaded of A and B, wave by wave."""
    loaded = {"a": 0, "b": 0}
    held: dict[_Panel, int] = {}
    """The panels in L2, the least recently used first: the wave that used each last."""
    now, full = 0, 0
    while wave:
        while full > capacity:  # all of the oldest wave goes
            oldest = held[next(iter(held))]
            for panel in [panel for panel, used in held.items() if used == oldest]:
                full -= size[panel]
                del held[panel]
        for panel in {("a", i) for i, _ in wave} | {("b", j) for _, j in wave}:
            if held.pop(panel, None) is None:
                loaded[panel[0]] += size[panel]
                full += size[panel]
            held[panel] = now
        wave, now = list(islice(rest, slots)), now + 1
    return loaded
