"""How fast a kernel can be at most: one formula at three levels, and the roofline over them.

    level                      the tile of C that shares what it loads
    DRAM -> L2                 all tiles of a wave
    L2 -> shared memory        the tile of a thread block, or of a cluster of them
    shared memory -> registers the tile of a warp

A tile of tm x tn loads A n/tn times and B m/tm times, at each of them: `traffic`. Tiles run in
waves, as many at a time as there are slots: down a group of rows, then the next column:

    a a b | b c       group = 2, 4 slots: the first wave, a, covers 2 rows and 2 columns of tiles
    a a b | b c
"""

from dataclasses import dataclass
from itertools import islice

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.units import format_seconds
from tiledask.tile.choice.config import Config, Occupancy, as_device, config_of, occupancy, refusal
from tiledask.tile.levels import traffic

__all__ = ["Level", "Levels", "predict", "ridge"]

_REQUEST = 128
"""Bytes: a warp's request to shared memory takes a clock of all 32 banks, however few it wants."""


# -- waves of tiles --------------------------------------------------------------------------------


def waves(m: int, n: int, config: Config, device: Device) -> tuple[int, int, int]:
    """(rows of tiles, columns, slots) of an [m, n] product: ``slots`` tiles run at one time.

    >>> waves(8192, 8192, config_of("wgmma_ws_persistent"), as_device("H200"))
    (64, 32, 132)
    """
    team, (tm, tn, _) = config.cluster, config.block
    slots = device.multiprocessors * max(1, occupancy(config, device).blocks)
    return -(-m // (tm * team)) * team, -(-n // tn), max(team, slots // team * team)


def shared_from_memory(m: int, n: int, k: int, config: Config, device: Device) -> tuple[int, int]:
    """Rows and columns of C that share what comes from DRAM, by what of it stays in L2.

    A wave goes along k together. What tiles use again is there if no more than L2's bytes were
    touched since:

        one group of rows of A, all of B    all of C shares: A and B come once
        the rows and columns of a wave      a group of rows: A comes once
        their next step along k             a wave
        less, if that is known              a cluster
    """
    (tm, tn, tk), size, most = config.block, config.itemsize, device.l2_bytes
    down, across, group = -(-m // tm), -(-n // tn), config.group
    order = (
        (i, j)
        for top in range(0, down, group)
        for j in range(across)
        for i in range(top, min(top + group, down))
    )
    wave = [*islice(order, waves(m, n, config, device)[2])]
    rows, columns = min(m, len({i for i, _ in wave}) * tm), min(n, len({j for _, j in wave}) * tn)
    band = max(rows, min(m, group * tm))
    if (band + n) * k * size <= most:
        return m, n
    if (rows + columns) * k * size <= most:
        return band, n
    step = (rows + columns) * min(tk, k) * size * config.stages
    return config.loaded_together if 0 < most < step else (rows, columns)


# -- levels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """What crosses one level of the hierarchy of memories."""

    name: str
    tile: tuple[int, int]  # Rows and columns of C that share what is loaded
    loaded: int  # Bytes of A and B
    stored: int  # Bytes of C
    flops: int  # Of the product
    bandwidth: float  # Bytes per second at most; 0 if unknown
    stretch: float = 1.0  # Lengthens the time where tiles cannot be shared out evenly

    @property
    def moved(self) -> int:
        """Bytes that cross the level."""
        return self.loaded + self.stored

    @property
    def intensity(self) -> float:
        """FLOP per byte ``moved``."""
        return self.flops / self.moved

    @property
    def seconds(self) -> float:
        """Seconds at full bandwidth; 0 if that is unknown."""
        return self.stretch * self.moved / self.bandwidth if self.bandwidth else 0.0


@dataclass(frozen=True, repr=False)
class Levels:
    """A product [m, k] x [k, n] level by level.

    Its time is the least: were everything to overlap, and every level at its peak.
    """

    m: int
    n: int
    k: int
    config: Config
    device: Device
    levels: tuple[Level, ...]
    compute: float  # Seconds of the arithmetic at peak, on the busiest multiprocessor
    occupancy: Occupancy

    def __getitem__(self, name: str) -> Level:
        return {level.name: level for level in self.levels}[name]

    @property
    def times(self) -> dict[str, float]:
        """Seconds by name, those of the arithmetic first; 0 for what could not be bounded."""
        return {"arithmetic": self.compute} | {x.name: x.seconds for x in self.levels}

    @property
    def seconds(self) -> float:
        """Seconds at least: the longest of `times`."""
        return max(self.times.values())

    @property
    def flops_per_second(self) -> float:
        """FLOP/s at most, of the product's own 2 m n k."""
        return 2 * self.m * self.n * self.k / self.seconds

    @property
    def binding(self) -> str:
        """ "arithmetic", or the name of the level that takes longest."""
        return max(self.times, key=self.times.__getitem__)

    def __repr__(self) -> str:
        unknown = [x.name for x in self.levels if not x.bandwidth]
        return (
            f"{self.config} on {self.device.name}: at most "
            f"{self.flops_per_second / 1e12:.4g} TFLOP/s ({format_seconds(self.seconds)}), bound "
            f"by {self.binding}" + f"; {', '.join(unknown)} not bounded" * bool(unknown)
        )


def predict(
    m: int, n: int, k: int, config: Config | str, device: Device | str, dtype: str = ""
) -> Levels:
    """The bytes, intensities and times of a product [m, k] x [k, n] at every level.

    ``config`` is a Config or the name of a kernel, whose own for ``dtype`` is then taken. C's
    elements are stored in the operands' type. Raises KernelError with the reason where ``device``
    cannot run it.

    >>> found = predict(8192, 8192, 8192, "smem_tiled", "H200")
    >>> found.binding, found["L2 -> shared memory"].tile
    ('shared memory -> registers', (32, 32))
    """
    config, device = config_of(config, dtype), as_device(device)
    if why := refusal(config, device):
        raise KernelError(f"{config} cannot run on {device.name}: {why}")
    levels, size = [], config.itemsize
    traffic(m, n, k, config.block, size)  # refuses extents that are none
    (tm, tn, tk), (rows, columns), many = config.block, config.warp, device.multiprocessors
    down, across, _ = waves(m, n, config, device)
    # time over that of a perfect balance, as some multiprocessor computes the most
    stretch = -(-down * across // many) * many / (down * across)
    for name, tile, bandwidth in (
        ("DRAM -> L2", shared_from_memory(m, n, k, config, device), device.memory_bandwidth),
        ("L2 -> shared memory", config.loaded_together, device.l2_bandwidth),
    ):
        each = traffic(m, n, k, (*tile, tk), size)
        levels.append(Level(name, tile, each.loaded, each.c, each.flops, bandwidth))
    # a warp reads the zeros beyond C's edge like anything else: whole tiles. One request for a
    # column of A's tile, and one for a row of B's
    padded = traffic(down * tm, across * tn, -(-k // tk) * tk, (rows, columns, 1), size)
    a_read = padded.a * max(1, _REQUEST / (rows * size))
    b_read = padded.b * max(1, _REQUEST / (columns * size))
    name, read, rate = "shared memory -> registers", round(a_read + b_read), device.shared_bandwidth
    levels.append(Level(name, config.warp, read, 0, 2 * m * n * k, rate, stretch=stretch))
    # on the busiest multiprocessor, in those of its quarters that have a warp
    on_one = occupancy(config, device)
    compute = stretch * padded.flops / (on_one.quarters or 1.0) / device.peak(config.peak)
    return Levels(m, n, k, config, device, tuple(levels), compute, on_one)


def ridge(device: Device | str, peak: str = "fp32") -> float:
    """FLOP per byte of memory at which ``device`` goes from bandwidth to arithmetic.

    >>> round(ridge("H200"), 2)  # 67e12 / 4.8e12
    13.96
    """
    device = as_device(device)
    return device.peak(peak) / device.memory_bandwidth
