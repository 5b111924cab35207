"""What a device holds beyond the arithmetic, by name, and the verdict that follows from it.

0 ..... tensors ..... + CUDA context ............. + whole overhead
                                                   capacity right of all:    "fits"
                                                   between the last two:     "tight"
                                                   left of the context:      "no"
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["VERDICTS", "Overhead", "default_overhead", "judge", "overhead_of", "overheads"]

VERDICTS = ("fits", "tight", "no")

CUDA_CONTEXT = round(0.92 * 2**30)
"""Bytes of a CUDA context with all kernels loaded; 0.47 GiB when they load lazily
(stas00/ml-engineering, training/performance/README.md)."""
NCCL_BUFFERS = round(1.45 * 2**30)
"""Bytes that appear with the first collective over NCCL (same page)."""
BUCKETS = 2 * 5 * 10**8 * 2
"""Bytes of the two buckets, of 5e8 half-precision numbers each, through which gradients are
reduced and weights gathered (DeepSpeed's reduce_bucket_size and allgather_bucket_size)."""
ALLOCATOR = 2_950_000_000
"""Bytes that the caching allocator holds and nobody uses, and the libraries' workspaces. The
only calibrated number: with those above it makes 7.5 GB, which every second row of the
BLOOM-176B engineering log that ran shows beyond the estimate (least squares of the relative
error); the rows between them, and torchtitan's, were not fitted."""


@dataclass(frozen=True)
class Overhead:
    """Bytes per device that no tensor of the model accounts for.

    >>> Overhead(context=10, nccl=20, buckets=30, allocator=40).total
    100
    """

    context: int = CUDA_CONTEXT
    """The CUDA context."""
    nccl: int = NCCL_BUFFERS
    """Buffers of the collectives; 0 on a single device."""
    buckets: int = BUCKETS
    """Where gradients and weights are gathered to be sent; 0 on a single device and in ZeRO-3."""
    allocator: int = ALLOCATOR
    """Fragmentation and workspaces."""

    def __post_init__(self) -> None:
        for name in ("context", "nccl", "buckets", "allocator"):
            number = whole_number(f"overhead {name}", getattr(self, name), 0, of="bytes")
            object.__setattr__(self, name, number)

    @property
    def certain(self) -> int:
        """Bytes of it that no run is without: the CUDA context. Buffers and buckets can be made
        smaller, and what the allocator holds is fitted."""
        return self.context

    @property
    def total(self) -> int:
        return self.context + self.nccl + self.buckets + self.allocator

    def __str__(self) -> str:
        return (
            f"CUDA context {format_bytes(self.context)}, NCCL {format_bytes(self.nccl)}, "
            f"buckets {format_bytes(self.buckets)}, allocator {format_bytes(self.allocator)}"
        )


def default_overhead(devices: int, zero: int = 0) -> Overhead:
    """The budget of a run on ``devices`` devices under a stage of ZeRO: a single device has no
    collectives, and ZeRO-3 no buckets: what it gathers stands in the ledger, item by item.

    >>> default_overhead(8).total - default_overhead(1).total == NCCL_BUFFERS + BUCKETS
    True
    """
    if devices == 1:
        return Overhead(nccl=0, buckets=0)
    return Overhead(buckets=0) if zero == 3 else Overhead()


def overhead_of(layout: Layout) -> Overhead:
    """The budget of ``layout``: over one copy ZeRO shards nothing, and changes nothing."""
    return default_overhead(layout.devices, layout.zero if layout.dp * layout.cp > 1 else 0)


def overheads(devices: np.ndarray, copies: np.ndarray, zero: np.ndarray) -> tuple[Any, Any]:
    """(certain, total) bytes of the budgets of many layouts, column by column as
    ``overhead_of`` has them; ``copies``: dp x cp."""
    budgets = default_overhead(1), default_overhead(2), default_overhead(2, zero=3)
    which = np.where(devices == 1, 0, np.where((zero == 3) & (copies > 1), 2, 1))
    certain = np.array([budget.certain for budget in budgets])[which]
    return certain, np.array([budget.total for budget in budgets])[which]


def judge(peak: Any, certain: Any, total: Any, capacity: Any) -> Any:
    """The place in VERDICTS of ``peak`` bytes of tensors on a device of ``capacity`` bytes, with
    an overhead of ``total`` bytes of which ``certain`` are certain; numbers or columns.

    The one rule of ``fits``, ``search`` and ``check_premise``.

    >>> [VERDICTS[judge(peak, 10, 70, 1000)] for peak in (930, 931, 990, 991)]
    ['fits', 'tight', 'tight', 'no']
    """
    return (peak + certain > capacity) * 1 + (peak + total > capacity)
