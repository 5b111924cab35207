"""The configurations of the kernels by name, and the candidates among which to choose.

What they say of a kernel is what its source in cuda/ says, for operands that lie row by row.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device
from tiledask.tile.backend import as_dtype
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.residency import as_device, refusal
from tiledask.tile.cuda.hopper_tile import RASTER, HopperTile
from tiledask.tile.levels import Tile, as_tile

__all__ = ["candidates", "config_of", "configs"]

_BARRIERS = 16
"""Bytes of shared memory for the two barriers of a stage that copies fill."""


def _numpy(tile: int | Tile, itemsize: int = 4) -> Config:
    tm, tn, tk = as_tile(tile)
    return Config("tiled", (tm, tn, tk), (tm, tn), threads=1, itemsize=itemsize, peak="")


def _smem(extent: int) -> Config:
    """One element of C per thread: a warp of 32 has one row of 32, or two of 16."""
    return Config(
        "smem_tiled",
        (extent,) * 3,
        (32 // extent, extent),
        threads=extent * extent,
        itemsize=4,
        peak="fp32",
        registers={16: 64, 32: 32}[extent],
    )


def _quarters(tm: int, tn: int, most: int = 64) -> tuple[int, int]:
    """A warp's tile of ``most`` x 64 or less, so that each quarter of a multiprocessor has one."""
    rows, columns = (
        max(side for side in range(1, max(1, min(t // 2, limit)) + 1) if t % side == 0)
        for t, limit in ((tm, most), (tn, 64))
    )
    return rows, columns


_REGISTERS = {
    "sgemm_warptiled": {32: 115, 64: 127},
    "mma_multistage": {32: 112, 64: 156, 128: 255},
}
"""Kernel -> sums that a thread has -> registers: the most that ptxas of CUDA 13.0 reports for
operands that lie row by row, for sm_80 and for sm_90; as are those of the other kernels."""


def _registers(kernel: str, warp: tuple[int, int]) -> int:
    """A thread's registers: those of the next number of sums that was compiled."""
    return next(r for sums, r in _REGISTERS[kernel].items() if 32 * sums >= warp[0] * warp[1])


def _panels(
    kernel: str, block: Tile, stages: int, itemsize: int, peak: str, most: int = 64, **more: Any
) -> Config:
    """A kernel that brings panels by ``cp.async``."""
    warp = _quarters(*block[:2], most)
    return Config(
        kernel,
        block,
        warp,
        32 * (block[0] // warp[0]) * (block[1] // warp[1]),
        itemsize,
        peak,
        registers=_registers(kernel, warp),
        stages=stages,
        group=8,
        capability="8.0",
        **more,
    )


def _sgemm(block: Tile = (128, 128, 32), stages: int = 2) -> Config:
    return _panels("sgemm_warptiled", block, stages, 4, "fp32", most=32, pad=16, a_rows="k")


def _mma(
    block: Tile = (128, 128, 32), stages: int = 3, itemsize: int = 2, peak: str = "bf16"
) -> Config:
    longer = 32 * block[2] if itemsize == 4 else 0  # lines of B, whose floats are read one by one
    return _panels("mma_multistage", block, stages, itemsize, peak, kept=stages * longer)


def _wgmma(
    block: Tile = (128, 256, 64),
    stages: int = 3,
    cluster: tuple[int, int] = (2, 1),
    staged: bool = True,
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
        kept=staged * tm * tn * 2 + stages * _BARRIERS,
        cluster=cluster,
        group=RASTER * cluster[0],
        persistent=True,
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


def config_of(
    kernel: str | Config, dtype: str = "", tile: int | Tile | HopperTile | None = None
) -> Config:
    """The configuration that ``kernel`` uses for elements of ``dtype``, and for ``tile`` if given.

    >>> print(config_of("mma_multistage", "float32"))
    mma_multistage 128x128x16, 3 stages, group 8
    """
    if isinstance(kernel, Config):
        return kernel
    found = configs.get(kernel)
    if found is None:
        raise KernelError(
            f"no tile of kernel {kernel!r} is known; known are those of {', '.join(configs)}"
            + ("; a library chooses its own" if kernel in ("blas", "cublas") else "")
        )
    hopper = None
    if isinstance(tile, HopperTile):
        if kernel != "wgmma_ws_persistent":
            raise KernelError(
                f"{tile!r} is a tile of wgmma_ws_persistent, and kernel {kernel!r} takes "
                f"(tm, tn, tk), such as {found[0].block}"
            )
        hopper = _wgmma(tile.tile, tile.stages, (tile.cluster, 1), staged=tile.staged)
        tile = None
    size = as_dtype(dtype).itemsize if dtype else found[0].itemsize
    if kernel == "tiled":
        return _numpy(found[0].block if tile is None else tile, size)
    fitting = [config for config in found if config.itemsize == size]
    if not fitting:
        sizes = sorted({config.itemsize for config in found})
        raise KernelError(
            f"kernel {kernel!r} takes elements of {' or '.join(map(str, sizes))} bytes, got "
            f"{dtype}, of {size}"
        )
    usual = fitting[0] if tile is None else _with_tile(fitting, as_tile(tile))
    chosen = hopper or usual
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
    return usual.with_block(tile)


def candidates(kernel: str, device: Device | str, dtype: str = "") -> tuple[Config, ...]:
    """What ``kernel`` could be on ``device`` for elements of ``dtype``; `refusal` says why.

    >>> len(candidates("smem_tiled", "T4")), len(candidates("wgmma_ws_persistent", "A100-40GB"))
    (2, 0)
    """
    device, wanted = as_device(device), config_of(kernel, dtype)
    every = [c for c in (*configs[kernel], *_space(kernel)) if c.itemsize == wanted.itemsize]
    every = [replace(config, peak=wanted.peak) for config in dict.fromkeys(every)]
    return tuple(config for config in every if not refusal(config, device))


def _space(kernel: str) -> Iterator[Config]:
    """Every configuration that is worth a thought, whether or not some device can run it."""
    if kernel == "tiled":
        yield from map(_numpy, (64, 128, 256, 512, 1024))
    elif kernel == "smem_tiled":
        yield from map(_smem, (16, 32))
    elif kernel == "sgemm_warptiled":
        for tm, tn, tk, stages in product((64, 128), (64, 128), (8, 16), (2,)):
            yield _sgemm((tm, tn, tk), stages)
    elif kernel == "mma_multistage":
        shapes = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
        for (tm, tn), tk, stages in product(shapes, (32, 64), (3, 4)):
            yield _mma((tm, tn, tk), stages)
            yield _mma((tm, tn, tk // 2), stages, 4, "tf32")
    elif kernel == "wgmma_ws_persistent":
        for tn, stages, cluster in product((128, 256), (3, 4, 6), ((1, 1), (2, 1))):
            yield _wgmma((128, tn, 64), stages, cluster)
