"""How kernels tile, from the block of C down to a warp, and what of a device that takes.

cluster      blocks, one above the other, that share what they load
  block      (tm, tn, tk), in shared memory, `stages` of them under way
    warp     (rows, columns) of C that one warp, or warp group, computes
      thread `registers` of 32 bits

A configuration has what a kernel's source in cuda/ does for operands that lie row by row.
"""

from dataclasses import dataclass
from itertools import product

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.units import format_bytes
from tiledask.tile.levels import Tile, as_tile

__all__ = ["Config", "Occupancy", "as_device", "candidates", "config_of", "configs", "hopper"]
__all__ += ["hopper_tile", "occupancy", "refusal", "runs_on"]


@dataclass(frozen=True)
class Config:
    """How one kernel tiles a product.

    >>> config = Config("mma_multistage", (128, 128, 32), (64, 64), threads=128, itemsize=2,
    ...                 peak="bf16", registers=255, stages=4)
    >>> config.shared_bytes, config.warps
    (65536, 4)
    """

    kernel: str
    block: Tile  # Rows and columns of C that a thread block owns, and a step along k
    warp: tuple[int, int]  # Of C, whose operands one warp (or warp group) reads at once
    threads: int  # Of a block
    itemsize: int  # Bytes of an element of A and B
    peak: str  # What bounds it: "fp32", "bf16"
    registers: int = 0  # Of a thread, at launch; 0 if unknown
    stages: int = 1  # Tiles of A and B in shared memory at one time
    stage_extra: int = 0  # Bytes of a stage beside the elements: barriers, longer lines
    kept: int = 0  # Bytes of shared memory beside the stages: C on its way out
    cluster: int = 1  # Blocks, one above the other, that load what they need of B once
    group: int = 1  # Rows of tiles that are walked together: see bound.py
    capability: str = ""  # The least that runs it: see `runs_on`

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
        return self.block[0] * self.cluster, self.block[1]

    def __str__(self) -> str:
        stages = f", {self.stages} stages" * (self.stages > 1)
        return f"{self.kernel} {'x'.join(map(str, self.block))}{stages}"


def runs_on(least: str, capability: str) -> bool:
    """Whether code for compute capability ``least`` runs on a GPU of ``capability``.

    Code for "8.0" runs on all above too, that for "9.0a" (as in sm_90a) on 9.0 alone. What is
    unknown runs.

    >>> runs_on("8.0", "10.0"), runs_on("9.0a", "9.0"), runs_on("9.0a", "10.0")
    (True, True, False)
    """
    if not (least and capability):
        return True
    if least.endswith("a"):
        return capability == least[:-1]
    return float(capability) >= float(least)


# -- how each kernel tiles -------------------------------------------------------------------------


_REGISTERS = {
    "sgemm_warptiled": {32: 115, 64: 127},
    "mma_multistage": {32: 112, 64: 156, 128: 255},
}
"""Kernel -> sums that a thread has -> registers: the most that ptxas of CUDA 13.0 reports for
operands that lie row by row, for sm_80 and for sm_90; as are those of the other kernels."""


def _panels(peak: str, block: Tile, stages: int) -> Config:
    """A kernel that brings panels by ``cp.async``; a warp's tile is 64 x 64 or less, of float32 on
    CUDA cores 32 x 64, so that each quarter of a multiprocessor has one."""
    (tm, tn, tk), single = block, peak == "fp32"
    kernel = "sgemm_warptiled" if single else "mma_multistage"
    rows, columns = min(tm // 2, 32 if single else 64), min(tn // 2, 64)
    registers = next(r for sums, r in _REGISTERS[kernel].items() if 32 * sums >= rows * columns)
    return Config(
        kernel,
        block,
        (rows, columns),
        threads=32 * (tm // rows) * (tn // columns),
        itemsize=4 if single else 2,
        peak=peak,
        registers=registers,
        stages=stages,
        # a line of k has 16 bytes more, of A and of B; or one of B 32, whose floats are read singly
        stage_extra=32 * tk * single,
        group=8,
        capability="8.0",
    )


_HOPPER_SHARED = 227 * 1024
"""Shared memory of a block of compute capability 9.0 (CUDA C++ Programming Guide, its table)."""


def hopper(columns: int = 256, cluster: int = 2, staged: bool = True, stages: int = 0) -> Config:
    """How `wgmma_ws_persistent` tiles: a stage is 128 rows of A and the columns of B, 128 bytes
    each, and two barriers.

    ``staged``: whether C leaves through shared memory. ``stages``: 0 for as many as that holds.

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
        cluster=cluster,
        group=8 * cluster,  # the kernel walks 8 rows of clusters column by column
        capability="9.0a",
    )


_CYCLES = {256: (1024, 2000), 128: (600, 1000)}
"""Of a tensor core for 64 steps of k, by the tile's columns: 1,024 and 512 by the instructions'
rates, of which the narrow tile is supposed to lose some; and from a tile's last product to the next
tile's first, supposed."""
_ALONE = 1.04
"""How much longer a tile takes whose B is not shared in a cluster; supposed."""


def hopper_tile(
    m: int, n: int, k: int, multiprocessors: int, staged: bool = True, tile: Tile | None = None
) -> Config:
    """The tile and cluster of the least predicted time; of tiles only ``tile`` if given.

    Blocks stay and take one tile after another, so that a product takes as long as the
    multiprocessor with the most tiles, each of ceil(k / 64) steps and an end; what clusters cannot
    fill counts too. Where nothing is gained it is the usual one.

    >>> hopper_tile(8192, 8192, 8192, 132).cluster, hopper_tile(384, 2**20, 4096, 132).cluster
    (2, 1)
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
    "smem_tiled": (  # one element of C per thread: a warp of 32 has one row of 32, or two of 16
        Config("smem_tiled", (32, 32, 32), (1, 32), 1024, 4, "fp32", registers=32),
        Config("smem_tiled", (16, 16, 16), (2, 16), 256, 4, "fp32", registers=64),
    ),
    "sgemm_warptiled": (_panels("fp32", (128, 128, 32), 2), _panels("fp32", (64, 64, 16), 4)),
    "mma_multistage": (
        _panels("bf16", (128, 128, 32), 3),
        _panels("bf16", (64, 64, 32), 4),
    ),
    "wgmma_ws_persistent": (hopper(), hopper(128)),
}
"""The shipped configurations of each kernel in cuda/, its own choice first."""


_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def config_of(kernel: str | Config, dtype: str = "", tile: int | Tile | None = None) -> Config:
    """The configuration that ``kernel`` uses for elements of ``dtype``, and for ``tile`` if given.

    >>> print(config_of("mma_multistage", "bfloat16"))
    mma_multistage 128x128x32, 3 stages
    """
    if isinstance(kernel, Config):
        return kernel
    if kernel not in configs:
        raise KernelError(
            f"known are the tiles of {', '.join(configs)}, got {kernel!r}; td.tile.traffic counts "
            f"the bytes of any tile"
        )
    usual, *_ = shipped = configs[kernel]
    kind, block = _TYPES[usual.peak], as_tile(tile) if tile else usual.block
    found = [each for each in shipped if each.block == block]
    if not found or dtype not in ("", kind):
        built = " or ".join(str(each.block) for each in shipped)
        raise KernelError(
            f"kernel {kernel!r} is built for tiles of {built} and {kind}, got {block} {dtype}"
        )
    return found[0]


# -- what of a device it takes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that are resident on one multiprocessor at one time.

    >>> occupancy(Config("mine", (128, 128, 32), (64, 64), 128, 2, "bf16", registers=232), "H200")
    2 blocks of 4 warps per multiprocessor (8 of its 64 warps), limited by registers
    """

    blocks: int  # 0 if not even one fits
    warps: int  # Of one block
    most_warps: int  # That a multiprocessor can hold; 0 if unknown
    limits: tuple[tuple[str, int], ...]  # (what is limited, blocks that it allows), where known

    @property
    def binding(self) -> str:
        """The limits that allow no more, joined by "and"."""
        return " and ".join(name for name, blocks in self.limits if blocks == self.blocks)

    @property
    def quarters(self) -> float:
        """The share of a multiprocessor that has a warp at all: each computes in one quarter."""
        return min(1.0, self.blocks * self.warps / 4)

    def __repr__(self) -> str:
        blocks = f"{self.blocks} block{'s' * (self.blocks != 1)}"
        warps = f"{self.warps} warp{'s' * (self.warps != 1)}"
        resident = self.blocks * self.warps
        most = f" ({resident} of its {self.most_warps} warps)" if resident * self.most_warps else ""
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
        reserve = 1024 if float(device.capability or 0) >= 8 else 0
        taken = -(-(config.shared_bytes + reserve) // 128) * 128
        fits = config.shared_bytes <= device.block_shared_bytes
        found["shared memory"] = device.shared_bytes // taken if fits else 0
    if device.threads:
        found["threads"] = device.threads // 32 // config.warps
    if device.blocks:
        found["blocks"] = device.blocks
    limits = tuple(found.items()) or (("unknown limits", 1),)
    return Occupancy(min(found.values(), default=1), config.warps, device.threads // 32, limits)


def refusal(config: Config, device: Device | str) -> str:
    """Why ``device`` cannot run ``config``, with both numbers; empty if it can.

    >>> refusal(Config("mine", (256, 256, 64), (64, 64), 512, 2, "bf16", stages=4), "A100-40GB")
    '262.1 kB of shared memory per block, and A100-40GB has 166.9 kB: fewer stages or smaller tiles'
    """
    device, least = as_device(device), config.capability
    name, has, shared = device.name, device.capability, device.block_shared_bytes
    if not runs_on(least, has):
        only = "exactly" if least.endswith("a") else "or higher"
        return f"needs compute capability {least.rstrip('a')} {only}, and {name} has {has}"
    if config.peak not in dict(device.peak_flops):
        return f"computes in {config.peak}, and {name} has no {config.peak}"
    if shared and config.shared_bytes > shared:
        needs, has = format_bytes(config.shared_bytes), format_bytes(shared)
        return (
            f"{needs} of shared memory per block, and {name} has {has}: fewer stages or smaller "
            f"tiles"
        )
    if not (found := occupancy(config, device)).blocks:
        why = f"for its {found.binding}: smaller tiles or fewer threads"
        return f"not one block fits a multiprocessor of {name} {why}"
    return ""


_OTHERS: dict[str, list[Config]] = {
    "sgemm_warptiled": [_panels("fp32", b, 2) for b in product((64, 128), (64, 128), (8, 16))],
    "mma_multistage": [
        _panels("bf16", (tm, tn, tk), stages)
        for tm, tn in ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
        for tk, stages in product((32, 64), (3, 4))
    ],
    "wgmma_ws_persistent": [
        hopper(columns, cluster, stages=stages)
        for columns, stages, cluster in product((128, 256), (3, 4, 6), (1, 2))
    ],
}
"""What is worth a thought beside what is shipped, whether or not some device can run it."""


def candidates(kernel: str, device: Device | str) -> tuple[Config, ...]:
    """What ``kernel`` could be on ``device``; `refusal` says why not more.

    >>> len(candidates("smem_tiled", "T4")), len(candidates("wgmma_ws_persistent", "A100-40GB"))
    (2, 0)
    """
    config_of(kernel)  # refuses one that has no tile
    every = dict.fromkeys((*configs[kernel], *_OTHERS.get(kernel, ())))
    return tuple(config for config in every if not refusal(config, device))
