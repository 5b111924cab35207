"""A judge of assignments of layers to devices: how they are read, and which rule is broken."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, SupportsIndex

from tiledask.errors import PartitionError, short
from tiledask.plan.splitting.partition import (
    Partition,
    capacities,
    count,
    layer_costs,
    partition,
    stage_name,
)
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Assignment", "Verdict", "judge", "layer_ranges", "read_assignment", "stages_of"]

Assignment = Partition | str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]]
"""A split, text, the device of each layer, or the layers of each device."""

MOST = 1_000_000  # devices, or layers of one range


@dataclass(frozen=True)
class Verdict:
    """What an assignment of layers to devices is worth; false if it breaks a rule."""

    ok: bool
    rule: str
    """The rule that is broken, in two or three words; empty if none."""
    reason: str
    """A sentence with the numbers."""
    optimum: float
    """The smallest bottleneck that any legal split has; exact."""
    crossings: int | None = None
    """How often consecutive layers sit on different devices. This and what follows is None or empty
    if a layer has no one place."""
    bottleneck: float | None = None
    stages: tuple[tuple[int, ...], ...] = ()
    times: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    @property
    def best(self) -> bool:
        """Legal, and no legal split is faster."""
        return self.ok and math.isclose(self.bottleneck or 0.0, self.optimum, rel_tol=1e-12)


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

    ``assignment`` is one of
      - the layers of each device, from 1: ``[[1, 2], [3, 4]]`` or ``"1-2 | 3-4"``,
      - the device of each layer, from 0: ``[0, 0, 1, 1]``, also as text,
      - how many layers each device has, or the bounds between them, where ``layers`` and
        ``devices`` are given: ``(2, 2)``, ``(0, 2, 4)``,
      - a :class:`Partition`, with its own costs, speeds, communication and chunks.

    With ``chunks`` above 1, stage s is on device s mod ``devices``, and the first form may name the
    layers of each stage as well. Without ``costs`` every layer costs 1. Rules, in the order in
    which they are looked at: unknown device, unknown layer, layer twice, layer missing, idle device
    (or chunk), not contiguous, out of order, over memory. Raises PartitionError for what is not an
    assignment at all, and for a question that no split can answer.

    >>> judge([layer % 3 for layer in range(12)]).rule
    'not contiguous'
    """
    if isinstance(assignment, Partition):
        cut, devices = assignment, devices or assignment.devices
        chunks = cut.stages // cut.devices if chunks is None else chunks
        if costs is None and layers in (None, len(cut.costs)):
            costs, speeds, communication = cut.costs, cut.speeds, cut.communication or None
    chunks = 1 if chunks is None else count(chunks, "chunks")
    layers = len(costs) if layers is None and costs is not None else layers
    known = None if devices is None else count(devices, "devices")
    groups = read_assignment(assignment, layers, known and known * chunks)
    layers = max((n for g in groups for n in g), default=0) if layers is None else layers
    devices = known or len(groups)
    costs = layer_costs(layers) if costs is None else list(costs)
    if len(costs) != layers:
        raise PartitionError(f"{len(costs)} costs do not describe {layers} layers: give one each")
    numbers = speeds, memory, capacity, communication, chunks
    best = partition(costs, devices * chunks, *numbers).bottleneck
    stages = stages_of(groups, devices, chunks)
    memory = [0.0] * layers if memory is None else memory
    caps = [math.inf] * devices if capacity is None else capacities(capacity, devices)
    rule, reason = next(_broken(stages, memory, caps, chunks), ("", ""))
    if sorted(n for group in stages for n in group) != [*range(1, layers + 1)]:
        return Verdict(False, rule, reason, best)
    home = {n: s % devices for s, group in enumerate(stages) for n in group}
    crosses = [home[n] != home[n + 1] for n in range(1, layers)]
    # of each stage, cost over its device's speed, plus every send from its layers elsewhere
    sends = communication if isinstance(communication, Sized) else [communication or 0.0] * layers
    times = tuple(
        math.fsum(costs[n - 1] for n in group) / (speeds[s % devices] if speeds else 1.0)
        + math.fsum(sends[n - 1] for n in group if n < layers and crosses[n - 1])
        for s, group in enumerate(stages)
    )
    what, slowest = "device" if chunks == 1 else "chunk", max(times)
    reason = reason or f"The slowest {what} takes {slowest:g}; the best possible is {best:g}."
    found = sum(crosses), slowest, tuple(map(tuple, stages)), times
    return Verdict(not rule, rule, reason, best, *found)


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
    rule = "in layer-wise partitioning they are consecutive"
    if chunks > 1:
        rule = f"the layers of a {what} are consecutive, and a device holds {chunks} of them"
    crossings = sum(holder[n] != holder[n + 1] for n in range(1, layers))
    least = f"{crossings} times, against {len(stages) - 1} for a contiguous split"
    last = 0
    for name, group in named:
        if max(group) - min(group) + 1 != len(group):
            holds = f"{name} holds layers {layer_ranges(group)}; {rule}"
            yield "not contiguous", f"{holds}. Activations change {what} {least}."
    for name, group in named:
        for a, b in pairwise([last, *group]):
            if b < a:
                rule = "layers run in rising order, through the devices and then their next chunks"
                yield "out of order", f"{name} runs layer {b} after layer {a}; {rule}."
        last = group[0]
    for d, cap in enumerate(caps):
        used = math.fsum(memory[n - 1] for group in stages[d::devices] for n in group)
        if used > cap:
            holds = f"Device {d} would hold {format_bytes(used)} and has room for"
            way = f"move at least {format_bytes(used - cap)} to another device."
            yield "over memory", f"{holds} {format_bytes(cap)}; {way}"


def read_assignment(
    assignment: Assignment, layers: int | None = None, stages: int | None = None
) -> list[list[int]]:
    """The layers of each device, counted from 1, from any of the forms that `judge` takes.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1]), read_assignment("0 1 1", layers=3)
    ([[1, 2, 3], [4]], [[1], [2, 3]], [[1], [2, 3]])
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in group] for group in assignment.layers]
    given: list[Any] = list(assignment) if isinstance(assignment, Iterable) else []
    if isinstance(assignment, str):
        parts = re.split(r"\]\s*,?\s*\[|[|;\n]", assignment.strip("[]() \n\t"))
        groups = [re.findall(r"[^,\s]+", part) for part in parts]
        words, alone = groups[0], len(parts) == 1
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 10]
        placed = layers in (len(numbers), sum(numbers), *numbers[-1:])
        if not (alone and placed and len(numbers) == len(words) and stages != 1):
            if alone and len(words) == stages:  # commas for bars
                groups = [[word] for word in words]
            return [[n for word in group for n in _range(word)] for group in groups]
        given = numbers
    if given and all(is_whole(number) and 0 <= number < MOST for number in given):
        bounds = given if given[0] == 0 else [*accumulate(given, initial=0)]
        if stages != layers == bounds[-1] and len(bounds) == (stages or 0) + 1:
            return [list(range(a + 1, b + 1)) for a, b in pairwise(bounds)]
        found: list[list[int]] = [[] for _ in range(max(given) + 1)]
        for layer, device in enumerate(given, start=1):
            found[device].append(layer)
        return found
    if not given or not all(isinstance(g, Iterable) and not isinstance(g, str) for g in given):
        raise PartitionError(
            f"no assignment: {short(assignment)}; write layers as '1-6 | 7-12', or the device of "
            f"each layer, from 0"
        )
    whole = partial(whole_number, "a layer", of="counted from 1", error=PartitionError)
    return [list(map(whole, group)) for group in given]


def _range(word: str) -> Iterable[int]:
    """The layers of "3" or "7-12", in the order written."""
    match = re.fullmatch(r"(\d{1,12})(?:[-–](\d{1,12}))?", word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, MOST)
    if abs(last - first) >= MOST:
        raise PartitionError(f"cannot read {short(word)}; write layers as in '1-6' or '1,4,7'")
    return range(first, last + 1) if first <= last else range(first, last - 1, -1)


def stages_of(groups: Sequence[Sequence[int]], devices: int, chunks: int) -> list[list[int]]:
    """The layers of each stage, from groups that are those of the stages or of the devices; then a
    device's layers are cut where a number is left out, and what is too much is in its last chunk.

    >>> stages_of([[1, 2, 5, 6], [3, 4, 7, 8]], devices=2, chunks=2)
    [[1, 2], [3, 4], [5, 6], [7, 8]]
    """
    if chunks == 1 or len(groups) > devices:
        return [list(g) for g in groups] + [[]] * (devices * chunks - len(groups))
    stages: list[list[int]] = [[] for _ in range(devices * chunks)]
    for device, group in enumerate(groups):
        left_out = [0, *(int(b != a + 1) for a, b in pairwise(group))]
        for n, chunk in zip(group, accumulate(left_out), strict=False):
            stages[min(chunk, chunks - 1) * devices + device].append(n)
    return stages


def layer_ranges(layers: Sequence[int], most: int = 8) -> str:
    """Layers as people write them, the first ``most`` runs of them: "1-3, 7, ..."."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(layers), lambda x: x[1] - x[0])]
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(words + ["..."] * (len(runs) > most))
