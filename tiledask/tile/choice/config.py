"""How kernels tile: a frozen value each, from the block of C down to a warp; the shipped ones.

cluster      blocks that share what they load
  block      (tm, tn, tk), in shared memory, `stages` of them under way
    warp     (rows, columns) of C that one warp, or warp group, computes
      thread `registers` of 32 bits

What they say of a kernel is what its source in cuda/ says, for operands that lie row by row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import as_dtype
from tiledask.tile.cuda.hopper_tile import RASTER
from tiledask.tile.levels import Tile, as_tile

__all__ = ["Config", "config_of", "configs", "space"]


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
        object.__setattr__(self, "block", as_tile(self.block))
        tm, tn, _ = self.block
        for name in ("threads", "itemsize", "stages", "group"):
            whole_number(name, getattr(self, name), 1, error=KernelError)
        if tm % self.warp[0] or tn % self.warp[1]:
            raise KernelError(
                f"the tile of a warp must divide the block's, got {self.warp[0]}x{self.warp[1]} "
                f"and {tm}x{tn}; a warp of {tm}x{tn} always does"
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


def _panels(
    kernel: str, block: Tile, stages: int, itemsize: int, peak: str, most: int = 64, **more: Any
) -> Config:
    """A kernel that brings panels by ``cp.async``; a warp's tile of ``most`` x 64 or less, so that
    each quarter of a multiprocessor has one."""
    rows, columns = (
        max(side for side in range(1, max(1, min(t // 2, limit)) + 1) if t % side == 0)
        for t, limit in ((block[0], most), (block[1], 64))
    )
    # those of the next number of sums that was compiled
    registers = next(r for sums, r in _REGISTERS[kernel].items() if 32 * sums >= rows * columns)
    threads = 32 * (block[0] // rows) * (block[1] // columns)
    more |= {"registers": registers, "stages": stages, "group": 8, "capability": "8.0"}
    return Config(kernel, block, (rows, columns), threads, itemsize, peak, **more)


def _sgemm(block: Tile = (128, 128, 32), stages: int = 2) -> Config:
    longer = 2 * 16 * block[2]  # a line of k has 16 bytes more, of A and of B
    return _panels("sgemm_warptiled", block, stages, 4, "fp32", most=32, stage_extra=longer)


def _mma(
    block: Tile = (128, 128, 32), stages: int = 3, itemsize: int = 2, peak: str = "bf16"
) -> Config:
    longer = 32 * block[2] if itemsize == 4 else 0  # lines of B, whose floats are read one by one
    return _panels("mma_multistage", block, stages, itemsize, peak, stage_extra=longer)


def _wgmma(
    block: Tile = (128, 256, 64), stages: int = 3, cluster: tuple[int, int] = (2, 1)
) -> Config:
    tm, tn, _ = block
    return Config(
        "wgmma_ws_persistent",
        block,
        (64, tn),
        threads=384,
        itemsize=2,
        peak="bf16",
        # 65,536 / 384, in steps of 8: setmaxnreg then moves them from producer to consumers
        registers=168,
        stages=stages,
        stage_extra=16,  # two barriers
        kept=tm * tn * 2,
        cluster=cluster,
        group=RASTER * cluster[0],
        capability="9.0",
        exactly=True,
    )


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
    "wgmma_ws_persistent": (_wgmma(), _wgmma((128, 128, 64), 6)),
}
"""The shipped configurations of each kernel, its own choice first; cuBLAS keeps its to itself."""


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
        return _numpy(found[0].block if tile is None else as_tile(tile), size)
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
    for config in (*found, *space(usual.kernel)):
        if config.block == tile and config.itemsize == usual.itemsize:
            return config
    if usual.kernel == "sgemm_warptiled":
        return _sgemm(tile, usual.stages)
    if usual.kernel == "mma_multistage":
        return _mma(tile, usual.stages, usual.itemsize, usual.peak)
    built = " or ".join(str(config.block) for config in found)
    raise KernelError(f"kernel {usual.kernel!r} is built for tiles of {built}, got {tile}")


def space(kernel: str) -> Iterator[Config]:
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
    elif kernel == "wgmma_ws_persistent":
        for tn, stages, cluster in product((128, 256), (3, 4, 6), ((1, 1), (2, 1))):
            yield _wgmma((128, tn, 64), stages, cluster)
