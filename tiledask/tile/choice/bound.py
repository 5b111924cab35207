"""How fast a kernel can be at most: one formula at four levels, and the roofline over them.

    level                      the tile of C that shares what it loads
    between workers            the block of a worker
    DRAM -> L2                 all tiles of a wave
    L2 -> shared memory        the tile of a thread block, or of a cluster of them
    shared memory -> registers the tile of a warp

A tile of tm x tn loads A n/tn times and B m/tm times, at each of them: `traffic`. Tiles run in
waves, as many at a time as there are slots, in the order of `raster`:

    group = 2, 4 slots             the order of tiles, and waves a, b, c of 4 at a time
      0  2  4 | 6  8                 a a b | b c
      1  3  5 | 7  9                 a a b | b c       a touches 2 rows and 2 columns of tiles

What a wave needs of A and B streams along k through L2 once, whoever of the wave uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import ClusterSpec, Device, Link
from tiledask.plan.tables import Part, Printable, table
from tiledask.plan.units import format_seconds
from tiledask.tile.choice.config import (
    Config,
    Occupancy,
    as_device,
    config_of,
    occupancy,
    refusal,
)
from tiledask.tile.levels import traffic

__all__ = ["Level", "Levels", "dram_loads", "levels_of", "predict", "raster", "ridge"]
__all__ += ["waves"]

_MOST_WAVES = 5_000
"""Most waves that are walked one by one: about a second."""
_REQUEST = 128
"""Bytes: a warp's request to shared memory takes a clock of all 32 banks, however few it wants."""


# -- waves of tiles --------------------------------------------------------------------------------


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


def waves(m: int, n: int, config: Config, device: Device) -> tuple[int, int, int]:
    """(rows of tiles, columns, slots) of an [m, n] product: ``slots`` tiles run at one time.

    >>> waves(8192, 8192, config_of("wgmma_ws_persistent"), as_device("H200"))
    (64, 32, 132)
    """
    team, (tm, tn, _) = config.cluster, config.block
    slots = device.multiprocessors * max(1, occupancy(config, device).blocks)
    return -(-m // (tm * team)) * team, -(-n // tn), max(team, slots // team * team)


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
    size, (tm, tn, tk) = config.itemsize, config.block
    in_clusters, across, slots = waves(m, n, config, device)
    rows, columns = -(-m // tm), -(-n // tn)
    tiles = raster(rows, columns, config.group)
    wave = list(islice(tiles, slots))
    tile = min(m, len({i for i, _ in wave}) * tm), min(n, len({j for _, j in wave}) * tn)
    step = sum(tile) * min(tk, k) * size * config.stages
    if too_large := 0 < device.l2_bytes < step:
        tile = config.loaded_together
    if too_large or in_clusters * across > _MOST_WAVES * slots:
        even = traffic(m, n, k, (*tile, tk), size)
        return tile, even.a, even.b
    bytes_of = {("a", i): min(tm, m - tm * i) * k * size for i in range(rows)}
    bytes_of |= {("b", j): min(tn, n - tn * j) * k * size for j in range(columns)}
    loaded, full, now = {"a": 0, "b": 0}, 0, 0
    held: dict[tuple[str, int], int] = {}  # panel -> its last wave, the least recently used first
    while wave:
        while full > device.l2_bytes:  # all of the oldest wave goes
            oldest = next(iter(held.values()))
            for panel in [panel for panel, used in held.items() if used == oldest]:
                full -= bytes_of[panel]
                del held[panel]
        for panel in {("a", i) for i, _ in wave} | {("b", j) for _, j in wave}:
            if held.pop(panel, None) is None:
                loaded[panel[0]] += bytes_of[panel]
                full += bytes_of[panel]
            held[panel] = now
        wave, now = list(islice(tiles, slots)), now + 1
    return tile, loaded["a"], loaded["b"]


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
    resident: int = 0  # Bytes of ``loaded`` that lie there already: a worker's own blocks
    stretch: float = 1.0  # Lengthens the time where tiles cannot be shared out evenly

    @property
    def moved(self) -> int:
        """Bytes that cross the level."""
        return self.loaded - self.resident + self.stored

    @property
    def intensity(self) -> float:
        """FLOP per byte ``moved``; infinite where nothing crosses."""
        return self.flops / self.moved if self.moved else float("inf")

    @property
    def seconds(self) -> float:
        """Seconds at full bandwidth; 0 if that is unknown."""
        return self.stretch * self.moved / self.bandwidth if self.bandwidth else 0.0


@dataclass(frozen=True, repr=False)
class Levels(Printable):
    """A product [m, k] x [k, n] level by level; with workers, inside the device of one of them.

    Its time is the least: were everything to overlap, and every level at its peak. The bytes from
    DRAM rest on the rule of `dram_loads`; those of the other levels, and the arithmetic, are the
    kernel's whatever L2 does.
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
        for level in self.levels:
            if level.name == name:
                return level
        raise KernelError(f"no level {name!r}; there are {', '.join(x.name for x in self.levels)}")

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

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Names of levels of unknown bandwidth, which may be slower still."""
        return tuple(x.name for x in self.levels if not x.bandwidth)

    def printed(self) -> Iterator[Part]:
        """What bounds the product; what crosses each level, and how long that takes at least."""
        unknown = f"; {', '.join(self.unbounded)} not bounded" if self.unbounded else ""
        yield (
            f"{self.config} on {self.device.name}: at most "
            f"{self.flops_per_second / 1e12:.4g} TFLOP/s ({format_seconds(self.seconds)}), bound "
            f"by {self.binding}{unknown}"
        )
        rows = {
            x.name: {
                "tile of C": "x".join(map(str, x.tile)),
                "moved": x.moved,
                "FLOP/byte": x.intensity,
                "time": x.seconds if x.bandwidth else None,
            }
            for x in self.levels
        }
        yield table(rows, moved="bytes", time="seconds")

    def __repr__(self) -> str:
        return self.to_text()


def levels_of(
    m: int,
    n: int,
    k: int,
    config: Config | str,
    device: Device | ClusterSpec | str,
    dtype: str = "",
    workers: tuple[int, int] | None = None,
    link: Link | None = None,
) -> Levels:
    """The bytes, intensities and times of a product [m, k] x [k, n] at every level.

    ``config`` is a Config or the name of a kernel, whose own for ``dtype`` is then taken; with
    ``workers`` (rows, columns) each has a block of C, and the levels below are those of the first,
    which has the largest. ``link``, or the cluster's own, is what joins them. C's elements are
    stored in the operands' type.

    >>> levels_of(8192, 8192, 8192, "wgmma_ws_persistent", "H200")["L2 -> shared memory"].tile
    (256, 256)
    """
    config = config_of(config, dtype)
    if not config.peak:
        raise KernelError(
            f"the levels are a GPU's, and {config.kernel!r} runs on a CPU: td.tile.traffic counts "
            f"its bytes"
        )
    if isinstance(device, ClusterSpec):
        link = link or device.within_node
        device = device.device
    device, levels, size = as_device(device), [], config.itemsize
    traffic(m, n, k, config.block, size)  # refuses extents that are none
    if workers is not None:
        levels.append(_between(m, n, k, config, workers, link))
        m, n = -(-m // workers[0]), -(-n // workers[1])
    (tm, tn, tk), (rows, columns), many = config.block, config.warp, device.multiprocessors
    down, across, _ = waves(m, n, config, device)
    # time over that of a perfect balance, as some multiprocessor computes the most
    stretch = -(-down * across // many) * many / (down * across)
    flops, stored, together = 2 * m * n * k, m * n * size, config.loaded_together
    touched, a, b = dram_loads(m, n, k, config, device)
    l2 = traffic(m, n, k, (*together, tk), size).loaded
    # a warp reads the zeros beyond C's edge like anything else: whole tiles. One request for a
    # column of A's tile, and one for a row of B's
    padded = down * tm, across * tn, -(-k // tk) * tk
    wanted = traffic(*padded, (rows, columns, 1), size)
    a_read = wanted.a * max(1, _REQUEST / (rows * size))
    b_read = wanted.b * max(1, _REQUEST / (columns * size))
    read, rate = round(a_read + b_read), device.shared_bandwidth
    levels += [
        Level("DRAM -> L2", touched, a + b, stored, flops, device.memory_bandwidth),
        Level("L2 -> shared memory", together, l2, stored, flops, device.l2_bandwidth),
        Level("shared memory -> registers", config.warp, read, 0, flops, rate, stretch=stretch),
    ]
    # on the busiest multiprocessor, in those of its quarters that have a warp
    work, on_one = 2 * padded[0] * padded[1] * padded[2], occupancy(config, device)
    compute = stretch * work / (on_one.quarters or 1.0) / device.peak(config.peak)
    return Levels(m, n, k, config, device, tuple(levels), compute, on_one)


def _between(
    m: int, n: int, k: int, config: Config, workers: tuple[int, int], link: Link | None
) -> Level:
    rows, columns = workers
    if not (1 <= rows <= m and 1 <= columns <= n):
        raise KernelError(
            f"workers are (rows, columns), each 1 or more and with a row and column of C for each; "
            f"got {workers} for {m} x {n}"
        )
    tile = -(-m // rows), -(-n // columns)
    total = traffic(m, n, k, (*tile, k), config.itemsize)
    bandwidth = rows * columns * link.reached if link else 0.0
    own = (m + n) * k * config.itemsize
    return Level("between workers", tile, total.loaded, 0, total.flops, bandwidth, resident=own)


def predict(
    m: int, n: int, k: int, config: Config | str, device: Device | str, dtype: str = ""
) -> Levels:
    """`levels_of` for ``config``, or a kernel's own for ``dtype``, on a device that can run it.

    Raises KernelError with the reason where ``device`` cannot.

    >>> predict(8192, 8192, 8192, "smem_tiled", "H200").binding
    'shared memory -> registers'
    """
    config, device = config_of(config, dtype), as_device(device)
    if why := refusal(config, device):
        raise KernelError(f"{config} cannot run on {device.name}: {why}")
    return levels_of(m, n, k, config, device)


def ridge(device: Device | str, peak: str = "fp32") -> float:
    """FLOP per byte of memory at which ``device`` goes from bandwidth to arithmetic.

    >>> round(ridge("H200"), 2)  # 67e12 / 4.8e12
    13.96
    """
    device = as_device(device)
    return device.peak(peak) / device.memory_bandwidth
