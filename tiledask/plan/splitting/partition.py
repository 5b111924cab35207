"""Layers onto devices: the best contiguous split, and every split there is.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        1           |        2         |        3         |        4
bounds   0                  6                 12                 18                24

Layers and devices count from 1 in words, from 0 as indices.
"""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise

from tiledask.errors import PartitionError, short
from tiledask.plan import html
from tiledask.plan.splitting.exact import capacities, count, exact, whole
from tiledask.plan.splitting.minmax import LayerSums, min_max_bounds
from tiledask.plan.units import format_bytes

__all__ = [
    "Partition",
    "contiguous_splits",
    "count_contiguous_splits",
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
    """A stage, an index from 0, by its device, both counted from 1.

    >>> stage_name(2, devices=4), stage_name(5, devices=4, chunks=2)
    ('device 3', 'device 2, chunk 2')
    """
    if chunks == 1:
        return f"device {stage + 1}"
    return f"device {stage % devices + 1}, chunk {stage // devices + 1}"


def _range_text(layers: range) -> str:
    """Layers as people write them, counted from 1: "[7-12]", "[3]"."""
    first, last = layers.start + 1, layers.stop
    return f"[{first}]" if first == last else f"[{first}-{last}]"


MOST_LAYERS = 100_000
"""Of a partition: it is worked out in a second or two; beyond lies a typing error."""


def layer_costs(costs: int | Sequence[float]) -> Sequence[float]:
    """The costs themselves, or those of a number of equal layers; PartitionError for too many.

    >>> layer_costs(3)
    [1.0, 1.0, 1.0]
    """
    if not isinstance(costs, Sized):
        return [1.0] * _few(count(costs, "layers"))
    _few(len(costs))
    return costs


def _few(layers: int) -> int:
    """``layers``, if they are not too many to be worked out."""
    if layers > MOST_LAYERS:
        raise PartitionError(
            f"a partition is worked out for {MOST_LAYERS:,} layers at most, got {short(layers)}; "
            f"put layers that stay together into one"
        )
    return layers


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
    most even split (least sum of squared stage times, in floating point; of thousands of layers,
    of which a few are very large, among the splits near the proportional one), then to longer
    first stages.
    Raises PartitionError for fewer layers than stages, a value that is negative or not finite,
    wrong lengths, stages that chunks does not divide, capacities that no split satisfies, and
    shared capacities that decide among too many splits to look at.

    >>> partition([1.0] * 24, stages=4) == partition(24, 4)
    True
    >>> partition([1.0] * 24, stages=4)
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
    chunks = count(chunks, "chunks")
    stages = count(stages, "stages")
    costs = layer_costs(costs)
    exact_costs = exact(costs, "cost")
    _check_stages(stages, len(costs))
    if stages % chunks:
        raise PartitionError(
            f"every device holds the same number of stages, but {stages} stages are no multiple "
            f"of {chunks} chunks; use {stages + -stages % chunks} stages"
        )
    devices = stages // chunks
    speeds = [1.0] * devices if speeds is None else speeds
    exact_speeds = exact(speeds, "speed", devices, "device", positive=True)
    sends = _sends(communication, len(costs))
    # stage times in whole numbers: cost / speed + send, all in one unit of time
    scale = math.lcm(*(v.denominator for v in exact_speeds))
    whole_speeds = [int(v * scale) for v in exact_speeds] * chunks
    values = whole([v * scale for v in exact_costs] + (sends if devices > 1 else []))
    between = values[len(costs) :]
    time = LayerSums(values[: len(costs)], whole_speeds, [0, *between, 0] if any(between) else None)
    bounds = min_max_bounds(time, *_memory_row(len(costs), stages, devices, memory, capacity))
    if bounds is None:
        if memory is None or capacity is None:
            raise AssertionError("there is a split of every row without limits")
        caps = capacities(capacity, devices)
        raise PartitionError(_why_too_small(memory, caps, stages, devices))
    sent = () if devices == 1 else tuple(map(float, sends))
    return Partition(bounds, tuple(map(float, costs)), tuple(map(float, speeds)), sent)


def _check_stages(stages: int, layers: int) -> None:
    if layers < stages:
        raise PartitionError(
            f"every stage needs a layer of its own, but {layers} layers are fewer than "
            f"{short(stages)} stages; use at most {layers} stages"
        )


def _sends(communication: float | Sequence[float] | None, layers: int) -> list[Fraction]:
    """What is sent after each layer but the last; nothing if nothing is said of it."""
    if communication is None:
        return []
    given = communication if isinstance(communication, Sized) else [communication] * (layers - 1)
    return exact(given, "communication", layers - 1, "place between two layers")


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


def _memory_row(
    layers: int,
    stages: int,
    devices: int,
    memory: Sequence[float] | None,
    capacity: float | Sequence[float] | None,
) -> tuple[LayerSums | None, list[int]]:
    """(sizes of the layers, room of each device) in whole numbers; (None, []) for no limit."""
    if (memory is None) != (capacity is None):
        raise PartitionError("memory (of each layer) and capacity (of each device) go together")
    if memory is None or capacity is None:
        return None, []
    sizes = exact(memory, "memory", layers, "layer")
    scale = math.lcm(*(v.denominator for v in sizes))
    row = LayerSums([int(v * scale) for v in sizes], [1] * stages)
    rooms = [
        row.scale if c == math.inf else min(Fraction(c) * scale // 1, row.scale)
        for c in capacities(capacity, devices)
    ]
    return row, rooms


def _why_too_small(memory: Sequence[float], caps: list[float], stages: int, devices: int) -> str:
    """Which layer fits nowhere, or how much larger the capacities would have to be."""
    layer = max(range(len(memory)), key=memory.__getitem__)
    if memory[layer] > max(caps):
        return (
            f"layer {layer + 1} needs {format_bytes(float(memory[layer]))} and the largest "
            f"capacity is {format_bytes(max(caps))}: it fits on no device; split the layer "
            f"itself, or use larger devices"
        )
    if devices < stages:
        return (
            f"no contiguous split keeps the {stages // devices} chunks of every device within its "
            f"capacity: the layers need {format_bytes(math.fsum(memory))} "
            f"and the {devices} devices have {format_bytes(math.fsum(caps))} together; use larger "
            f"devices, or more of them"
        )
    if len(set(caps)) == 1:
        least = partition(memory, stages).bottleneck
        return (
            f"no contiguous split over {stages} devices keeps within {format_bytes(caps[0])} on "
            f"each; the smallest capacity that would do is {format_bytes(least)}"
        )
    total = math.fsum(memory)  # as good as no limit
    factor = partition(memory, stages, speeds=[min(c, total) for c in caps]).bottleneck
    return (
        f"no contiguous split over {stages} devices keeps within the capacities "
        f"{', '.join(map(format_bytes, caps))}; all of them {factor:.4g} times as large would do"
    )
