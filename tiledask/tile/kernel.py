"""What a kernel is: a function, what it accepts, what it allocates, and the GPUs it runs on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiledask.tile.backend import Device
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic

__all__ = ["Kernel", "Run", "Sizes", "needs", "no_workspace", "unsuited"]

Run = Callable[[Any, Any, Any, Tile | None, Epilogue], TileTraffic | None]
"""(a, b, out, tile, epilogue): writes what the epilogue makes of a @ b into out."""


@dataclass(frozen=True)
class Sizes:
    """What decides how much a kernel allocates for one product."""

    m: int
    n: int
    k: int
    itemsize: int
    """Bytes per element of a and b."""
    out_itemsize: int
    tile: Tile | None
    bias: bool = False
    activation: str | None = None

    @property
    def elementwise(self) -> bool:
        """Whether there is more to do than to scale and to add."""
        return self.bias or self.activation is not None

    @property
    def within(self) -> Tile:
        """The tile, no larger than the product."""
        return tuple(min(t, x) for t, x in zip(self.tile, (self.m, self.n, self.k), strict=True))


def no_workspace(sizes: Sizes) -> int:
    """0: the kernel finishes C itself and allocates nothing."""
    return 0


@dataclass(frozen=True)
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
    tiles: tuple[Tile, ...] = ()
    """The tiles that it is built for; empty if any will do."""
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


def needs(kernel: Kernel) -> str:
    """The GPUs that ``kernel`` runs on, such as "compute capability 8.0 (A100) or more".

    Empty if it runs on any.
    """
    if kernel.capability is None:
        return ""
    number = ".".join(map(str, kernel.capability))
    known = f" ({_EXAMPLES[kernel.capability]})" if kernel.capability in _EXAMPLES else ""
    return f"compute capability {number}{known}{'' if kernel.exactly else ' or more'}"


def unsuited(kernel: Kernel, devices: tuple[Device, ...]) -> str:
    """Why none of ``devices`` runs ``kernel``, in a sentence; empty if one does.

    >>> from dataclasses import replace
    >>> from tiledask.tile.table import lookup
    >>> hopper = replace(lookup("smem_tiled"), capability=(9, 0), exactly=True)
    >>> unsuited(hopper, (Device(0, "T4", "7.5", 16 * 10**9),))
    'needs a GPU of compute capability 9.0 (H100, H200), this one (T4) has 7.5'
    """
    if kernel.capability is None or any(_suits(kernel, device) for device in devices):
        return ""
    if len(devices) == 1:
        (device,) = devices
        has = f"this one ({device.name}) has {device.compute_capability}"
    else:
        has = "these are " + ", ".join(f"{d.name} ({d.compute_capability})" for d in devices)
    return f"needs a GPU of {needs(kernel)}, {has}"


def _suits(kernel: Kernel, device: Device) -> bool:
    has = tuple(map(int, device.compute_capability.split(".")))
    return has == kernel.capability if kernel.exactly else has >= kernel.capability


_EXAMPLES = {
    (7, 0): "V100", (7, 5): "T4", (8, 0): "A100", (8, 6): "A10", (8, 9): "L4, L40S",
    (9, 0): "H100, H200", (10, 0): "B200", (12, 0): "RTX 5090",
}  # fmt: skip
"""GPUs of each compute capability (NVIDIA, "CUDA GPU Compute Capability")."""
