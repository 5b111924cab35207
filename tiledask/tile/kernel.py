"""A kernel as a row of the table: its function, operands, tiles, workspace and GPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tiledask.tile.backend import Array, GpuInfo, as_dtype, probe
from tiledask.tile.cuda.hopper_tile import AnyTile
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["Kernel", "Run", "Sizes", "no_workspace", "unsuited"]

Run = Callable[[Array, Array, Array, Any, Epilogue], TileTraffic | None]
"""(a, b, out, tile, epilogue): writes what the epilogue makes of a @ b into out.

The tile is one that the kernel is built for: a `Tile`, a HopperTile, or None (checks.py)."""


@dataclass(frozen=True)
class Sizes:
    """What decides how much a kernel allocates for one product."""

    m: int
    n: int
    k: int
    itemsize: int
    """Bytes per element of a and b."""
    out_itemsize: int
    tile: AnyTile | None
    bias: bool = False
    activation: str | None = None

    @property
    def elementwise(self) -> bool:
        """Whether there is more to do than to scale and to add."""
        return self.bias or self.activation is not None


def no_workspace(sizes: Sizes) -> int:
    """0: the kernel finishes C itself and allocates nothing."""
    return 0


@dataclass(frozen=True, eq=False)
class Kernel:
    """One row of the table: the function and what it accepts."""

    name: str
    arrays: str
    """"numpy" or "cupy"."""
    dtypes: tuple[str, ...]
    summary: str
    run: Run
    workspace: Callable[[Sizes], int] = no_workspace
    """Bytes it allocates besides a, b, out and the rest of what it is given."""
    tile: Tile | None = None
    """The tile it uses unless told otherwise; None for a kernel that has no tile of ours."""
    chooses: bool = False
    """Whether it is told when nobody chose a tile, and chooses itself; `tile` is then the usual."""
    tiles: tuple[Tile, ...] = ()
    """The tiles that it is built for; empty if any will do."""
    tile_k_bytes: int = 0
    """Bytes along k of each of `tiles`, which so go with one size of elements; 0 if they go with
    all."""
    needs_nvrtc: bool = False
    capability: tuple[int, int] | None = None
    """The least compute capability that it runs on, such as (8, 0); None for any."""
    exactly: bool = False
    """It runs on that capability alone: its machine code is for one architecture, like sm_90a."""
    batched: bool = False
    """It takes a, b and out of 3 dimensions too, all three, an operand that all share with a
    stride of 0; for other kernels a batch is one product after the other."""
    tf32: Run | None = None
    """What multiplies float32 operands rounded to TF32, for those who ask; None if nothing does."""

    @property
    def why_not(self) -> str:
        """Why no device of this machine can run it, in a sentence; empty if one can."""
        if self.arrays == "numpy":
            return ""
        backend = probe()
        missing = backend.nvrtc_reason if self.needs_nvrtc else ""
        return backend.reason or missing or unsuited(self, backend.devices)

    @property
    def available(self) -> bool:
        """Whether this machine can run it."""
        return not self.why_not

    @property
    def needs(self) -> str:
        """The GPUs that it runs on: "compute capability 8.0 (A100) or more"; empty if any."""
        if self.capability is None:
            return ""
        number = ".".join(map(str, self.capability))
        known = f" ({_EXAMPLES[self.capability]})" if self.capability in _EXAMPLES else ""
        return f"compute capability {number}{known}{'' if self.exactly else ' or more'}"

    def tiles_for(self, dtype: str) -> tuple[Tile, ...]:
        """Those of `tiles` that go with elements of ``dtype``.

        >>> from tiledask.tile.table import kernels
        >>> kernels["mma_multistage"].tiles_for("float32")  # 64 bytes of k
        ((128, 128, 16), (64, 64, 16))
        """
        size = as_dtype(dtype).itemsize
        return tuple(t for t in self.tiles if self.tile_k_bytes in (0, t[2] * size))


@cache
def unsuited(kernel: Kernel, devices: tuple[GpuInfo, ...]) -> str:
    """Why none of ``devices`` runs ``kernel``, in a sentence; empty if one does.

    >>> from dataclasses import replace
    >>> from tiledask.tile.table import kernels
    >>> hopper = replace(kernels["smem_tiled"], capability=(9, 0), exactly=True)
    >>> unsuited(hopper, (GpuInfo(0, "T4", "7.5", 16 * 10**9),))
    'needs a GPU of compute capability 9.0 (H100, H200), this one (T4) has 7.5'
    """
    least = kernel.capability
    if least is None:
        return ""
    has = [tuple(map(int, device.compute_capability.split("."))) for device in devices]
    if any(each == least if kernel.exactly else each >= least for each in has):
        return ""
    here = "these are " + ", ".join(f"{d.name} ({d.compute_capability})" for d in devices)
    if len(devices) == 1:
        here = f"this one ({devices[0].name}) has {devices[0].compute_capability}"
    return f"needs a GPU of {kernel.needs}, {here}"


_EXAMPLES = {
    (7, 0): "V100",
    (7, 5): "T4",
    (8, 0): "A100",
    (8, 6): "A10",
    (8, 9): "L4, L40S",
    (9, 0): "H100, H200",
    (10, 0): "B200",
    (12, 0): "RTX 5090",
}
"""GPUs of each compute capability (NVIDIA, "CUDA GPU Compute Capability")."""
