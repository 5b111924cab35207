"""One formula at four levels: what a product moves between workers and inside a device.

    level                      the tile of C that shares what it loads
    between workers            the block of a worker
    DRAM -> L2                 all tiles of a wave
    L2 -> shared memory        the tile of a thread block, or of a cluster of them
    shared memory -> registers the tile of a warp

A tile of tm x tn loads A n/tn times and B m/tm times, at each of them: `traffic`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.plan import html
from tiledask.plan.inputs.hardware import ClusterSpec, Device, Link
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import config_of
from tiledask.tile.choice.raster import DramTraffic, Waves, dram_traffic, waves
from tiledask.tile.choice.residency import as_device, occupancy
from tiledask.tile.levels import traffic

__all__ = ["LEVELS", "Level", "Levels", "levels_of"]

LEVELS = ("between workers", "DRAM -> L2", "L2 -> shared memory", "shared memory -> registers")

_REQUEST = 128
"""Bytes: a warp's request to shared memory takes a clock of all 32 banks, however few it wants."""


@dataclass(frozen=True)
class Level:
    """What crosses one level of the hierarchy of memories."""

    name: str
    tile: tuple[int, int]
    """Rows and columns of C that share what is loaded."""
    loaded: int
    """Bytes of A and B."""
    stored: int
    """Bytes of C."""
    flops: int
    """FLOP of the product."""
    bandwidth: float
    """Bytes per second at most; 0 if unknown."""
    resident: int = 0
    """Bytes of ``loaded`` that lie there already: a worker's own blocks."""
    stretch: float = 1.0
    """Lengthens the time where tiles cannot be shared out evenly."""

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
class Levels:
    """A product [m, k] x [k, n] level by level; with workers, inside the device of one of them."""

    m: int
    n: int
    k: int
    config: Config
    device: Device
    workers: tuple[int, int] | None
    levels: tuple[Level, ...]
    compute: float
    """Seconds of the arithmetic at peak, on the busiest multiprocessor."""
    waves: Waves
    dram: DramTraffic

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
        """The longest of them: nothing is faster if all overlap."""
        return max(self.times.values())

    @property
    def binding(self) -> str:
        """The name of the longest."""
        return max(self.times, key=self.times.__getitem__)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Names of levels whose bandwidth is unknown."""
        return tuple(x.name for x in self.levels if not x.bandwidth)

    @property
    def title(self) -> str:
        at = f", one of {self.workers[0]} x {self.workers[1]} workers" if self.workers else ""
        return f"{self.m} x {self.n} x {self.k} by {self.config} on {self.device.name}{at}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table rests on, in sentences."""
        found = [f"{self.binding} takes longest: {format_seconds(self.seconds)}"]
        found += [f"arithmetic: {format_seconds(self.compute)}; {self.waves!r}"]
        found += [self.dram.rule]
        if self.unbounded:
            found += [f"not bounded, for want of a bandwidth: {', '.join(self.unbounded)}"]
        return tuple(found)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for x in self.levels:
            yield (
                x.name,
                "x".join(map(str, x.tile)),
                format_bytes(x.loaded),
                format_bytes(x.moved),
                f"{x.intensity:.4g}",
                f"{format_bytes(x.bandwidth)}/s" if x.bandwidth else "unknown",
                format_seconds(x.seconds) if x.bandwidth else "unknown",
            )

    def __repr__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        lines = [
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([self.title, *lines, *self.notes])

    def _repr_html_(self) -> str:
        found = html.table(_HEAD, self._rows(), self.title)
        return f"{found}<p>{'<br>'.join(map(html.words, self.notes))}</p>"


_HEAD = ("level", "tile of C", "A and B", "moved", "FLOP/byte", "bandwidth", "time")


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
    device, levels = as_device(device), []
    traffic(m, n, k, config.block, config.itemsize)  # refuses extents that are none
    if workers is not None:
        levels.append(_between(m, n, k, config, workers, link))
        m, n = -(-m // workers[0]), -(-n // workers[1])
    schedule, dram = waves(m, n, config, device), dram_traffic(m, n, k, config, device)
    flops = 2 * m * n * k
    l2 = traffic(m, n, k, (*config.loaded_together, config.block[2]), config.itemsize)
    levels += [
        Level(LEVELS[1], dram.tile, dram.loaded, dram.c, flops, device.memory_bandwidth),
        Level(LEVELS[2], config.loaded_together, l2.loaded, l2.c, flops, device.l2_bandwidth),
        _registers(k, config, device, schedule, flops),
    ]
    return Levels(
        m,
        n,
        k,
        config,
        device,
        workers,
        tuple(levels),
        _arithmetic(k, config, device, schedule) / device.peak(config.peak),
        schedule,
        dram,
    )


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
    once = (m + n) * k * config.itemsize
    return Level(
        LEVELS[0],
        tile,
        total.loaded,
        0,
        total.flops,
        rows * columns * link.reached if link else 0.0,
        resident=once,
    )


def _registers(k: int, config: Config, device: Device, schedule: Waves, flops: int) -> Level:
    """Whole tiles: a warp reads the zeros beyond C's edge like anything else."""
    (tm, tn, tk), (rows, columns) = config.block, config.warp
    m, n, k = schedule.rows * tm, schedule.columns * tn, -(-k // tk) * tk
    wanted = traffic(m, n, k, (rows, columns, 1), config.itemsize)
    # one request for a column of A's tile, and one for a row of B's
    a = wanted.a * max(1, _REQUEST / (rows * config.itemsize))
    b = wanted.b * max(1, _REQUEST / (columns * config.itemsize))
    return Level(
        LEVELS[3],
        config.warp,
        round(a + b),
        0,
        flops,
        device.shared_bandwidth,
        stretch=schedule.stretch,
    )


def _arithmetic(k: int, config: Config, device: Device, schedule: Waves) -> float:
    """FLOP that would take as long, were all of the device busy: whole tiles, on the busiest
    multiprocessor, in those of its quarters that have a warp."""
    tm, tn, tk = config.block
    work = 2 * schedule.tiles * tm * tn * -(-k // tk) * tk
    return schedule.stretch * work / (occupancy(config, device).quarters or 1.0)
