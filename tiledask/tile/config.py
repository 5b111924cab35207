"""How kernels tile, from the block of C down to a warp, and what of a device that takes.

cluster      blocks that share what they load
  block      (tm, tn, tk), in shared memory, `stages` of them under way
    warp     (rows, columns) of C that one warp, or warp group, computes
      thread `registers` of 32 bits

A configuration has what a kernel's source in cuda/ does for operands that lie row by row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import as_dtype
from tiledask.tile.levels import Tile, as_tile

__all__ = [
    "Config",
    "Occupancy",
    "as_device",
    "candidates",
    "config_of",
    "configs",
    "hopper",
    "hopper_tile",
    "occupancy",
    "refusal",
]


@dataclass(frozen=True)
class Config:
    """How one kernel tiles a product.

    >>> config = Config("mma_multistage", (128, 128, 32), (64, 64), threads=128, itemsize=2,
    ...                 peak="bf16", registers=255, stages=4)
    >>> config.shared_bytes, config.warps
    (65536, 4)
    """

    kernel: str
    block: Tile
    """(tm, tn, tk): rows and columns of C that a thread block owns, and a step along k."""
    warp: tuple[int, int]
    """Rows and columns of C whose operands one warp (or warp group) reads from shared memory."""
    threads: int
    """Per block."""
    itemsize: int
    """Bytes of an element of A and B."""
    peak: str
    """The peak that bounds it: "fp32", "tf32", "bf16", "fp16"; empty on a CPU."""
    registers: int = 0
    """Per thread, at launch; 0 if unknown."""
    stages: int = 1
    """Tiles of A and B in shared memory at one time."""
    stage_extra: int = 0
    """Bytes of a stage besides the elements: what keeps banks from colliding, barriers."""
    kept: int = 0
    """Bytes of shared memory besides the stages: C on its way out."""
    cluster: tuple[int, int] = (1, 1)
    """Blocks along m and n that load together: what two of them need is loaded once."""
    group: int = 1
    """Rows of tiles that are walked together: see `raster`."""
    capability: str = ""
    """The least compute capability, such as "8.0"; empty for any."""
    exactly: bool = False
    """Whether no other capability will do: wgmma is Hopper's alone."""

    def __post_init__(self) -> None:
        (tm, tn, _), (rows, columns) = self.block, self.warp
        if min(*self.block, self.threads, self.stages) < 1 or tm % rows or tn % columns:
            raise KernelError(
                f"extents are 1 or more and a warp's tile divides the block's, got {rows}x{columns}"
                f" and {tm}x{tn}; a warp of {tm}x{tn} always does"
            )

    @property
    def warps(self) -> int:
        """Warps of a block, each of 32 threads."""
        return -(-self.threads // 32)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        tm, tn, tk = self.block
        return self.stages * ((tm + tn) * tk * self.itemsize + self.stage_extra) + self.kept

    @property
    def loaded_together(self) -> tuple[int, int]:
        """Rows and columns of C of a whole cluster: what is loaded from L2 once for all of it."""
        return self.block[0] * self.cluster[0], self.block[1] * self.cluster[1]

    def __str__(self) -> str:
        words = [f"{self.kernel} {'x'.join(map(str, self.block))}"]
        words += [f"{self.stages} stages"] if self.stages > 1 else []
        words += ["cluster {}x{}".format(*self.cluster)] if self.cluster != (1, 1) else []
        return ", ".join([*words, *([f"group {self.group}"] if self.group > 1 else [])])


# -- how each kernel tiles -------------------------------------------------------------------------


def _numpy(tile: int | Tile, itemsize: int = 4) -> Config:
    tm, tn, tk = as_tile(tile)
    return Config("tiled", (tm, tn, tk), (tm, tn), threads=1, itemsize=itemsize, peak="")


def _smem(extent: int) -> Config:
    """One element of C per thread: a warp of 32 has one row of 32, or two of 16."""
    block, warp = (extent,) * 3, (32 // extent, extent)
    registers = {16: 64, 32: 32}[extent]
    return Config("smem_tiled", block, warp, extent * extent, 4, "fp32", registers=registers)


_REGISTERS = {
    "sgemm_warptiled": {32: 115, 64: 127},
    "mma_multistage": {32: 112, 64: 156, 128: 255},
}
"""Kernel -> sums that a thread has -> registers: the most that ptxas of CUDA 13.0 reports for
operands that lie row by row, for sm_80 and for sm_90; as are those of the other kernels."""


def _panels(kernel: str, block: Tile, stages: int, itemsize: int, peak: str, extra: int) -> Config:
    """A kernel that brings panels by ``cp.async``; a warp's tile of 64 x 64 or less, of float32 on
    CUDA cores 32 x 64, so that each quarter of a multiprocessor has one."""
    rows, columns = (
        max(side for side in range(1, max(1, min(t // 2, most)) + 1) if t % side == 0)
        for t, most in ((block[0], 32 if peak == "fp32" else 64), (block[1], 64))
    )
    # those of the next number of sums that was compiled
    registers = next(r for sums, r in _REGISTERS[kernel].items() if 32 * sums >= rows * columns)
    threads = 32 * (block[0] // rows) * (block[1] // columns)
    made = Config(kernel, block, (rows, columns), threads, itemsize, peak, registers, stages, extra)
    return replace(made, group=8, capability="8.0")


def _sgemm(block: Tile = (128, 128, 32), stages: int = 2) -> Config:
    # a line of k has 16 bytes more, of A and of B
    return _panels("sgemm_warptiled", block, stages, 4, "fp32", 2 * 16 * block[2])


def _mma(
    block: Tile = (128, 128, 32), stages: int = 3, itemsize: int = 2, peak: str = "bf16"
) -> Config:
    # longer lines of B, whose floats are read one by one
    longer = 32 * block[2] if itemsize == 4 else 0
    return _panels("mma_multistage", block, stages, itemsize, peak, longer)


_RASTER = 8
"""Rows of clusters that the Hopper kernel walks column by column."""
_HOPPER_SHARED = 227 * 1024
"""Shared memory of a block of compute capability 9.0 (CUDA C++ Programming Guide, its table)."""


def hopper(columns: int = 256, cluster: int = 2, staged: bool = True, stages: int = 0) -> Config:
    """How `wgmma_ws_persistent` tiles: a stage is 128 rows of A and the columns of B, 128 bytes
    each, and two barriers.

    ``cluster``: blocks, 1 or 2, one above the other, that share what they load of B. ``staged``:
    whether C leaves through shared memory. ``stages``: 0 for as many as that holds.

    >>> hopper().stages, hopper(staged=False).stages, hopper().shared_bytes
    (3, 4, 213040)
    """
    kept = staged * 128 * columns * 2
    return Config(
        "wgmma_ws_persistent",
        (128, columns, 64),
        (64, columns),
        threads=384,
        itemsize=2,
        peak="bf16",
        # 65,536 / 384, in steps of 8: setmaxnreg then moves them from producer to consumers
        registers=168,
        stages=stages or (_HOPPER_SHARED - kept) // ((128 + columns) * 128 + 16),
        stage_extra=16,
        kept=kept,
        cluster=(cluster, 1),
        group=_RASTER * cluster,
        capability="9.0",
        exactly=True,
    )


_CYCLES = {256: (1024, 2000), 128: (600, 1000)}
"""Of a tensor core for 64 steps of k, by the tile's columns: 1,024 and 512 by the instructions'
rates, of which the narrow tile, that loads 4/3 as much per product, is supposed to lose some; and
from a tile's last product to the next tile's first, supposed."""
_ALONE = 1.04
"""How much longer a tile takes whose B is not shared in a cluster; supposed."""


def hopper_tile(
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    staged: bool = True,
    tile: Tile | None = None,
) -> Config:
    """The tile and cluster of the least predicted time; of tiles only ``tile`` if given.

    Blocks stay for good and take one tile after another, so that a product takes as long as the
    multiprocessor with the most tiles, each of ceil(k / 64) steps and an end. How many those are is
    counted; what clusters cannot fill counts too: with 3 rows of tiles a quarter of them is empty.
    Where nothing is gained it is the usual one. A supposition in numbers, not a measurement.

    >>> hopper_tile(8192, 8192, 8192, 132).cluster, hopper_tile(384, 2**20, 4096, 132).cluster
    ((2, 1), (1, 1))
    >>> hopper_tile(1024, 1024, 1024, 132).block  # 64 tiles for 132 multiprocessors, not 32
    (128, 128, 64)
    """

    def cycles(columns: int, cluster: int) -> float:
        count = -(-m // (128 * cluster)) * -(-n // columns)
        rounds = -(-count // max(1, multiprocessors // cluster))
        step, end = _CYCLES[columns]
        return rounds * (-(-k // 64) * step * (_ALONE if cluster == 1 else 1) + end)

    every = product(_CYCLES if tile is None else (tile[1],), (2, 1) if m > 128 else (1,))
    return hopper(*min(every, key=lambda each: cycles(*each)), staged)


configs: dict[str, tuple[Config, ...]] = {
    "tiled": (_numpy(512),),
    "smem_tiled": (_smem(32), _smem(16)),
    "sgemm_warptiled": (_sgemm(), _sgemm((64, 64, 16), 4)),
    "mma_multistage": (
        _mma(),
        _mma((64, 64, 32), 4),
        _mma((128, 128, 16), itemsize=4, peak="tf32"),
        _mma((64, 64, 16), 4, 4, "tf32"),
    ),
    "wgmma_ws_persistent": (hopper(), hopper(128)),
}
"""The shipped configurations of each kernel, its own choice first; cuBLAS keeps its to itself."""


def _space(kernel: str) -> Iterator[Config]:
    """Every configuration that is worth a thought, whether or not some device can run it."""
    if kernel == "tiled":
        yield from map(_numpy, (64, 128, 256, 512, 1024))
    elif kernel == "smem_tiled":
        yield from map(_smem, (16, 32))
    elif kernel == "sgemm_warptiled":
        for block in product((64, 128), (64, 128), (8, 16)):
            yield _sgemm(block, 2)
    elif kernel == "mma_multistage":
        shapes = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
        for (tm, tn), tk, stages in product(shapes, (32, 64), (3, 4)):
            yield _mma((tm, tn, tk), stages)
            yield _mma((tm, tn, tk // 2), stages, 4, "tf32")
    else:
        for columns, stages, cluster in product((128, 256), (3, 4, 6), (1, 2)):
            yield hopper(columns, cluster, stages=stages)


def config_of(kernel: str | Config, dtype: str = "", tile: int | Tile | None = None) -> Config:
    """The configuration that ``kernel`` uses for elements of ``dtype``, and for ``tile`` if given.

    >>> print(config_of("mma_multistage", "float32"))
    mma_multistage 128x128x16, 3 stages, group 8
    """
    if isinstance(kernel, Config):
        return kernel
    if kernel not in configs:
        raise KernelError(
            f"no tile of kernel {kernel!r} is known; known are those of {', '.join(configs)}"
            + ("; a library chooses its own" if kernel in ("blas", "cublas") else "")
        )
    found = configs[kernel]
    size = as_dtype(dtype).itemsize if dtype else found[0].itemsize
    if kernel == "tiled":
        return _numpy(found[0].block if tile is None else tile, size)
    fitting = [config for config in found if config.itemsize == size]
    if not fitting:
        sizes = " or ".join(str(size) for size in sorted({each.itemsize for each in found}))
        raise KernelError(
            f"kernel {kernel!r} takes elements of {sizes} bytes, got {dtype}, of {size}"
        )
    chosen = fitting[0] if tile is None else _with_tile(fitting, as_tile(tile))
    return replace(chosen, peak="fp16") if dtype == "float16" else chosen


def _with_tile(found: list[Config], tile: Tile) -> Config:
    usual = found[0]
    for config in (*found, *_space(usual.kernel)):
        if config.block == tile and config.itemsize == usual.itemsize:
            return config
    if usual.kernel == "sgemm_warptiled":
        return _sgemm(tile, usual.stages)
    if usual.kernel == "mma_multistage":
        return _mma(tile, usual.stages, usual.itemsize, usual.peak)
    built = " or ".join(str(config.block) for config in found)
    raise KernelError(f"kernel {usual.kernel!r} is built for tiles of {built}, got {tile}")


# -- blocks of a multiprocessor --------------------------------------------------------------------


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
        return min(1.0, self.blocks * self.warps / 4)

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
    """``device`` itself, or the shipped one of that name; its multiprocessors must be known."""
    found = load_device(device) if isinstance(device, str) else device
    if not found.multiprocessors:
        raise KernelError(
            f"how tiles share {found.name} depends on its multiprocessors, and its description "
            f"gives none; add 'multiprocessors' to it, or use a shipped device such as 'H200'"
        )
    return found


def occupancy(config: Config, device: Device | str) -> Occupancy:
    """Blocks of ``config`` on one multiprocessor of ``device``, by each limit that is known.

    A warp's registers come from one of a multiprocessor's four quarters, in units of 256; shared
    memory in units of 128 bytes, and 1 KiB of each block is the system's from capability 8.0 on
    (the arithmetic of cuda_occupancy.h, in the CUDA toolkit). Where nothing is known of the
    device, one block is taken.
    """
    device = as_device(device)
    found: dict[str, int] = {}
    if device.registers and config.registers:
        per_warp = -(-config.registers * 32 // 256) * 256
        found["registers"] = device.registers // 4 // per_warp * 4 // config.warps
    if device.shared_bytes and config.shared_bytes:
        reserve = 1024 if _number(device.capability) >= (8, 0) else 0
        taken = -(-(config.shared_bytes + reserve) // 128) * 128
        fits = config.shared_bytes <= device.block_shared_bytes
        found["shared memory"] = device.shared_bytes // taken if fits else 0
    if device.threads:
        found["threads"] = device.threads // 32 // config.warps
    if device.blocks:
        found["blocks"] = device.blocks
    limits = tuple(found.items()) or (("unknown limits", 1),)
    blocks = min(allowed for _, allowed in limits)
    return Occupancy(blocks, config.warps, device.threads // 32, limits)


def refusal(config: Config, device: Device | str) -> str:
    """Why ``device`` cannot run ``config``, with both numbers; empty if it can.

    >>> refusal(Config("mine", (256, 256, 64), (64, 64), 512, 2, "bf16", stages=4), "A100-40GB")
    '262.1 kB of shared memory per block, and A100-40GB has 166.9 kB: fewer stages or smaller tiles'
    """
    device = as_device(device)
    if not config.peak:
        return f"{config.kernel!r} runs on a CPU; td.tile.traffic counts its bytes"
    has, least, name = device.capability, config.capability, device.name
    fits = has == least if config.exactly else _number(has) >= _number(least)
    if has and least and not fits:
        only = "exactly" if config.exactly else "or higher"
        return f"needs compute capability {least} {only}, and {name} has {has}"
    if config.peak not in dict(device.peak_flops):
        return f"computes in {config.peak}, and {name} has no {config.peak}"
    if config.threads > 1024:
        return f"{config.threads} threads per block, and a block has 1024 at most"
    if config.registers > 255:
        return f"{config.registers} registers per thread, and a thread has 255 at most"
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
    every = [c for c in (*configs[kernel], *_space(kernel)) if c.itemsize == wanted.itemsize]
    every = [replace(config, peak=wanted.peak) for config in dict.fromkeys(every)]
    return tuple(config for config in every if not refusal(config, device))


def _number(capability: str) -> tuple[Any, ...]:
    """Of which "10.0" is above "9.0"; unknown is below all."""
    return tuple(map(int, capability.split("."))) if capability else ()
