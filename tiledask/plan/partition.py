"""Layers onto devices: the best contiguous split, and every split there is.

layers   0  1  2  3  4  5 | 6  7  8  9 10 11 |12 13 14 15 16 17 |18 19 20 21 22 23
device        0           |        1         |        2         |        3
bounds   0                  6                 12                 18                24
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from html import escape
from itertools import combinations, pairwise

from tiledask.errors import PartitionError
from tiledask.plan.exact import capacities, count, exact, whole
from tiledask.plan.minmax import min_max_bounds, prefix_sums, reach
from tiledask.plan.units import format_bytes

__all__ = [
    "Partition",
    "contiguous_splits",
    "count_contiguous_splits",
    "partition",
]


@dataclass(frozen=True, repr=False)
class Partition:
    """A contiguous split: stage s holds layers bounds[s], ..., bounds[s + 1] - 1, counted from 0.

    >>> cut = Partition((0, 2, 3), (1.0, 1.0, 4.0), (1.0, 2.0))
    >>> cut.sizes, cut.times, cut.bottleneck, cut
    ((2, 1), (2.0, 2.0), 2.0, Partition([1-2][3], bottleneck 2))
    """

    bounds: tuple[int, ...]
    """stages + 1 rising layer indices, from 0 to the number of layers."""
    costs: tuple[float, ...]
    """Cost of each layer, in any one unit (seconds, FLOP)."""
    speeds: tuple[float, ...]
    """Speed of each device, in cost per unit of time."""

    @property
    def stages(self) -> int:
        return len(self.bounds) - 1

    @property
    def layers(self) -> tuple[range, ...]:
        """The layers of each stage, counted from 0."""
        return tuple(range(a, b) for a, b in pairwise(self.bounds))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of layers of each stage."""
        return tuple(len(layers) for layers in self.layers)

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Cost of each stage over its device's speed."""
        sums = (math.fsum(self.costs[r.start : r.stop]) for r in self.layers)
        return tuple(total / v for total, v in zip(sums, self.speeds, strict=True))

    @property
    def bottleneck(self) -> float:
        """The largest stage time."""
        return max(self.times)

    @property
    def place(self) -> tuple[int, ...]:
        """The device of each layer."""
        return tuple(s for s, size in enumerate(self.sizes) for _ in range(size))

    def __str__(self) -> str:
        return "".join(_range_text(layers) for layers in self.layers)

    def __repr__(self) -> str:
        return f"Partition({self}, bottleneck {self.bottleneck:g})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{s}</td><td>{_range_text(layers)}</td><td>{len(layers)}</td>"
            f"<td>{time:g}</td></tr>"
            for s, (layers, time) in enumerate(zip(self.layers, self.times, strict=True))
        )
        head = "<tr><th>stage</th><th>layers</th><th>count</th><th>time</th></tr>"
        return f"<table><caption>{escape(repr(self))}</caption>{head}{rows}</table>"


def _range_text(layers: range) -> str:
    """Layers as people write them, counted from 1: "[7-12]", "[3]"."""
    first, last = layers.start + 1, layers.stop
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def partition(
    costs: Sequence[float],
    stages: int,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    capacity: float | Sequence[float] | None = None,
) -> Partition:
    """The contiguous split into non-empty stages with the smallest bottleneck; exact.

    costs     one per layer, 0 or more, in any one unit; speeds: one per device (default 1),
              devices in the order in which the layers visit them.
    memory    bytes of each layer; capacity: bytes of every device, or one number per device.

    Ties go to the most even split (least sum of squared stage times), then to longer first
    stages. Numbers are compared as exact fractions, so that no rounding decides.
    Raises PartitionError for fewer layers than stages, a cost that is negative or not finite,
    wrong lengths, and capacities that no split satisfies.

    >>> partition([1.0] * 24, stages=4)
    Partition([1-6][7-12][13-18][19-24], bottleneck 6)
    >>> partition([1.0] * 24, stages=4, speeds=[1, 1, 2, 2]).sizes
    (4, 4, 8, 8)
    """
    stages = count(stages, "stages")
    exact_costs = exact(costs, "cost")
    if len(costs) < stages:
        raise PartitionError(
            f"every stage needs a layer of its own, but {len(costs)} layers are fewer than "
            f"{stages} stages; use at most {len(costs)} stages"
        )
    speeds = [1.0] * stages if speeds is None else speeds
    exact_speeds = exact(speeds, "speed", stages, positive=True)
    ceilings = _memory_ceilings(len(costs), stages, memory, capacity)
    bounds = min_max_bounds(whole(exact_costs), exact_speeds, ceilings)
    if bounds is None:
        raise PartitionError(_why_too_small(memory, capacity, stages))
    return Partition(bounds, tuple(map(float, costs)), tuple(map(float, speeds)))


def contiguous_splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """The bounds of every split of ``layers`` into ``stages`` non-empty contiguous stages.

    >>> list(contiguous_splits(4, 2))
    [(0, 1, 4), (0, 2, 4), (0, 3, 4)]
    """
    count(layers, "layers"), count(stages, "stages")
    for cuts in combinations(range(1, layers), stages - 1):
        yield (0, *cuts, layers)


def count_contiguous_splits(layers: int, stages: int) -> int:
    """How many such splits there are: choose stages - 1 cuts out of layers - 1 places.

    >>> count_contiguous_splits(24, 4)
    1771
    """
    return math.comb(count(layers, "layers") - 1, count(stages, "stages") - 1)


def _memory_ceilings(layers: int, stages: int, memory, capacity):
    """Per device, for every first layer, the furthest end that its memory allows."""
    if (memory is None) != (capacity is None):
        raise PartitionError("memory (of each layer) and capacity (of each device) go together")
    if memory is None:
        return [reach(prefix_sums([0] * layers), 0)] * stages
    sizes = exact(memory, "memory", layers)
    caps = [Fraction(min(c, sum(sizes))) for c in capacities(capacity, stages)]
    scale = math.lcm(*(v.denominator for v in sizes))
    prefix = prefix_sums([int(v * scale) for v in sizes])
    by_capacity = {c: reach(prefix, c * scale // 1) for c in set(caps)}
    return [by_capacity[c] for c in caps]


def _why_too_small(memory, capacity, stages: int) -> str:
    """Which layer fits nowhere, or how much larger the capacities would have to be."""
    caps = capacities(capacity, stages)
    layer = max(range(len(memory)), key=memory.__getitem__)
    if memory[layer] > max(caps):
        return (
            f"layer {layer + 1} needs {format_bytes(memory[layer])} and the largest capacity is "
            f"{format_bytes(max(caps))}: it fits on no device; split the layer itself, or use "
            f"larger devices"
        )
    if len(set(caps)) == 1:
        least = partition(memory, stages).bottleneck
        return (
            f"no contiguous split into {stages} stages keeps within {format_bytes(caps[0])} per "
            f"device; the smallest capacity that would do is {format_bytes(least)}"
        )
    total = math.fsum(memory)  # as good as no limit
    factor = partition(memory, stages, speeds=[min(c, total) for c in caps]).bottleneck
    return (
        f"no contiguous split into {stages} stages keeps within the capacities "
        f"{', '.join(map(format_bytes, caps))}; all of them {factor:.4g} times as large would do"
    )
