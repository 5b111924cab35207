"""Layers onto devices: the best contiguous split, and every split there is.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        0           |        1         |        2         |        3
bounds   0                  6                 12                 18                24
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, combinations, pairwise

from tiledask.errors import PartitionError, short
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = [
    "Partition",
    "capacities",
    "contiguous_splits",
    "count",
    "layer_costs",
    "partition",
    "stage_name",
]

MOST_LAYERS, MOST_STATES = 100_000, 100_000  # of a partition; of partial splits held at once


@dataclass(frozen=True, repr=False)
class Partition:
    """A contiguous split: stage s holds layers bounds[s], ..., bounds[s + 1] - 1, from 0."""

    bounds: tuple[int, ...]
    """stages + 1 rising layer indices, from 0 to the number of layers."""
    costs: tuple[float, ...]
    speeds: tuple[float, ...]
    """Of each device, in cost per unit of time; stage s is on device s mod their number."""
    communication: tuple[float, ...] = ()
    """Time to send across each place between two layers; empty for none."""

    @property
    def stages(self) -> int:
        return len(self.bounds) - 1

    @property
    def devices(self) -> int:
        return len(self.speeds)

    @property
    def layers(self) -> tuple[range, ...]:
        """The layers of each stage, counted from 0."""
        return tuple(range(a, b) for a, b in pairwise(self.bounds))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of layers of each stage."""
        return tuple(map(len, self.layers))

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Of each stage, cost over its device's speed, plus the sending after its last layer."""
        sends = (*self.communication, 0.0) if self.communication else (0.0,) * len(self.costs)
        return tuple(
            math.fsum(self.costs[r.start : r.stop]) / self.speeds[s % self.devices] + sends[r[-1]]
            for s, r in enumerate(self.layers)
        )

    @property
    def device_times(self) -> tuple[float, ...]:
        """Of each device, the sum of its stages' times."""
        return tuple(math.fsum(self.times[d :: self.devices]) for d in range(self.devices))

    @property
    def bottleneck(self) -> float:
        """The largest stage time."""
        return max(self.times)

    @property
    def place(self) -> tuple[int, ...]:
        """The device of each layer, from 0."""
        return tuple(s % self.devices for s, size in enumerate(self.sizes) for _ in range(size))

    def __str__(self) -> str:
        ends = [sorted({r.start + 1, r.stop}) for r in self.layers]
        return "".join(f"[{'-'.join(map(str, each))}]" for each in ends)

    def __repr__(self) -> str:
        return f"Partition({self}, bottleneck {self.bottleneck:g})"


def partition(
    costs: int | Sequence[float],
    stages: int,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    capacity: float | Sequence[float] | None = None,
    communication: float | Sequence[float] | None = None,
    chunks: int = 1,
) -> Partition:
    """The contiguous split into non-empty stages with the smallest bottleneck; exact.

    costs          one per layer, 0 or more, in any one unit; or a number of layers of cost 1
    speeds         one per device (default 1), devices in the order in which the layers visit
                   them; a stage takes the cost of its layers / the speed of its device
    memory         bytes of each layer; capacity: bytes of every device, or one per device
    communication  time (cost / speed) to send the activations between two layers if they are
                   cut apart: one number, or one for each of the len(costs) - 1 places. A stage
                   sends after its last layer; the last stage and a single device send nothing.
    chunks         stages per device: ``stages`` counts all of them, stage s is on device
                   s mod (stages / chunks), and the stages of one device share its capacity

    Bottlenecks are compared exactly. Ties go to the most even split (least sum of squared stage
    times), then to longer first stages. Raises PartitionError for numbers that are wrong or too
    few, and for capacities that no split satisfies, or that leave too many to look at.

    >>> partition(24, stages=4)
    Partition([1-6][7-12][13-18][19-24], bottleneck 6)
    >>> partition([0.5] + 22 * [1] + [2], stages=4).times  # embedding, 22 layers, head
    (6.5, 6.0, 6.0, 6.0)
    >>> partition([4, 1, 1, 4], stages=2, communication=[0, 3, 0]).sizes
    (3, 1)
    >>> partition([1.0] * 8, stages=4, chunks=2).place
    (0, 0, 1, 1, 0, 0, 1, 1)
    """
    chunks, stages = count(chunks, "chunks"), count(stages, "stages")
    costs = layer_costs(costs)
    if len(costs) < stages:
        raise PartitionError(f"{len(costs)} layers are fewer than {short(stages)} stages")
    if stages % chunks:
        raise PartitionError(f"{stages} stages are no multiple of {chunks} chunks per device")
    if (memory is None) != (capacity is None):
        raise PartitionError("memory (of each layer) and capacity (of each device) go together")
    devices, between = stages // chunks, len(costs) - 1
    sends = communication if isinstance(communication, Sized) else [communication or 0] * between
    each_cost = _exact(costs, "cost", len(costs), "layer")
    each_speed = _exact(speeds or [1.0] * devices, "speed", devices, "device", positive=True)
    each_send = _exact(sends, "communication", between, "place between two layers")
    # cost / speed + send in whole numbers: of costs, of what a cost takes, of both
    unit = math.lcm(*(v.denominator for v in (*each_cost, *each_send)))
    per_cost = math.lcm(*(v.numerator for v in each_speed))
    rates = [int(per_cost / v) for v in each_speed] * chunks
    travels = [int(v * unit * per_cost) if devices > 1 else 0 for v in each_send]
    held, caps = [Fraction(0)] * len(costs), [Fraction(0)]  # memory is no limit
    if memory is not None and capacity is not None:
        held = _exact(memory, "memory", len(costs), "layer")
        given = capacities(capacity, devices)
        caps = [sum(held, Fraction(0)) if cap == math.inf else Fraction(cap) for cap in given]
    least = math.lcm(*(v.denominator for v in held))
    sizes, rooms = [int(v * least) for v in held], tuple(int(cap * least) for cap in caps)
    bounds = _best_bounds([int(v * unit) for v in each_cost], rates, [0, *travels, 0], sizes, rooms)
    if bounds is None:
        numbers = map(float, (sum(held), max(held), sum(caps), max(caps)))
        needed, largest, have, most = map(format_bytes, numbers)
        raise PartitionError(
            f"no contiguous split over {stages} stages fits: the layers need {needed}, the largest "
            f"{largest}, and the {devices} devices have {have}, the largest {most}"
        )
    sent = () if devices == 1 or communication is None else tuple(map(float, each_send))
    return Partition(bounds, tuple(map(float, costs)), tuple(map(float, each_speed)), sent)


def _best_bounds(
    costs: list[int], rates: list[int], sends: list[int], memory: list[int], room: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The bounds of the best split, all numbers whole; None if memory allows none.

    ``rates``: by stage, the time of a cost of 1; ``sends``: the time of a cut before each layer and
    behind the last; ``room``: of each device. The limit of a stage's time grows until there is a
    split, then halves the distance; the last, below the best, is the proof.
    """

    def split(limit: int) -> tuple[int, tuple[int, ...]] | None:
        if (bounds := _most_even(costs, rates, sends, memory, room, limit)) is None:
            return None
        times = zip(rates, pairwise(bounds), strict=True)
        return max(sum(costs[a:b]) * rate + sends[b] for rate, (a, b) in times), bounds

    limit = low = max(max(costs), sum(costs) // len(rates)) * min(rates)
    step, whole = low // 16 + 1, sum(costs) * max(rates) + max(sends)
    while (best := split(limit)) is None:
        if limit >= whole:
            return None
        low, limit, step = limit, limit + step, 2 * step
    while better := split(best[0] - 1):
        best = better
        if better := split(middle := (low + best[0]) // 2):
            best = better
        else:
            low = middle
    return _most_even(costs, rates, sends, memory, room, best[0])


def _most_even(
    costs: list[int],
    rates: list[int],
    sends: list[int],
    memory: list[int],
    room: tuple[int, ...],
    limit: int,
) -> tuple[int, ...] | None:
    """The most even split whose stages take at most ``limit``; None for none. Grown from the last
    stage to the first; of parts that leave the same layers and memory the most even is kept."""
    sums, held = (list(accumulate(each, initial=0)) for each in (costs, memory))
    reach = list(accumulate((limit // rate for rate in rates), initial=0))
    # partial splits: (first layer, room left on each device) -> (sum of squares, -bounds behind)
    grown: dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]
    grown = {(len(costs), room): (0, ())}
    for s in reversed(range(len(rates))):
        shorter, grown = grown, {}
        device, rate, top = s % len(room), rates[s], bisect_right(sums, reach[s])
        for (end, free), (squares, bounds) in shorter.items():
            for start in range(min(end, top) - 1, s - 1, -1):
                time = (sums[end] - sums[start]) * rate + sends[end]
                rest = free[device] - held[end] + held[start]
                if time > limit or rest < 0:
                    break
                kept = rest if s >= len(room) else 0  # nothing more comes to this device
                left = *free[:device], kept, *free[device + 1 :]
                value = squares + time * time, (-end, *bounds)
                if held[start] <= sum(left) and value < grown.get((start, left), (math.inf, ())):
                    grown[start, left] = value
        if len(grown) > MOST_STATES:
            raise PartitionError(
                f"more than {MOST_STATES:,} partial splits; use fewer layers or chunks"
            )
    found = min((value for (start, _), value in grown.items() if start == 0), default=None)
    return found and (0, *(-bound for bound in found[1]))


def contiguous_splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """The bounds of every split of ``layers`` into ``stages`` non-empty contiguous stages.

    >>> list(contiguous_splits(4, 2))
    [(0, 1, 4), (0, 2, 4), (0, 3, 4)]
    """
    for cuts in combinations(range(1, count(layers, "layers")), count(stages, "stages") - 1):
        yield (0, *cuts, layers)


def stage_name(stage: int, devices: int, chunks: int = 1) -> str:
    """A stage by its device, and which of its chunks it is: "device 1, chunk 1"."""
    return f"device {stage % devices}" + (f", chunk {stage // devices}" if chunks > 1 else "")


def count(value: object, name: str) -> int:
    """``value`` as an int of at least 1."""
    return whole_number(name, value, 1, MOST_COUNT, error=PartitionError)


def layer_costs(costs: int | Sequence[float]) -> Sequence[float]:
    """The costs themselves, or those of a number of equal layers; PartitionError for too many."""
    text = isinstance(costs, str)
    layers = len(costs) if isinstance(costs, Sized) and not text else count(costs, "layers")
    if layers > MOST_LAYERS:
        raise PartitionError(f"there are {MOST_LAYERS:,} layers at most, got {short(layers)}")
    return costs if isinstance(costs, Sized) else [1.0] * layers


def capacities(capacity: float | Sequence[float], devices: int) -> list[float]:
    """One capacity per device; a single number stands for all, math.inf for no limit."""
    values = capacity if isinstance(capacity, Sized) else [capacity] * devices
    finite = [1 if v == math.inf else v for v in values]
    _exact(finite, "capacity", devices, "device", positive=True)
    return list(values)


def _exact(
    values: Sequence[float | Fraction], name: str, length: int, each: str, positive: bool = False
) -> list[Fraction]:
    """The values as fractions; what is not usable is refused with its number."""
    got: object = len(values) if hasattr(values, "__len__") else short(values)
    if isinstance(values, str) or got != length:
        raise PartitionError(
            f"got {got} {name} values where {length} are needed: one for each {each}"
        )
    fractions = []
    for i, value in enumerate(values, 0 if each == "device" else 1):
        try:
            fraction = Fraction(value if isinstance(value, int | Fraction) else float(value))
        except (TypeError, ValueError, OverflowError):  # not a number, NaN, infinite
            fraction = Fraction(-1)
        if fraction < 0 or (positive and fraction == 0):
            rule = "more than 0" if positive else "0 or more"
            raise PartitionError(f"{name} number {i} must be finite and {rule}, got {short(value)}")
        fractions.append(fraction)
    return fractions
