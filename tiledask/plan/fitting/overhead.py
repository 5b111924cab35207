"""What a device holds beyond the arithmetic, by name, and the verdict that follows from it.

0 .... estimate .... + CUDA context ........ + whole overhead     capacity right of all: "fits"
                                                                  between the last two:  "tight"
                                                                  left of the context:   "no"
"""

from dataclasses import dataclass
from functools import cache
from statistics import median_low
from typing import Any

from tiledask.plan.data import shipped_json
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import holds
from tiledask.plan.units import format_bytes

__all__ = ["VERDICTS", "DeviceLimits", "Overhead", "measured_over_estimated", "overhead_of"]

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


@dataclass(frozen=True)
class Overhead:
    """Bytes per device that no tensor of the model accounts for; each one number, or a column."""

    context: Any
    """The CUDA context, which no run is without; the rest can be made smaller, or is fitted."""
    nccl: Any
    """Buffers of the collectives; 0 on a single device."""
    buckets: Any
    """Where gradients and weights are gathered to be sent; 0 on a single device and in ZeRO-3: what
    it gathers stands in the ledger, item by item."""
    allocator: Any
    """Fragmentation and workspaces, by framework."""

    @property
    def total(self) -> Any:
        return self.context + self.nccl + self.buckets + self.allocator

    def __str__(self) -> str:
        names = "CUDA context", "NCCL", "buckets", "allocator"
        sizes = map(format_bytes, vars(self).values())
        return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))


def overhead_of(n: Layout | Numbers, framework: str = "") -> Overhead:
    """The budget of a layout, or of many; over one copy ZeRO shards nothing, and changes nothing.

    >>> overhead_of(Layout(dp=8)).total - overhead_of(Layout()).total == NCCL_BUFFERS + BUCKETS
    True
    """
    copies = n.dp * n.cp
    several = copies * n.tp * n.pp > 1
    buckets = BUCKETS * (several & ((n.zero < 3) | (copies == 1)))
    return Overhead(CUDA_CONTEXT, NCCL_BUFFERS * several, buckets, holds(framework).allocator_bytes)


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
    """Bytes of a device that decide of a run: the one rule of `fits` and `search`."""

    reported: int
    """What a run is counted with: what the driver reports for one whose framework is named, else
    the nominal capacity."""
    sure: int
    """Tensors and overhead up to which a run fits: the nominal capacity, or less where, as far off
    as the published rows, fewer than half of the runs would have room."""
    most: int
    """Tensors and context beyond which nothing fits: the nominal capacity, or for a framework that
    was named what the driver reports less NCCL's buffers, if that is more."""
    framework: str = ""
    own: int | None = None
    """The overhead that was given, in any layout; None: the usual one of each."""

    @classmethod
    def of(cls, device: Device, recipe: Recipe, own: int | None = None) -> "DeviceLimits":
        """Of ``device``, for a run by the framework of ``recipe``."""
        named, nominal = recipe.framework and not recipe.usual, device.memory_bytes
        reported = device.most_bytes if named else nominal
        half = median_low(measured_over_estimated(recipe.framework)[1])
        sure = min(nominal, int(reported / half)) if own is None else nominal
        return cls(reported, sure, max(nominal, reported - NCCL_BUFFERS), recipe.framework, own)

    def overhead(self, n: Layout | Numbers) -> Overhead:
        """That of a layout, or of many."""
        return overhead_of(n, self.framework) if self.own is None else Overhead(0, 0, 0, self.own)

    def verdict(self, peak: Any, over: Overhead) -> Any:
        """The place in VERDICTS of ``peak`` bytes of tensors beside ``over``.

        >>> limits = DeviceLimits(1000, sure=1000, most=1050)
        >>> [VERDICTS[limits.verdict(n, Overhead(10, 60, 0, 0))] for n in (930, 931, 1040, 1041)]
        ['fits', 'tight', 'tight', 'no']
        """
        return (peak + over.context > self.most) * 1 + (peak + over.total > self.sure)
