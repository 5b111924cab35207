"""What runs at one time: the blocks of a multiprocessor, and the tiles of C in waves of them.

    group = 2, 4 slots             the order of tiles, and waves a, b, c of 4 at a time
      0  2  4 | 6  8                 a a b | b c
      1  3  5 | 7  9                 a a b | b c       a touches 2 rows and 2 columns of tiles

What a wave needs of A and B streams along k through L2 once, whoever of the wave uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.units import format_bytes
from tiledask.tile.choice.config import Config, config_of, configs, space
from tiledask.tile.levels import traffic

__all__ = [
    "Occupancy",
    "Waves",
    "as_device",
    "candidates",
    "dram_loads",
    "occupancy",
    "raster",
    "refusal",
    "waves",
]

WARP = 32
QUARTERS = 4
"""Parts of a multiprocessor, each with a quarter of the registers; a warp lives in one."""
REGISTER_UNIT = 256
"""Registers that a warp gets are a multiple of it."""
SHARED_UNIT = 128
"""Bytes of shared memory that a block gets are a multiple of it."""
RESERVE = 1024
"""Bytes of shared memory that the system takes of each block, from capability 8.0 on."""
MOST_REGISTERS = 255
"""Registers that one thread can name."""
MOST_THREADS = 1024
"""Threads of one block."""
_MOST_WAVES = 5_000
"""Most waves that are walked one by one: about a second."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that are resident on one multiprocessor at one time.

    >>> occupancy(Config("mine", (128, 128, 32), (64, 64), 128, 2, "bf16", registers=232), "H200")
    2 blocks of 4 warps per multiprocessor (8 of its 64 warps), limited by registers
    """

    blocks: int
    """0 if not even one fits."""
    warps: int
    """Of one block."""
    most_warps: int
    """Warps that a multiprocessor can hold; 0 if unknown."""
    limits: tuple[tuple[str, int], ...]
    """(what is limited, blocks that it allows), of those limits that are known."""

    @property
    def binding(self) -> str:
        """The limits that allow no more, joined by "and"."""
        return " and ".join(name for name, blocks in self.limits if blocks == self.blocks)

    @property
    def quarters(self) -> float:
        """The share of a multiprocessor that has a warp at all: each computes in one quarter."""
        return min(1.0, self.blocks * self.warps / QUARTERS)

    @property
    def share(self) -> float:
        """Resident warps over those that a multiprocessor can hold; 0 if that is unknown."""
        return self.blocks * self.warps / self.most_warps if self.most_warps else 0.0

    def __repr__(self) -> str:
        blocks = f"{self.blocks} block{'s' * (self.blocks != 1)}"
        warps = f"{self.warps} warp{'s' * (self.warps != 1)}"
        most = f" ({self.blocks * self.warps} of its {self.most_warps} warps)" * bool(self.share)
        return f"{blocks} of {warps} per multiprocessor{most}, limited by {self.binding}"


def as_device(device: Device | str) -> Device:
    """``device`` itself, or the shipped one of that name; it must tell its multiprocessors."""
    found = load_device(device) if isinstance(device, str) else device
    if not found.multiprocessors:
        raise KernelError(
            f"how tiles share {found.name} depends on its multiprocessors, and its description "
            f"gives none; add 'multiprocessors' to it, or use a shipped device such as 'H200'"
        )
    return found


def occupancy(config: Config, device: Device | str) -> Occupancy:
    """Blocks of ``config`` on one multiprocessor of ``device``, by each limit that is known.

    Registers are given to warps in units of 256, and a warp's come from one of four quarters;
    shared memory in units of 128 bytes, and 1 KiB of each block is the system's from capability
    8.0 on (the arithmetic of cuda_occupancy.h, in the CUDA toolkit). Where nothing is known of the
    device, one block is taken.
    """
    device = as_device(device)
    found: dict[str, int] = {}
    if device.registers and config.registers:
        per_warp = _up(config.registers * WARP, REGISTER_UNIT)
        found["registers"] = device.registers // QUARTERS // per_warp * QUARTERS // config.warps
    if device.shared_bytes and config.shared_bytes:
        reserve = RESERVE if _at_least(device.capability, "8.0") else 0
        taken = _up(config.shared_bytes + reserve, SHARED_UNIT)
        fits = config.shared_bytes <= device.block_shared_bytes
        found["shared memory"] = device.shared_bytes // taken if fits else 0
    if device.threads:
        found["threads"] = device.threads // WARP // config.warps
    if device.blocks:
        found["blocks"] = device.blocks
    limits = tuple(found.items()) or (("unknown limits", 1),)
    blocks = min(allowed for _, allowed in limits)
    return Occupancy(blocks, config.warps, device.threads // WARP, limits)


def refusal(config: Config, device: Device | str) -> str:
    """Why ``device`` cannot run ``config``, with both numbers; empty if it can.

    >>> refusal(Config("mine", (256, 256, 64), (64, 64), 512, 2, "bf16", stages=4), "A100-40GB")
    '262.1 kB of shared memory per block, and A100-40GB has 166.9 kB: fewer stages or smaller tiles'
    """
    device = as_device(device)
    if not config.peak:
        return f"{config.kernel!r} runs on a CPU; td.tile.traffic counts its bytes"
    has, least, name = device.capability, config.capability, device.name
    if has and least and not (has == least if config.exactly else _at_least(has, least)):
        only = "exactly" if config.exactly else "or higher"
        return f"needs compute capability {least} {only}, and {name} has {has}"
    if config.peak not in dict(device.peak_flops):
        return f"computes in {config.peak}, and {name} has no {config.peak}"
    if config.threads > MOST_THREADS:
        return f"{config.threads} threads per block, and a block has {MOST_THREADS} at most"
    if config.registers > MOST_REGISTERS:
        return f"{config.registers} registers per thread, and a thread has {MOST_REGISTERS} at most"
    if device.block_shared_bytes and config.shared_bytes > device.block_shared_bytes:
        return (
            f"{format_bytes(config.shared_bytes)} of shared memory per block, and {name} has "
            f"{format_bytes(device.block_shared_bytes)}: fewer stages or smaller tiles"
        )
    if not (found := occupancy(config, device)).blocks:
        return (
            f"not one block fits a multiprocessor of {name} for its {found.binding}: smaller tiles "
            f"or fewer threads"
        )
    return ""


def candidates(kernel: str, device: Device | str, dtype: str = "") -> tuple[Config, ...]:
    """What ``kernel`` could be on ``device`` for elements of ``dtype``; `refusal` says why.

    >>> len(candidates("smem_tiled", "T4")), len(candidates("wgmma_ws_persistent", "A100-40GB"))
    (2, 0)
    """
    device, wanted = as_device(device), config_of(kernel, dtype)
    every = [c for c in (*configs[kernel], *space(kernel)) if c.itemsize == wanted.itemsize]
    every = [replace(config, peak=wanted.peak) for config in dict.fromkeys(every)]
    return tuple(config for config in every if not refusal(config, device))


def _at_least(capability: str, least: str) -> bool:
    """Whether ``capability`` is known and not below; "10.0" is above "9.0"."""
    has, wanted = (tuple(map(int, x.split("."))) if x else () for x in (capability, least))
    return bool(has) and has >= wanted


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


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

    >>> config = Config("mine", (128, 256, 64), (64, 256), 384, 2, "bf16", registers=168)
    >>> found = waves(8192, 8192, config, load_device("H200"))
    >>> found.tiles, found.slots, found.count
    (2048, 132, 16)
    """
    (tm, tn, _), (up, across) = config.block, config.cluster
    team, many = up * across, device.multiprocessors
    slots = many * max(1, occupancy(config, device).blocks)
    rows, columns = -(-m // (tm * up)) * up, -(-n // (tn * across)) * across
    return Waves(rows, columns, max(team, slots // team * team), many)


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
