"""What a device holds beyond the arithmetic, by name, and the verdict that follows from it.

0 .... estimate .... + CUDA context ........ + whole overhead     capacity right of all: "fits"
                                                                  between the last two:  "tight"
                                                                  left of the context:   "no"
"""

from functools import cache
from statistics import median_low
from typing import Any, NamedTuple

from tiledask.plan.data import shipped_json
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.recipes import Recipe

__all__ = ["VERDICTS", "Overhead", "measured_over_estimated", "overhead_of"]

VERDICTS = ("fits", "tight", "no")
CUDA_CONTEXT, NCCL_BUFFERS = round(0.92 * 2**30), round(1.45 * 2**30)
"""Bytes of a CUDA context with all kernels loaded, and of what the first collective over NCCL adds
(stas00/ml-engineering, training/performance/README.md)."""
BUCKETS = 2 * 5 * 10**8 * 2
"""Bytes of DeepSpeed's reduce_bucket_size and allgather_bucket_size, in half precision."""


def overhead_of(n: Layout | Numbers, framework: str = "") -> Any:
    """Bytes of a layout, or of many, that no tensor accounts for: a CUDA context; NCCL's buffers
    and buckets on several devices, no buckets where ZeRO-3 shards (what it gathers stands in the
    ledger); and what the allocator of ``framework`` does not use.

    >>> overhead_of(Layout(dp=8)) - overhead_of(Layout()) == NCCL_BUFFERS + BUCKETS
    True
    """
    copies = n.dp * n.cp
    several = copies * n.tp * n.pp > 1
    buckets = BUCKETS * (several & ((n.zero < 3) | (copies == 1)))
    return CUDA_CONTEXT + NCCL_BUFFERS * several + buckets + memory_of(framework).allocator_bytes


@cache
def measured_over_estimated(framework: str) -> tuple[float, ...]:
    """Measured over estimated bytes of the published rows: those of ``framework`` if ten or more
    differ, else of all frameworks. tests/oracles/published.py writes them."""
    every = shipped_json("calibration", "memory_errors.json")
    own = tuple(every.get(framework, ()))
    return own if len(own) >= 10 else tuple(n for ratios in every.values() for n in ratios)


class Overhead(NamedTuple):
    """Bytes per device that no tensor of the model accounts for, each one number or a column, and
    those that then decide of a run: the one rule of `fits` and `search`."""

    context: Any  # The CUDA context, which no run is without
    total: Any
    sure: int
    """Tensors and overhead up to which a run fits: the nominal capacity, or less where, as far off
    as the published rows, fewer than half of the runs would have room."""
    most: int
    """Tensors and context beyond which nothing fits: the nominal capacity, or for a framework that
    was named what the driver reports less NCCL's buffers, if that is more."""

    @classmethod
    def of(
        cls, device: Device, recipe: Recipe, n: Layout | Numbers, own: int | None = None
    ) -> "Overhead":
        """That of a layout, or of many, on ``device``; ``own``: the total that was given."""
        nominal, reported = device.memory_bytes, (device.memory_mib or 0) * 2**20
        # what the driver reports, where it is known of this capacity and a framework is named
        named = recipe.framework and not recipe.usual
        reported = reported if named and nominal <= reported <= 1.08 * nominal else nominal
        most = max(nominal, reported - NCCL_BUFFERS)
        if own is not None:
            return cls(0, own, nominal, most)
        half = median_low(measured_over_estimated(recipe.framework))
        total = overhead_of(n, recipe.framework)
        return cls(CUDA_CONTEXT, total, min(nominal, int(reported / half)), most)

    def verdict(self, peak: Any) -> Any:
        """The place in VERDICTS of ``peak`` bytes of tensors beside this.

        >>> over = Overhead(10, 70, sure=1000, most=1050)
        >>> [VERDICTS[over.verdict(n)] for n in (930, 931, 1040, 1041)]
        ['fits', 'tight', 'tight', 'no']
        """
        return (peak + self.context > self.most) * 1 + (peak + self.total > self.sure)
