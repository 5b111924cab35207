"""What a device holds beyond the arithmetic, by name, and the verdict that follows from it.

0 ..... tensors ..... + CUDA context ............. + whole overhead
                                                   capacity right of all:    "fits"
                                                   between the last two:     "tight"
                                                   left of the context:      "no"
The capacity is the nominal one; what needs more, and no more than
the driver reports, is tight too for a run by a framework that is named.
What "fits" has room in half of the published rows, as far off, or more.
"""

from dataclasses import dataclass
from functools import cache
from statistics import median_low
from typing import Any

import numpy as np

from tiledask.plan.data import shipped_json
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import holds
from tiledask.plan.units import format_bytes

__all__ = [
    "VERDICTS",
    "DeviceLimits",
    "Overhead",
    "default_overhead",
    "measured_over_estimated",
    "overhead_of",
    "overheads",
]

VERDICTS = ("fits", "tight", "no")
FEW = 10
"""Rows from which a framework has errors of its own."""

CUDA_CONTEXT = round(0.92 * 2**30)
"""Bytes of a CUDA context with all kernels loaded; 0.47 GiB when they load lazily
(stas00/ml-engineering, training/performance/README.md)."""
NCCL_BUFFERS = round(1.45 * 2**30)
"""Bytes that appear with the first collective over NCCL (same page)."""
BUCKETS = 2 * 5 * 10**8 * 2
"""Bytes of the two buckets, of 5e8 half-precision numbers each, through which gradients are
reduced and weights gathered (DeepSpeed's reduce_bucket_size and allgather_bucket_size)."""
ALLOCATOR = holds("").allocator_bytes
"""Bytes of a run by no framework that is known; of one that is, its file has them."""


@dataclass(frozen=True)
class Overhead:
    """Bytes per device that no tensor of the model accounts for.

    >>> Overhead(context=10, nccl=20, buckets=30, allocator=40).total
    100
    """

    context: int = CUDA_CONTEXT
    """The CUDA context, which no run is without. Buffers and buckets can be made smaller, and what
    the allocator holds is fitted."""
    nccl: int = NCCL_BUFFERS
    """Buffers of the collectives; 0 on a single device."""
    buckets: int = BUCKETS
    """Where gradients and weights are gathered to be sent; 0 on a single device and in ZeRO-3."""
    allocator: int = ALLOCATOR
    """Fragmentation and workspaces."""

    @property
    def total(self) -> int:
        return self.context + self.nccl + self.buckets + self.allocator

    def __str__(self) -> str:
        return (
            f"CUDA context {format_bytes(self.context)}, NCCL {format_bytes(self.nccl)}, "
            f"buckets {format_bytes(self.buckets)}, allocator {format_bytes(self.allocator)}"
        )


def default_overhead(devices: int, zero: int = 0, framework: str = "") -> Overhead:
    """The budget of a run on ``devices`` devices under a stage of ZeRO: a single device has no
    collectives, and ZeRO-3 no buckets: what it gathers stands in the ledger, item by item. What
    the allocator wastes is the framework's.

    >>> default_overhead(8).total - default_overhead(1).total == NCCL_BUFFERS + BUCKETS
    True
    """
    several, allocator = devices > 1, holds(framework).allocator_bytes
    buckets = BUCKETS * (several and zero < 3)
    return Overhead(nccl=NCCL_BUFFERS * several, buckets=buckets, allocator=allocator)


def overhead_of(layout: Layout, framework: str = "") -> Overhead:
    """The budget of ``layout``: over one copy ZeRO shards nothing, and changes nothing."""
    zero = layout.zero if layout.dp * layout.cp > 1 else 0
    return default_overhead(layout.devices, zero, framework)


def overheads(n: Layout | Numbers, framework: str = "") -> Any:
    """Total bytes of the budgets of many layouts, as ``overhead_of`` has them."""
    copies = np.asarray(n.dp * n.cp)
    buckets = BUCKETS * ((np.asarray(n.zero) < 3) | (copies == 1))
    several = copies * n.tp * n.pp > 1
    return CUDA_CONTEXT + holds(framework).allocator_bytes + several * (NCCL_BUFFERS + buckets)


@cache
def measured_over_estimated(framework: str) -> tuple[str, tuple[float, ...]]:
    """(whose, measured over estimated bytes) of the published rows: those of ``framework`` if ten
    or more differ, else of all frameworks. tests/oracles/published.py writes them."""
    every = shipped_json("calibration", "memory_errors.json")
    own = tuple(every.get(framework, ()))
    if len(own) >= FEW:
        return framework, own
    return "all frameworks", tuple(ratio for ratios in every.values() for ratio in ratios)


@dataclass(frozen=True)
class DeviceLimits:
    """Bytes of a device, and what they say of a run: the one rule of ``fits`` and ``search``.

    >>> limits = DeviceLimits(nominal=1000, reported=1000, sure=1000, most=1050)
    >>> [VERDICTS[limits.verdict(peak, 70, 10)] for peak in (930, 931, 990, 991, 1040, 1041)]
    ['fits', 'tight', 'tight', 'tight', 'tight', 'no']
    """

    nominal: int
    reported: int
    """What a run is counted with: what the driver reports for one whose framework is named, else
    the nominal capacity."""
    sure: int
    """Tensors and overhead up to which a run fits: the nominal capacity, or less where, as far off
    as the published rows, fewer than half of the runs would have room."""
    most: int
    """Tensors and context beyond which nothing fits: the nominal capacity for a plan by nobody's
    own program; for one whose framework is known, what the driver reports less NCCL's buffers, if
    that is more."""

    @classmethod
    def of(cls, device: Device, recipe: Recipe, ours: bool = True) -> "DeviceLimits":
        """That of ``device``; ``ours``: the overhead is that with which the published rows were
        compared."""
        named, nominal = recipe.framework and not recipe.usual, device.memory_bytes
        reported = device.most_bytes if named else nominal
        half = median_low(measured_over_estimated(recipe.framework)[1])
        sure = min(nominal, int(reported / half)) if ours else nominal
        return cls(nominal, reported, sure, max(nominal, reported - NCCL_BUFFERS))

    def verdict(self, peak: Any, total: Any, context: int = CUDA_CONTEXT) -> Any:
        """The place in VERDICTS of ``peak`` bytes of tensors beside an overhead of ``total``,
        ``context`` among them; numbers or columns."""
        return (peak + context > self.most) * 1 + (peak + total > self.sure)

    def shortfall(self, peak: int, context: int = CUDA_CONTEXT) -> int:
        """Bytes by which ``peak`` and the context exceed the nominal capacity, where they exceed
        the most; 0 if they do not."""
        return peak + context - self.nominal if peak + context > self.most else 0
