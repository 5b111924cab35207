"""Layers onto devices: the best contiguous split, and every split there is.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        0           |        1         |        2         |        3
bounds   0                  6                 12                 18                24

Layers count from 1 in words, from 0 as indices; devices and their chunks from 0.
"""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise

from tiledask.errors import PartitionError, short
from tiledask.plan import html
from tiledask.plan.splitting.search import LayerRow, best_bounds
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import MOST_COUNT, whole_number

__all__ = [
    "Partition",
    "capacities",
    "contiguous_splits",
    "count",
    "count_contiguous_splits",
    "layer_costs",
    "partition",
    "stage_name",
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
    """Speed of each device, in cost per unit of time; stage s is on device s mod their number."""
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
        return tuple(len(layers) for layers in self.layers)

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
        return "".join(_range_text(layers) for layers in self.layers)

    def __repr__(self) -> str:
        return f"Partition({self}, bottleneck {self.bottleneck:g})"

    def _repr_html_(self) -> str:
        chunks = self.stages // self.devices
        names = [stage_name(s, self.devices, chunks) for s in range(self.stages)]
        texts = [_range_text(layers) for layers in self.layers]
        rows = zip(names, texts, self.sizes, [f"{t:g}" for t in self.times], strict=True)
        return html.table(("", "layers", "count", "time"), list(rows), repr(self))


def stage_name(stage: int, devices: int, chunks: int = 1) -> str:
    """A stage by its device, and which of its chunks it is.

    >>> stage_name(2, devices=4), stage_name(5, devices=4, chunks=2)
    ('device 2', 'device 1, chunk 1')
    """
    if chunks == 1:
        return f"device {stage}"
    return f"device {stage % devices}, chunk {stage // devices}"


def _range_text(layers: range) -> str:
    """Layers as people write them, counted from 1: "[7-12]", "[3]"."""
    first, last = layers.start + 1, layers.stop
    return f"[{first}]" if first == last else f"[{first}-{last}]"


MOST_LAYERS = 100_000
"""Of a partition; beyond lies a typing error."""

Real = float | Fraction


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

    costs          one per layer, 0 or more, in any one unit; an embedding and a head are the
                   first and the last item. Or a number of equal layers, of cost 1.
    speeds         one per device (default 1), devices in the order in which the layers visit
                   them; a stage takes the cost of its layers / the speed of its device.
    memory         bytes of each layer; capacity: bytes of every device, or one per device.
    communication  time (cost / speed) to send the activations between two layers if they are
                   cut apart: one number, or one for each of the len(costs) - 1 places. A stage
                   takes its layers' time plus that of the cut it sends across, after its last
                   layer; the last stage sends nothing, and neither does a single device.
    chunks         stages per device, as in the interleaved schedule: ``stages`` counts all of
                   them, stage s is on device s mod (stages / chunks), and the stages of one
                   device share its capacity.

    Bottlenecks are compared as exact fractions, so that no rounding decides. Ties go to the
    most even split (least sum of squared stage times, in floating point), then to longer first
    stages.
    Raises PartitionError for fewer layers than stages, a value that is negative or not finite,
    wrong lengths, stages that chunks does not divide, capacities that no split satisfies, and
    shared capacities that decide among too many splits to look at.

    >>> partition(24, stages=4)
    Partition([1-6][7-12][13-18][19-24], bottleneck 6)
    >>> partition([1.0] * 24, stages=4, speeds=[1, 1, 2, 2]).sizes
    (4, 4, 8, 8)
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
        raise PartitionError(
            f"every stage needs a layer of its own, but {len(costs)} layers are fewer than "
            f"{short(stages)} stages; use at most {len(costs)} stages"
        )
    if stages % chunks:
        raise PartitionError(
            f"every device holds the same number of stages, but {stages} stages are no multiple "
            f"of {chunks} chunks; use {stages + -stages % chunks} stages"
        )
    if (memory is None) != (capacity is None):
        raise PartitionError("memory (of each layer) and capacity (of each device) go together")
    devices, between = stages // chunks, len(costs) - 1
    speeds = [1.0] * devices if speeds is None else speeds
    sends = communication if isinstance(communication, Sized) else [communication or 0] * between
    each_cost = _exact(costs, "cost", len(costs), "layer")
    each_speed = _exact(speeds, "speed", devices, "device", positive=True)
    each_send = _exact(sends, "communication", between, "place between two layers")
    # stage times in whole numbers: cost / speed + send, all in one unit of time
    scale = math.lcm(*(v.denominator for v in each_speed))
    travels = each_send if devices > 1 else [Fraction(0)] * between
    whole = _whole([*(v * scale for v in each_cost), *travels])
    sizes, rooms, caps = [0] * len(costs), [0] * devices, list[float]()
    if memory is not None and capacity is not None:
        caps = capacities(capacity, devices)
        held = _exact(memory, "memory", len(costs), "layer")
        unit = math.lcm(*(v.denominator for v in held))
        sizes = [int(v * unit) for v in held]
        rooms = [sum(sizes) if c == math.inf else int(Fraction(c) * unit // 1) for c in caps]
    row = LayerRow(
        whole[: len(costs)],
        [int(v * scale) for v in each_speed] * chunks,
        [0, *whole[len(costs) :], 0],
        sizes,
        rooms,
    )
    bounds = best_bounds(row)
    if bounds is None:
        raise PartitionError(_why_too_small(memory or [], caps, stages, devices))
    sent = () if devices == 1 or communication is None else tuple(map(float, each_send))
    return Partition(bounds, tuple(map(float, costs)), tuple(map(float, speeds)), sent)


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


# -- numbers that people give, as exact fractions -------------------------------------------------


def count(value: object, name: str) -> int:
    """``value`` as an int of at least 1."""
    return whole_number(name, value, 1, MOST_COUNT, error=PartitionError)


def layer_costs(costs: int | Sequence[float]) -> Sequence[float]:
    """The costs themselves, or those of a number of equal layers; PartitionError for too many.

    >>> layer_costs(3)
    [1.0, 1.0, 1.0]
    """
    layers = len(costs) if isinstance(costs, Sized) else count(costs, "layers")
    if layers > MOST_LAYERS:
        raise PartitionError(
            f"a partition is worked out for {MOST_LAYERS:,} layers at most, got {short(layers)}; "
            f"put layers that stay together into one"
        )
    return costs if isinstance(costs, Sized) else [1.0] * layers


def capacities(capacity: float | Sequence[float], devices: int) -> list[float]:
    """One capacity per device; a single number stands for all, math.inf for no limit.

    >>> capacities(80, 2)
    [80, 80]
    """
    values = capacity if isinstance(capacity, Sized) else [capacity] * devices
    finite = [1 if v == math.inf else v for v in values]
    _exact(finite, "capacity", devices, "device", positive=True)
    return list(values)


def _exact(
    values: Sequence[Real], name: str, length: int, each: str, positive: bool = False
) -> list[Fraction]:
    """The values as fractions; what is not usable is refused with its number."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise PartitionError(f"give the {name} values as a list of numbers, got {short(values)}")
    if len(values) != length:
        raise PartitionError(
            f"got {len(values)} {name} values where {length} are needed: one for each {each}"
        )
    fractions = []
    for i, value in enumerate(values, 0 if each == "device" else 1):
        try:
            fraction = Fraction(value if isinstance(value, int | Fraction) else float(value))
        except (TypeError, ValueError, OverflowError):  # not a number, NaN, infinite
            fraction = Fraction(-1)
        if fraction < 0 or (positive and fraction == 0):
            rule = "more than 0" if positive else "0 or more"
            raise PartitionError(
                f"{name} number {i} must be a finite number, {rule}; got {short(value)}"
            )
        fractions.append(fraction)
    return fractions


def _whole(values: list[Fraction]) -> list[int]:
    """The values in the largest unit that makes all of them whole."""
    scale = math.lcm(*(v.denominator for v in values))
    scaled = [int(v * scale) for v in values]
    unit = math.gcd(*scaled) or 1
    return [v // unit for v in scaled]


def _why_too_small(memory: Sequence[float], caps: list[float], stages: int, devices: int) -> str:
    """Which layer fits nowhere, or how much larger the capacities would have to be."""
    total, largest, most = math.fsum(memory), max(memory), max(caps)
    if largest > most:
        return (
            f"layer {list(memory).index(largest) + 1} needs {format_bytes(float(largest))} and the "
            f"largest capacity is {format_bytes(most)}: it fits on no device; split the layer "
            f"itself, or use larger devices"
        )
    if devices < stages:
        return (
            f"no contiguous split keeps the {stages // devices} chunks of every device within its "
            f"capacity: the layers need {format_bytes(total)} and the {devices} devices have "
            f"{format_bytes(math.fsum(caps))} together; use larger devices, or more of them"
        )
    within = f"no contiguous split over {stages} devices keeps within"
    factor = partition(memory, stages, [min(c, total) for c in caps]).bottleneck
    if most == min(caps):
        least = format_bytes(factor * min(most, total))
        return (
            f"{within} {format_bytes(most)} on each; the smallest capacity that would do is {least}"
        )
    rooms = ", ".join(map(format_bytes, caps))
    return f"{within} the capacities {rooms}; all of them {factor:.4g} times as large would do"
