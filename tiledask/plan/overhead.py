"""What a device holds beyond the arithmetic, by name: the width of the verdict "tight"."""

from dataclasses import dataclass

from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes

__all__ = ["Overhead", "default_overhead"]

CUDA_CONTEXT = round(0.92 * 2**30)
"""Bytes of a CUDA context with all kernels loaded; 0.47 GiB when they load lazily
(stas00/ml-engineering, training/performance/README.md)."""
NCCL_BUFFERS = round(1.45 * 2**30)
"""Bytes that appear with the first collective over NCCL (same page)."""
FRAMEWORK = 4_300_000_000
"""Bytes of the framework: communication buckets, library workspaces, what the allocator
holds but does not use. Calibrated: with the two above it makes 6.8 GB, the median of what
the 23 fp16 rows of the BLOOM-176B engineering log that ran show beyond states, checkpoints
and one layer's working set (between 3.8 and 12.0 GB). The bf16 rows were not used."""


@dataclass(frozen=True)
class Overhead:
    """Bytes per device that no tensor of the model accounts for.

    >>> Overhead(context=10, nccl=20, framework=30).total
    60
    """

    context: int = CUDA_CONTEXT
    """The CUDA context."""
    nccl: int = NCCL_BUFFERS
    """Buffers of the collectives; 0 on a single device."""
    framework: int = FRAMEWORK
    """Workspaces, buckets and fragmentation."""

    def __post_init__(self) -> None:
        for name in ("context", "nccl", "framework"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"overhead {name} must be bytes, 0 or more, got {value!r}")

    @property
    def total(self) -> int:
        return self.context + self.nccl + self.framework

    def __str__(self) -> str:
        return (
            f"CUDA context {format_bytes(self.context)}, NCCL {format_bytes(self.nccl)}, "
            f"framework {format_bytes(self.framework)}"
        )


def default_overhead(devices: int) -> Overhead:
    """The budget of a run on ``devices`` devices: a single one has no collectives.

    >>> default_overhead(8).total - default_overhead(1).total == NCCL_BUFFERS
    True
    """
    return Overhead() if devices > 1 else Overhead(nccl=0)
