"""Layers onto devices: the best contiguous split, every split there is, and a judge of answers.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        0           |        1         |        2         |        3
bounds   0                  6                 12                 18                24
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import accumulate, combinations, groupby, pairwise
from typing import Any, SupportsIndex

from tiledask.errors import PartitionError, short
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import MOST_COUNT, is_whole, whole_number

__all__ = ["Partition", "Verdict", "contiguous_splits", "judge", "partition", "read_assignment"]

MOST_LAYERS, MOST_STATES = 100_000, 100_000  # of a partition; of partial splits held at once
count = partial(whole_number, least=1, most=MOST_COUNT, error=PartitionError)
"""``count(name, value)``: the value as an int of at least 1."""


@dataclass(frozen=True, repr=False)
class Partition:
    """A contiguous split: stage s holds layers bounds[s], ..., bounds[s + 1] - 1, from 0."""

    bounds: tuple[int, ...]
    costs: tuple[float, ...]
    speeds: tuple[float, ...]
    """Of each device, in cost per unit of time; stage s is on device s mod their number."""
    communication: tuple[float, ...] = ()
    """Time to send across each place between two layers; empty for none."""

    stages: int = field(init=False, compare=False)
    devices: int = field(init=False, compare=False)
    layers: tuple[range, ...] = field(init=False, compare=False)
    """Of each stage, from 0."""
    sizes: tuple[int, ...] = field(init=False, compare=False)
    """Number of layers of each stage."""
    place: tuple[int, ...] = field(init=False, compare=False)
    """The device of each layer, from 0."""
    times: tuple[float, ...] = field(init=False, compare=False)
    """Of each stage, cost over its device's speed, plus the sending after its last layer."""
    device_times: tuple[float, ...] = field(init=False, compare=False)
    """Of each device, the sum of its stages' times."""
    bottleneck: float = field(init=False, compare=False)
    """The largest stage time."""

    def __post_init__(self) -> None:
        stages, devices = len(self.bounds) - 1, len(self.speeds)
        layers = tuple(range(a, b) for a, b in pairwise(self.bounds))
        place = tuple(s % devices for s, r in enumerate(layers) for _ in r)
        sends = (*self.communication, 0.0) if self.communication else (0.0,) * len(self.costs)
        times = tuple(
            math.fsum(self.costs[r.start : r.stop]) / self.speeds[s % devices] + sends[r[-1]]
            for s, r in enumerate(layers)
        )
        vars(self).update(stages=stages, devices=devices, layers=layers, place=place)
        vars(self).update(sizes=tuple(map(len, layers)), times=times, bottleneck=max(times))
        vars(self).update(device_times=tuple(math.fsum(times[d::devices]) for d in range(devices)))

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
    chunks, stages = count("chunks", chunks), count("stages", stages)
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

    ``rates``: by stage, the time of a cost of 1; ``sends``: of a cut before each layer and behind
    the last; ``room``: of each device. The limit of a stage's time grows until there is a split,
    then halves the distance; the last, below the best, is the proof."""
    sums, held = (list(accumulate(each, initial=0)) for each in (costs, memory))

    def split(limit: int) -> tuple[int, tuple[int, ...]] | None:
        """(bottleneck, bounds) of the most even split whose stages take at most ``limit``. Of parts
        from the last stage on that leave the same layers and memory the most even is kept."""
        # partial splits: (first layer, room left on each device) -> (sum of squares, -bounds)
        grown: dict[tuple[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]
        grown = {(len(costs), room): (0, ())}
        reach = list(accumulate((limit // rate for rate in rates), initial=0))
        for s in reversed(range(len(rates))):
            shorter, grown = grown, {}
            device, rate, top = s % len(room), rates[s], bisect_right(sums, reach[s])
            for (end, free), (squares, behind) in shorter.items():
                for start in range(min(end, top) - 1, s - 1, -1):
                    time = (sums[end] - sums[start]) * rate + sends[end]
                    rest = free[device] - held[end] + held[start]
                    if time > limit or rest < 0:
                        break
                    kept = rest if s >= len(room) else 0  # nothing more comes to this device
                    left = *free[:device], kept, *free[device + 1 :]
                    value = squares + time * time, (-end, *behind)
                    known = grown.get((start, left), (math.inf, ()))
                    if held[start] <= sum(left) and value < known:
                        grown[start, left] = value
            if len(grown) > MOST_STATES:
                many = f"more than {MOST_STATES:,} partial splits"
                raise PartitionError(f"{many}; use fewer layers or chunks")
        if not (whole := [value for (start, _), value in grown.items() if start == 0]):
            return None
        bounds = 0, *(-bound for bound in min(whole)[1])
        parts = zip(rates, pairwise(bounds), strict=True)
        return max((sums[b] - sums[a]) * rate + sends[b] for rate, (a, b) in parts), bounds

    limit = low = max(max(costs), sum(costs) // len(rates)) * min(rates)
    step, most = low // 16 + 1, sum(costs) * max(rates) + max(sends)
    while (best := split(limit)) is None:
        if limit >= most:
            return None
        low, limit, step = limit, limit + step, 2 * step
    while better := split(best[0] - 1):
        best = better
        if better := split(middle := (low + best[0]) // 2):
            best = better
        else:
            low = middle
    return (split(best[0]) or best)[1]


def contiguous_splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """The bounds of every split of ``layers`` into ``stages`` non-empty contiguous stages.

    >>> list(contiguous_splits(4, 2))
    [(0, 1, 4), (0, 2, 4), (0, 3, 4)]
    """
    for cuts in combinations(range(1, count("layers", layers)), count("stages", stages) - 1):
        yield (0, *cuts, layers)


def stage_name(stage: int, devices: int, chunks: int = 1) -> str:
    """A stage by its device, and which of its chunks it is: "device 1, chunk 1"."""
    return f"device {stage % devices}" + (f", chunk {stage // devices}" if chunks > 1 else "")


def layer_costs(costs: int | Sequence[float]) -> Sequence[float]:
    """The costs themselves, or those of a number of equal layers; PartitionError for too many."""
    several = costs if isinstance(costs, Sized) and not isinstance(costs, str) else None
    layers = count("layers", costs) if several is None else len(several)
    if layers > MOST_LAYERS:
        raise PartitionError(f"there are {MOST_LAYERS:,} layers at most, got {short(layers)}")
    return [1.0] * layers if several is None else several


def capacities(capacity: float | Sequence[float], devices: int) -> list[float]:
    """One capacity per device; a single number stands for all, math.inf for no limit."""
    values = list(capacity) if isinstance(capacity, Sized) else [capacity] * devices
    _exact([v if v != math.inf else 1 for v in values], "capacity", devices, "device", True)
    return values


def _exact(
    values: Sequence[float | Fraction], name: str, length: int, each: str, positive: bool = False
) -> list[Fraction]:
    """The values as fractions; what is not usable is refused with its number."""
    text = isinstance(values, str) or not hasattr(values, "__len__")
    if (got := short(values) if text else len(values)) != length:
        needed = f"where {length} are needed: one for each {each}"
        raise PartitionError(f"got {got} {name} values {needed}")
    found = []
    for i, value in enumerate(values, 0 if each == "device" else 1):
        try:
            found.append(Fraction(value if isinstance(value, int | Fraction) else float(value)))
        except (TypeError, ValueError, OverflowError):  # not a number, NaN, infinite
            found.append(Fraction(-1))
        if found[-1] < 0 or (positive and found[-1] == 0):
            rule = "more than 0" if positive else "0 or more"
            raise PartitionError(f"{name} number {i} must be finite and {rule}, got {short(value)}")
    return found


# -- a judge of answers ----------------------------------------------------------------------------

Assignment = Partition | str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]]
MOST = 1_000_000  # devices, or layers of one range


@dataclass(frozen=True)
class Verdict:
    """What an assignment of layers to devices is worth; false if it breaks a rule."""

    ok: bool
    rule: str
    """Which is broken; empty if none."""
    reason: str
    optimum: float
    """The smallest bottleneck that any legal split has; exact."""
    crossings: int | None = None
    """Of activations; this and what follows is there only if each layer has one place."""
    bottleneck: float | None = None
    stages: tuple[tuple[int, ...], ...] = ()
    times: tuple[float, ...] = ()
    best: bool = False
    """Legal, and no legal split is faster."""

    def __bool__(self) -> bool:
        return self.ok


def judge(
    assignment: Assignment,
    layers: int | None = None,
    devices: int | None = None,
    costs: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    capacity: float | Sequence[float] | None = None,
    communication: float | Sequence[float] | None = None,
    chunks: int | None = None,
) -> Verdict:
    """The verdict on an assignment of layers to devices; the numbers are those of partition().

    ``assignment`` is the layers of each device, from 1: ``[[1, 2], [3, 4]]`` or ``"1-2 | 3-4"``;
    the device of each layer, from 0: ``[0, 0, 1, 1]``; the sizes or bounds, where ``layers`` and
    ``devices`` are given: ``(2, 2)``, ``(0, 2, 4)``; or a :class:`Partition`, with its own costs,
    speeds, communication and chunks.

    With ``chunks`` above 1, stage s is on device s mod ``devices``, and the first form may name the
    layers of each stage as well. Without ``costs`` every layer costs 1. Rules, in the order in
    which they are looked at: unknown device, unknown layer, layer twice, layer missing, idle device
    (or chunk), not contiguous, out of order, over memory. Raises PartitionError for what is not an
    assignment at all, and for a question that no split can answer.

    >>> judge([layer % 3 for layer in range(12)]).rule
    'not contiguous'
    """
    if isinstance(cut := assignment, Partition):
        devices = devices or cut.devices
        chunks = cut.stages // cut.devices if chunks is None else chunks
        if costs is None and layers in (None, len(cut.costs)):
            costs, speeds, communication = cut.costs, cut.speeds, cut.communication or None
    chunks = 1 if chunks is None else count("chunks", chunks)
    layers = len(costs) if layers is None and costs is not None else layers
    known = None if devices is None else count("devices", devices)
    groups = read_assignment(assignment, layers, known and known * chunks)
    layers = max((n for g in groups for n in g), default=0) if layers is None else layers
    devices = known or len(groups)
    costs = layer_costs(layers) if costs is None else list(costs)
    if len(costs) != layers:
        raise PartitionError(f"{len(costs)} costs do not describe {layers} layers: give one each")
    best = partition(costs, devices * chunks, speeds, memory, capacity, communication, chunks)
    stages = stages_of(groups, devices, chunks)
    memory = [0.0] * layers if memory is None else memory
    caps = [math.inf] * devices if capacity is None else capacities(capacity, devices)
    rule, reason = next(_broken(stages, memory, caps, chunks), ("", ""))
    if sorted(n for group in stages for n in group) != [*range(1, layers + 1)]:
        return Verdict(False, rule, reason, best.bottleneck)
    home = {n: s % devices for s, group in enumerate(stages) for n in group}
    crosses = [home[n] != home[n + 1] for n in range(1, layers)]
    # of each stage, cost over its device's speed, plus every send from its layers elsewhere
    sends = best.communication or (0.0,) * layers
    times = tuple(
        math.fsum(costs[n - 1] for n in group) / best.speeds[s % devices]
        + math.fsum(sends[n - 1] for n in group if n < layers and crosses[n - 1])
        for s, group in enumerate(stages)
    )
    what, least = "device" if chunks == 1 else "chunk", best.bottleneck
    reason = reason or f"The slowest {what} takes {max(times):g}; the best possible is {least:g}."
    fastest = not rule and math.isclose(max(times), least, rel_tol=1e-12)
    found = least, sum(crosses), max(times), tuple(map(tuple, stages)), times, fastest
    return Verdict(not rule, rule, reason, *found)


def _broken(
    stages: list[list[int]], memory: Sequence[float], caps: Sequence[float], chunks: int
) -> Iterator[tuple[str, str]]:
    """(rule, reason) of each rule that is broken, in the order in which they are looked at."""
    layers, devices, what = len(memory), len(caps), "device" if chunks == 1 else "chunk"
    names = [stage_name(s, devices, chunks).capitalize() for s in range(len(stages))]
    named, holder = list(zip(names, stages, strict=True)), dict[int, str]()
    if (more := len(stages) - devices * chunks) > 0:
        way = f"leave {more} out" if stages[0] else "they count from 0"
        there = f"The answer names {len(stages)} {what}s and there are {devices * chunks}"
        yield "unknown device", f"{there}; {way}."
    for name, n in ((name, n) for name, group in named for n in group):
        if not 1 <= n <= layers:
            yield "unknown layer", f"{name} is given layer {n}; the layers are 1 to {layers}."
        if n in holder:
            both = f"Layer {n} is on {holder[n].lower()} and again on {name.lower()}"
            yield "layer twice", f"{both}; every layer has one place."
        holder[n] = name
    if missing := [n for n in range(1, layers + 1) if n not in holder]:
        have = f"{len(holder)} of {layers} layers have a place; missing: {layer_ranges(missing)}"
        yield "layer missing", f"{have}. A model without them computes something else."
    for name in (name for name, group in named if not group):
        yield f"idle {what}", f"{name} has 0 of {layers} layers; every {what} needs at least 1."
    rule = f"the layers of a {what} are consecutive, and a device holds {chunks} of them"
    rule = rule if chunks > 1 else "in layer-wise partitioning they are consecutive"
    crossings = sum(holder[n] != holder[n + 1] for n in range(1, layers))
    least = f"{crossings} times, against {len(stages) - 1} for a contiguous split"
    for name, group in named:
        if max(group) - min(group) + 1 != len(group):
            holds = f"{name} holds layers {layer_ranges(group)}; {rule}"
            yield "not contiguous", f"{holds}. Activations change {what} {least}."
    for (name, group), first in zip(named, [0, *(group[0] for group in stages)], strict=False):
        for a, b in pairwise([first, *group]):
            if b < a:
                rule = "layers run in rising order, through the devices and then their next chunks"
                yield "out of order", f"{name} runs layer {b} after layer {a}; {rule}."
    for d, cap in enumerate(caps):
        used = math.fsum(memory[n - 1] for group in stages[d::devices] for n in group)
        if used > cap:
            holds = f"Device {d} would hold {format_bytes(used)} and has room for"
            way = f"move at least {format_bytes(used - cap)} to another device."
            yield "over memory", f"{holds} {format_bytes(cap)}; {way}"


def read_assignment(
    assignment: Assignment, layers: int | None = None, stages: int | None = None
) -> list[list[int]]:
    """The layers of each device, from 1, of any assignment that `judge` takes."""
    if isinstance(assignment, Partition):
        return [[n + 1 for n in group] for group in assignment.layers]
    given: list[Any] = list(assignment) if isinstance(assignment, Iterable) else []
    if isinstance(assignment, str):
        parts = re.split(r"\]\s*,?\s*\[|[|;\n]", assignment.strip("[]() \n\t"))
        groups = [re.findall(r"[^,\s]+", part) for part in parts]
        given = [int(word) for word in groups[0] if word.isdecimal() and len(word) < 10]
        placed = layers in (len(given), sum(given), *given[-1:]) and stages != 1
        if not placed or len(groups) > 1 or len(given) < len(groups[0]):
            read: list[list[int]] = [[] for _ in groups]
            for mine, words in zip(read, groups, strict=True):
                for word in words:
                    match = re.fullmatch(r"(\d{1,12})(?:[-–](\d{1,12}))?", word)
                    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, MOST)
                    if abs(last - first) >= MOST:
                        way = "write layers as in '1-6' or '1,4,7'"
                        raise PartitionError(f"cannot read {short(word)}; {way}")
                    # in the order written
                    mine += range(first, last + 1) or range(first, last - 1, -1)
            return read
    if given and all(is_whole(number) and 0 <= number < MOST for number in given):
        bounds = given if given[0] == 0 else [*accumulate(given, initial=0)]
        if stages != layers == bounds[-1] and len(bounds) == (stages or 0) + 1:
            return [list(range(a + 1, b + 1)) for a, b in pairwise(bounds)]
        found: list[list[int]] = [[] for _ in range(max(given) + 1)]
        for layer, device in enumerate(given, start=1):
            found[device].append(layer)
        return found
    if not given or not all(isinstance(g, Iterable) and not isinstance(g, str) for g in given):
        way = "write layers as '1-6 | 7-12', or the device of each layer, from 0"
        raise PartitionError(f"no assignment: {short(assignment)}; {way}")
    whole = partial(whole_number, "a layer", of="counted from 1", error=PartitionError)
    return [list(map(whole, group)) for group in given]


def stages_of(groups: Sequence[Sequence[int]], devices: int, chunks: int) -> list[list[int]]:
    """The layers of each stage, from groups that are those of the stages or of the devices; then a
    device's layers are cut where a number is left out, and what is too much is in the last one."""
    if chunks == 1 or len(groups) > devices:
        return [list(g) for g in groups] + [[]] * (devices * chunks - len(groups))
    stages: list[list[int]] = [[] for _ in range(devices * chunks)]
    for device, group in enumerate(groups):
        left_out = [0, *(int(b != a + 1) for a, b in pairwise(group))]
        for n, chunk in zip(group, accumulate(left_out), strict=False):
            stages[min(chunk, chunks - 1) * devices + device].append(n)
    return stages


def layer_ranges(layers: Sequence[int], most: int = 8) -> str:
    """The first ``most`` runs of layers as people write them: "1-3, 7, ..."."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(layers), lambda x: x[1] - x[0])]
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(words + ["..."] * (len(runs) > most))
