"""The exact min-max split where a stage may have several devices, which take its micro-batches in
turn (PipeDream: Narayanan et al., SOSP 2019, section 3.1).

    layers    0 1 2 3 4 5 6 7 8 | 9 10 11        a stage of cost c, weights w and r devices takes
    devices       0  1  2       |    3           max(c, 2 (r - 1) w) / r for each micro-batch

A limit on that is tried by a dynamic programme for the fewest devices that keep within it: of a
stage they are c / limit, rounded up, for fewer are too slow, and more have a longer sum. The search
ends when nothing is strictly faster than what is in hand; whole numbers are compared, not floats.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

__all__ = ["ReplicatedLayers"]

_HALVINGS = 20
"""Of the span of possible limits, before every faster split is looked for."""

Split = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(devices, stages, its ends with their sign changed, replicas): of two within a limit the less."""


class ReplicatedLayers:
    """Layers in a row, on at most so many equal devices.

    ``costs`` and ``weights`` of the layers and ``sends`` after each, the last one's 0, all whole
    numbers of 0 or more; ``stages``: how many there shall be, or None for any number.

    >>> ReplicatedLayers([3, 1], [0, 9], [0, 0], devices=4).best()
    ((0, 1, 2), (3, 1))
    """

    def __init__(
        self,
        costs: Sequence[int],
        weights: Sequence[int],
        sends: Sequence[int],
        devices: int,
        stages: int | None = None,
    ) -> None:
        self.costs, self.weights = (list(accumulate(each, initial=0)) for each in (costs, weights))
        self.sends, self.devices, self.stages = list(sends), devices, stages

    def best(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(bounds, replicas) with the least bottleneck. Of splits that are as fast, one of the
        fewest devices, then of the fewest stages, then with the longer first stages."""
        best = self.within(Fraction(self.costs[-1] + max(self.sends)))
        assert best is not None  # one device for each stage
        low = Fraction(0)
        for _ in range(_HALVINGS):
            middle = (low + self.slowest(best)) / 2
            if (found := self.within(middle)) is None:
                low = middle
            else:
                best = found
        while (found := self.within(self.slowest(best), strict=True)) is not None:
            best = found
        best = self.within(self.slowest(best))
        assert best is not None
        return (0, *(-end for end in best[2])), best[3]

    def slowest(self, split: Split) -> Fraction:
        """The time of the slowest stage for a micro-batch."""
        _, _, ends, replicas = split
        stages = zip(pairwise([0, *(-end for end in ends)]), replicas, strict=True)
        return max(Fraction(max(self.work(a, b), self.summing(a, b, r)), r) for (a, b), r in stages)

    def work(self, start: int, end: int) -> int:
        """Of these layers as one stage on one device, and of the sending after it."""
        return self.costs[end] - self.costs[start] + self.sends[end - 1]

    def summing(self, start: int, end: int, replicas: int) -> int:
        """Of their gradients over so many devices, on all of these together."""
        return 2 * (replicas - 1) * (self.weights[end] - self.weights[start])

    def within(self, limit: Fraction, strict: bool = False) -> Split | None:
        """The least split of which every stage takes ``limit`` at most, or strictly less; None if
        there is none."""
        layers = len(self.sends)
        lasts = [[*self._lasts(end, limit, strict)] for end in range(layers + 1)]
        nothing: list[Split | None] = [None] * (layers + 1)
        before = [(0, 0, (), ()), *nothing[1:]]
        for _ in range(self.stages or 1):
            # of any number of stages all go into one table, of so many each into the next
            after = nothing.copy() if self.stages else before
            for end in range(1, layers + 1):
                after[end] = self._least(before, end, lasts[end])
            before = after
        return before[-1]

    def _lasts(self, end: int, limit: Fraction, strict: bool) -> Iterator[tuple[int, int]]:
        """(start, replicas) of the stages within the limit that end there."""
        for start in range(end - 1, -1, -1):
            if (replicas := self._fewest(start, end, limit, strict)) is None:
                return  # a longer stage needs more devices, and has more to sum
            yield start, replicas

    def _least(
        self, before: Sequence[Split | None], end: int, lasts: Iterable[tuple[int, int]]
    ) -> Split | None:
        """The least split of the layers up to ``end``, by those before its last stage."""
        least, most = None, self.devices
        for start, replicas in lasts:
            if (split := before[start]) is not None and split[0] + replicas <= most:
                devices, stages, ends, counts = split
                made = devices + replicas, stages + 1, (*ends, -end), (*counts, replicas)
                least = made if least is None else min(least, made)
                most = least[0]
        return least

    def _fewest(self, start: int, end: int, limit: Fraction, strict: bool) -> int | None:
        """On how many devices these layers keep within the limit; None if on none."""
        work, n, d = self.work(start, end), limit.numerator, limit.denominator
        if not n:
            return None if strict or work else 1
        replicas = work * d // n + 1 if strict else max(1, -(-work * d // n))
        over = self.summing(start, end, replicas) * d - n * replicas
        return replicas if replicas <= self.devices and (over < 0 or not (strict or over)) else None
