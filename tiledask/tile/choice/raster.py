"""Waves: the tiles of C that run at the same time, their tail, and DRAM's traffic.

    group = 2, 4 slots             the order of tiles, and waves a, b, c of 4 at a time
      0  2  4 | 6  8                 a a b | b c
      1  3  5 | 7  9                 a a b | b c       a touches 2 rows and 2 columns of tiles

What a wave needs of A and B streams along k through L2 once, whoever of the wave uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tiledask.plan.inputs.hardware import Device
from tiledask.plan.units import format_bytes
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.residency import as_device, occupancy
from tiledask.tile.levels import traffic

__all__ = ["DramTraffic", "Waves", "dram_traffic", "raster", "waves"]

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
    def efficiency(self) -> float:
        """Tiles over the slots of all waves."""
        return self.tiles / (self.count * self.slots)

    @property
    def stretch(self) -> float:
        """Time over that of a perfect balance, as some multiprocessor computes the most; >= 1."""
        return -(-self.tiles // self.multiprocessors) * self.multiprocessors / self.tiles

    def __repr__(self) -> str:
        walk = f"; {min(self.slots, self.tiles)} persistent blocks" * self.persistent
        found = f"{self.count} wave{'s' * (self.count > 1)}, the last {100 * self.tail:.0f} % full"
        return (
            f"{self.tiles} tiles over {self.slots} slots: {self.tiles / self.slots:.2f} -> "
            f"{found}; efficiency {100 * self.efficiency:.1f} %{walk}"
        )


def waves(m: int, n: int, config: Config, device: Device | str) -> Waves:
    """The waves in which ``device`` computes the tiles of an [m, n] product."""
    device = as_device(device)
    (tm, tn, _), (up, across) = config.block, config.cluster
    team = up * across
    slots = device.multiprocessors * max(1, occupancy(config, device).blocks)
    return Waves(
        -(-m // (tm * up)) * up,
        -(-n // (tn * across)) * across,
        max(team, slots // team * team),
        device.multiprocessors,
        config.persistent,
    )


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


def dram_traffic(m: int, n: int, k: int, config: Config, device: Device | str) -> DramTraffic:
    """The bytes between DRAM and L2 in a product of [m, k] by [k, n], by walking the waves.

    Two rules. Blocks of one wave go along k together: what must live in L2 is one step along k, in
    all its stages, of the rows and columns that the wave touches; if that is too large, every
    cluster loads for itself. A panel (a row of tiles of A, a column of B) that an earlier wave
    used is still there if no more than L2's bytes were touched since (least recently used, whole
    panels; Mattson's stack distance). If L2's size is unknown, waves share within themselves only.
    More than 5,000 waves are not walked: `traffic` of the first wave's tile stands for them all.
    """
    device, size, (tm, tn, tk) = as_device(device), config.itemsize, config.block
    schedule, c = waves(m, n, config, device), m * n * size
    rows, columns = -(-m // tm), -(-n // tn)
    tiles = raster(rows, columns, config.group)
    first = list(islice(tiles, schedule.slots))
    tile = min(m, len({i for i, _ in first}) * tm), min(n, len({j for _, j in first}) * tn)
    step = sum(tile) * min(tk, k) * size * config.stages
    of_step, of_l2 = format_bytes(step), format_bytes(device.l2_bytes)
    if device.l2_bytes and step > device.l2_bytes:
        alone = traffic(m, n, k, (*config.loaded_together, tk), size)
        rule = f"a wave's step along k is {of_step}, more than L2's {of_l2}: nothing is shared"
        return DramTraffic(alone.a, alone.b, c, config.loaded_together, False, rule)
    if schedule.count > _MOST_WAVES:
        even = traffic(m, n, k, (*tile, tk), size)
        rule = (
            f"{schedule.count} waves are too many to walk: each is taken to be as the first, and "
            f"L2 to keep none from wave to wave"
        )
        return DramTraffic(even.a, even.b, c, tile, False, rule)
    panels = {("a", i): min(tm, m - tm * i) * k * size for i in range(rows)}
    panels |= {("b", j): min(tn, n - tn * j) * k * size for j in range(columns)}
    loaded, kept = _walked(first, tiles, schedule.slots, panels, device.l2_bytes)
    rule = (
        f"a wave shares in L2 what it needs, {of_step} a step along k; L2 has "
        f"{of_l2 if device.l2_bytes else 'an unknown number of bytes'}, and "
        f"{'keeps some' if kept else 'keeps none'} from wave to wave"
    )
    return DramTraffic(loaded["a"], loaded["b"], c, tile, kept, rule)


_Panel = tuple[str, int]
"""A row of tiles of A, or a column of B."""


def _walked(
    wave: list[tuple[int, int]],
    rest: Iterator[tuple[int, int]],
    slots: int,
    size: dict[_Panel, int],
    capacity: int,
) -> tuple[dict[str, int], bool]:
    """(bytes loaded of A and B, whether a wave found a panel of an earlier one), wave by wave."""
    loaded, kept = {"a": 0, "b": 0}, False
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
            else:
                kept = True
            held[panel] = now
        wave, now = list(islice(rest, slots)), now + 1
    return loaded, kept
