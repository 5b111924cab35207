"""Layers onto devices: the best contiguous split, and every split there is.

layers   0  1  2  3  4  5 | 6  7  8  9 10 11 |12 13 14 15 16 17 |18 19 20 21 22 23
device        0           |        1         |        2         |        3
bounds   0                  6                 12                 18                24
"""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from tiledask.errors import PartitionError, short
from tiledask.plan import html
from tiledask.plan.splitting.exact import capacities, count, exact, whole
from tiledask.plan.splitting.minmax import LayerSums, min_max_bounds
from tiledask.plan.splitting.replicated import ReplicatedLayers
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
    """Speed of each device, in cost per unit of time; stage s is on device s mod their number."""
    communication: tuple[float, ...] = ()
    """Time to send across each place between two layers; empty for none."""
    replicas: tuple[int, ...] = ()
    """On how many devices each stage is, which take its micro-batches in turn; empty for one."""
    weights: tuple[float, ...] = ()
    """Time to send each layer's weights, whose gradients replicas sum; empty for none."""

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
        """Of each stage, cost over its device's speed, plus the sending after its last layer; of
        one with replicas, for each micro-batch: the replicas' part of that, or the time in which
        they sum their gradients, if that is longer."""
        sends = (*self.communication, 0.0) if self.communication else (0.0,) * len(self.costs)
        alone = tuple(
            math.fsum(self.costs[r.start : r.stop]) / self.speeds[s % self.devices] + sends[r[-1]]
            for s, r in enumerate(self.layers)
        )
        if not self.replicas:
            return alone
        sums = (2 * math.fsum(self.weights[r.start : r.stop]) for r in self.layers)
        return tuple(
            max(time, (n - 1) * each) / n
            for time, each, n in zip(alone, sums, self.replicas, strict=True)
        )

    @property
    def device_times(self) -> tuple[float, ...]:
        """Of each device, the sum of its stages' times."""
        if self.replicas:
            each = zip(self.times, self.replicas, strict=True)
            return tuple(time for time, n in each for _ in range(n))
        return tuple(math.fsum(self.times[d :: self.devices]) for d in range(self.devices))

    @property
    def bottleneck(self) -> float:
        """The largest stage time."""
        return max(self.times)

    @property
    def place(self) -> tuple[int, ...]:
        """The device of each layer. Raises PartitionError where one is on several."""
        if max(self.replicas, default=1) > 1:
            raise PartitionError(
                f"layers of {self} are on up to {max(self.replicas)} devices; replicas says on how "
                f"many each stage is"
            )
        return tuple(s % self.devices for s, size in enumerate(self.sizes) for _ in range(size))

    def __str__(self) -> str:
        texts = [_range_text(layers) for layers in self.layers]
        if self.replicas:
            each = zip(texts, self.replicas, strict=True)
            texts = [text if n == 1 else f"{n} x {text}" for text, n in each]
        return " ".join(texts) if max(self.replicas, default=1) > 1 else "".join(texts)

    def __repr__(self) -> str:
        return f"Partition({self}, bottleneck {self.bottleneck:g})"

    def _repr_html_(self) -> str:
        columns: dict[str, Sequence[Any]] = {
            "stage": range(self.stages),
            "layers": [_range_text(layers) for layers in self.layers],
            "count": self.sizes,
            **({"devices": self.replicas} if self.replicas else {}),
            "time of a micro-batch" if self.replicas else "time": [f"{t:g}" for t in self.times],
        }
        return html.table(tuple(columns), list(zip(*columns.values(), strict=True)), repr(self))


def _range_text(layers: range) -> str:
    """Layers as people write them, counted from 1: "[7-12]", "[3]"."""
    first, last = layers.start + 1, layers.stop
    return f"[{first}]" if first == last else f"[{first}-{last}]"


MOST_LAYERS = 100_000
"""Of a partition: it is worked out in a second or two; beyond lies a typing error."""
MOST_REPLICATED = 300
"""Of one whose stages may have several devices: some seconds."""


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
    stages: int | None = None,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    capacity: float | Sequence[float] | None = None,
    communication: float | Sequence[float] | None = None,
    chunks: int = 1,
    devices: int | None = None,
    weights: float | Sequence[float] | None = None,
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
    devices        at most so many equal ones, of which a stage may have several: its replicas take
                   its micro-batches in turn (PipeDream). ``stages`` may then be left out, for as
                   many as are best. Bottleneck and stage times are for each micro-batch: of r
                   replicas the r-th part.
    weights        with ``devices``, the time (cost / speed) to send the weights of each layer, or
                   one number for all: r replicas take 2 (r - 1) / r of their stage's to sum their
                   gradients, beside the work, for every micro-batch. If they sum them once for m
                   micro-batches, as in `tiledask.schedule("1f1b", ..., replicas=)`, give the m-th
                   part.

    Bottlenecks are compared as exact fractions, so that no rounding decides. Ties go to the
    most even split (least sum of squared stage times, in floating point; of thousands of layers,
    of which a few are very large, among the splits near the proportional one), then to longer
    first stages; with ``devices``, to fewer of them, fewer stages, and longer first stages.
    Raises PartitionError for fewer layers than stages, a value that is negative or not finite,
    wrong lengths, stages that chunks does not divide, capacities that no split satisfies, shared
    capacities that decide among too many splits to look at; and with ``devices`` for fewer of them
    than stages, speeds, capacities, chunks, and more than 300 layers.

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
    >>> partition([4, 4, 4, 1, 3], stages=2, devices=4)
    Partition(3 x [1-3] [4-5], bottleneck 4)
    >>> partition([4, 4, 4, 1, 3], devices=4, weights=[0, 0, 0, 9, 9]).replicas
    (3, 1)
    """
    chunks = count(chunks, "chunks")
    if devices is not None:
        others = {"speeds": speeds, "memory": memory, "capacity": capacity}
        others |= {"chunks": chunks if chunks > 1 else None}
        return _replicated(costs, stages, devices, weights, communication, others)
    if stages is None or weights is not None:
        raise PartitionError(
            "a partition is into stages=, or over devices= of which a stage may have several; "
            "weights= are summed over these"
        )
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
    exact_speeds = exact(speeds, "speed", devices, positive=True)
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
    return exact(given, "communication", layers - 1)


def _replicated(
    costs: int | Sequence[float],
    stages: int | None,
    devices: int,
    weights: float | Sequence[float] | None,
    communication: float | Sequence[float] | None,
    others: dict[str, Any],
) -> Partition:
    """The best split over equal devices, of which a stage may have several."""
    if given := [name for name, value in others.items() if value is not None]:
        raise PartitionError(
            f"devices= are equal, with room for any stage, and have one each; leave out "
            f"{' and '.join(given)}, or devices"
        )
    devices, costs = count(devices, "devices"), layer_costs(costs)
    layers, exact_costs = len(costs), exact(costs, "cost")
    if not 0 < layers <= MOST_REPLICATED:
        raise PartitionError(
            f"layers are shared among devices for 1 to {MOST_REPLICATED} of them, got {layers}; "
            f"put layers that stay together into one"
        )
    if stages is not None:
        _check_stages(count(stages, "stages"), layers)
        if stages > devices:
            raise PartitionError(
                f"every stage needs a device, and {stages} stages are more than {devices} devices; "
                f"use {stages} devices, or {devices} stages"
            )
    given_weights = weights if isinstance(weights, Sized) else [weights or 0] * layers
    exact_weights, sends = exact(given_weights, "weights", layers), _sends(communication, layers)
    values = whole([*exact_costs, *exact_weights, *sends, *[Fraction(0)] * (layers - len(sends))])
    work, summed, after = (values[n * layers : (n + 1) * layers] for n in range(3))
    bounds, replicas = ReplicatedLayers(work, summed, after, devices, stages).best()
    sent, speeds = tuple(map(float, sends)), (1.0,) * sum(replicas)
    of_weights = () if weights is None else tuple(map(float, exact_weights))
    return Partition(bounds, tuple(map(float, costs)), speeds, sent, replicas, of_weights)


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
    sizes = exact(memory, "memory", layers)
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
            f"no contiguous split into {stages} stages keeps the {stages // devices} chunks of "
            f"every device within its capacity: the layers need {format_bytes(math.fsum(memory))} "
            f"and the {devices} devices have {format_bytes(math.fsum(caps))} together; use larger "
            f"devices, or more of them"
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
