"""Splits that others use, to compare with the best one, and how often each misses it.

costs [4, 4, 9, 8] in 3 stages       bounds            largest stage
even                                 (0, 2, 3, 4)       9
torchgpipe                           (0, 3, 3, 4)      17, and the second is empty
best                                 (0, 2, 3, 4)       9

Each function takes the costs of the layers and a number of stages and returns stages + 1
bounds. Their faults are theirs: bounds repeat where the original leaves a stage empty, and
torchgpipe's may even fall, so that a layer is in two stages.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from tiledask.errors import PartitionError
from tiledask.plan import intervals
from tiledask.plan.intervals import ends_of
from tiledask.plan.splitting.partition import partition

__all__ = [
    "Misses",
    "deepspeed",
    "deepspeed_probing",
    "even",
    "greedy",
    "heuristics",
    "misses",
    "torchgpipe",
]


def even(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """As equal numbers of layers as can be, longer stages first, whatever the layers cost.

    >>> even([1, 1, 1, 1, 9], 2)
    (0, 3, 5)
    """
    return tuple(ends_of(intervals.even(len(costs), stages)))


def greedy(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Each stage takes layers while it stays within the average of a stage; the last the rest.

    >>> greedy([4, 4, 9, 8], 3)
    (0, 2, 2, 4)
    """
    average, bounds, sums = math.fsum(costs) / stages, [0], [0, *accumulate(costs)]
    for _ in range(stages - 1):
        end = bounds[-1]
        while end < len(costs) and sums[end + 1] - sums[bounds[-1]] <= average:
            end += 1
        bounds.append(end)
    return (*bounds, len(costs))


def torchgpipe(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Block partition: the nearest lightest stage takes a layer over from the heaviest's side.

    Costs are first scaled to [0, 1]; it stops when heaviest and lightest stage are within 1, the
    largest scaled layer, of each other. Bárány and Grinberg's theorem (arXiv:1308.2452) that
    torchgpipe's ``balance.blockpartition`` builds on promises no more than that.

    >>> torchgpipe([4, 4, 9, 8], 3), torchgpipe([0, 0], 2)
    ((0, 3, 3, 4), (0, 1, 2))
    """
    if len(costs) < stages:
        raise PartitionError(
            f"block partition gives every stage a layer to begin with, but {len(costs)} layers are "
            f"fewer than {stages} stages; use at most {len(costs)} stages"
        )
    least, span = min(costs), max(costs) - min(costs)
    scaled = [(c - least) / span if span else 0.0 for c in costs]
    ends = [len(costs) // stages * s for s in range(1, stages)] + [len(costs)]

    def blocks() -> list[tuple[float, int]]:
        return [(sum(scaled[a:b]), s) for s, (a, b) in enumerate(pairwise([0, *ends]))]

    while True:
        most, heaviest = max(blocks())
        giver = None
        while giver != heaviest:
            fewest, lightest = min(blocks())
            if most <= fewest + 1:
                return (0, *ends)
            if heaviest < lightest:
                giver = lightest - 1
                ends[giver] -= 1
            else:
                giver = lightest + 1
                ends[lightest] += 1


def deepspeed(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """The least difference between the largest and the smallest stage, stage by stage.

    The dynamic programme of DeepSpeed's ``runtime.utils.partition_balanced``. It keeps one
    split per (layers, stages), the one of least difference so far, though another may become
    better: it is exact neither for the difference nor for the bottleneck.

    >>> deepspeed([0, 1, 2, 3, 3, 3], 4), deepspeed([0.0, 1.1, 30, 3.0], 3)
    ((0, 3, 4, 5, 6), (0, 2, 3, 4))
    """
    layers = len(costs)
    if layers <= stages:
        return tuple(min(s, layers) for s in range(stages + 1))
    sums = [0, *accumulate(costs)]
    Split = tuple[float, float, tuple[int, ...]]  # largest stage, smallest stage, bounds
    best: dict[int, Split] = {0: (0.0, math.inf, (0,))}  # by layers so far
    for _ in range(stages):
        longer: dict[int, Split] = {}
        for end in range(1, layers + 1):
            for start, (most, fewest, bounds) in best.items():
                if start >= end:
                    continue
                stage = sums[end] - sums[start]
                value = max(most, stage), min(fewest, stage), (*bounds, end)
                kept = longer.get(end)
                if kept is None or value[0] - value[1] <= kept[0] - kept[1]:
                    longer[end] = value
        best = longer
    return best[layers][2]


def deepspeed_probing(costs: Sequence[float], stages: int, eps: float = 1e-3) -> tuple[int, ...]:
    """Binary search for the bottleneck, to within ``eps``, as earlier DeepSpeed releases did.

    A probe lets each stage end just before its sum reaches the bottleneck that is tried. Where
    the first layer alone is larger it looks at the sum of all, and may pass by mistake.

    >>> deepspeed_probing([1] * 5, 4)
    (0, 2, 4, 5, 5)
    """
    layers = len(costs)
    if layers <= stages:
        return tuple(min(s, layers) for s in range(stages + 1))
    sums = list(accumulate(costs))

    def probe(bottleneck: float) -> tuple[tuple[int, ...], bool]:
        """Where stages of less than ``bottleneck`` end, and whether it was enough."""
        bounds, target, size = [0], bottleneck, layers // stages
        step = size
        while len(bounds) < stages:
            while step < layers and sums[step] < target:
                step += size
            bounds.append(bisect_left(sums, target, step - size, min(step, layers)))
            if bounds[-1] == layers:
                enough = sums[-1] - sums[bounds[-2]] < bottleneck
                return (*bounds, *[layers] * (stages + 1 - len(bounds))), enough
            target = sums[bounds[-1] - 1] + bottleneck
        return (*bounds, layers), target >= sums[-1]

    low, high = sums[-1] / stages, sums[-1]
    while high > low + eps:
        middle = (low + high) / 2
        if probe(middle)[1]:
            high = middle
        else:
            low = middle + eps
    return probe(high)[0]


heuristics: dict[str, Callable[[Sequence[float], int], tuple[int, ...]]] = {
    "even": even,
    "greedy": greedy,
    "torchgpipe": torchgpipe,
    "deepspeed": deepspeed,
    "deepspeed probing": deepspeed_probing,
}


@dataclass(frozen=True)
class Misses:
    """How one heuristic did against the exact optimum."""

    cases: int
    """Splits looked at."""
    missed: int
    """Splits with a larger bottleneck than the best one."""
    worst: float
    """The largest bottleneck over the best, less 1: 0.25 is 25 % slower than need be."""
    average: float
    """Mean of that over all cases, those that it did not miss included."""
    empty: int
    """Splits that leave a stage without a layer."""


def misses(cases: Iterable[tuple[Sequence[float], int]]) -> dict[str, Misses]:
    """For each heuristic by name, how often and by how much it misses the best split.

    ``cases`` are pairs (costs, stages). Sums are exact fractions, so that no rounding counts as
    a miss; costs that are all 0 cannot be missed. Raises PartitionError without a case and for
    fewer layers than stages.

    >>> misses([([4, 4, 9, 8], 3), ([1, 1, 1], 3)])["torchgpipe"]
    Misses(cases=2, missed=1, worst=0.8888888888888888, average=0.4444444444444444, empty=1)
    """
    excess: dict[str, list[float]] = {name: [] for name in heuristics}
    empty: Counter[str] = Counter()
    for costs, stages in cases:
        best = _bottleneck(costs, partition(costs, stages).bounds)
        for name, split in heuristics.items():
            bounds = split(costs, stages)
            excess[name].append(float(_bottleneck(costs, bounds) / best - 1) if best else 0.0)
            empty[name] += any(a >= b for a, b in pairwise(bounds))
    if not excess["even"]:
        raise PartitionError(
            "misses are counted over at least one case, got 0; give (costs, stages)"
        )
    return {
        name: Misses(
            len(over), sum(x > 0 for x in over), max(over), math.fsum(over) / len(over), empty[name]
        )
        for name, over in excess.items()
    }


def _bottleneck(costs: Sequence[float], bounds: Sequence[int]) -> Fraction:
    return max(sum(map(Fraction, costs[a:b]), Fraction(0)) for a, b in pairwise(bounds))
