"""A judge of assignments of layers to devices: which rule is broken, and how far from the best.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        0           |        1         |        2         |        3
                          ^ a crossing: the activations change device here

With chunks, the stages are assigned round the devices: 0 1 2 3 0 1 2 3.
"""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, pairwise

from tiledask.errors import PartitionError
from tiledask.plan import html
from tiledask.plan.splitting.answers import Assignment, layer_ranges, read_assignment, stages_of
from tiledask.plan.splitting.partition import (
    Partition,
    capacities,
    count,
    layer_costs,
    partition,
    stage_name,
)
from tiledask.plan.units import format_bytes

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """What an assignment of layers to devices is worth; false if it breaks a rule."""

    ok: bool
    """Whether every rule is kept."""
    rule: str
    """The rule that is broken, in two or three words; empty if none."""
    reason: str
    """A sentence with the numbers."""
    crossings: int | None
    """How often consecutive layers sit on different devices; None if a layer has no one place."""
    bottleneck: float | None
    """Largest stage time; None if a layer has no one place."""
    optimum: float
    """The smallest bottleneck that any legal split has; exact."""
    stages: tuple[tuple[int, ...], ...] = ()
    """The layers of each stage; empty if a layer has no one place."""
    times: tuple[float, ...] = ()
    """Of each stage."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def best(self) -> bool:
        """Legal, and no legal split is faster."""
        if self.bottleneck is None:
            return False
        return self.ok and math.isclose(self.bottleneck, self.optimum, rel_tol=1e-12)

    def _repr_html_(self) -> str:
        mark = "legal" if self.ok else f"refused: {self.rule}"
        numbers = [("crossings", self.crossings), ("bottleneck", self.bottleneck)]
        if self.ok:  # a wrong answer is not told the best
            numbers.append(("best possible", self.optimum))
        rows = [(name, "-" if value is None else f"{value:g}") for name, value in numbers]
        found = html.table((), rows, first="th")
        return f"<p><b>{html.words(mark)}</b>. {html.words(self.reason)}</p>{found}"


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
      - the layers of each device, counted from 1: ``[[1, 2, 3], [4, 5, 6]]`` or ranges,
      - the same as text: ``"1-3 | 4-6"`` or ``"[1-3][4-6]"`` or ``"1,2,3 | 4,5,6"``,
      - the device of each layer: ``[0, 0, 0, 1, 1, 1]``, counted from 0, also as text,
      - how many layers each device has, or the bounds between them, where it is said how many
        layers and devices there are: ``(3, 3)``, ``(0, 3, 6)``,
      - a :class:`Partition`.

    With ``chunks`` above 1 a device holds so many stages, assigned round the devices: stage s is on
    device s mod ``devices``. The first two forms may then name the layers of each stage as well.

    Without ``costs`` every layer costs 1; a Partition has its own costs, speeds, communication
    and chunks, where none are given. The number of layers is that of the costs, else ``layers``,
    else what the assignment shows. Rules, in the order in which they are looked at: unknown
    device, unknown layer, layer twice, layer missing, idle device (or chunk), not contiguous,
    wrong chunks, out of order, over memory. Raises PartitionError for what is not an assignment
    at all, and for a question that no split can answer.

    >>> round_robin = [layer % 3 for layer in range(12)]
    >>> verdict = judge(round_robin)
    >>> verdict.ok, verdict.rule, verdict.crossings
    (False, 'not contiguous', 11)
    >>> judge("1-4 | 5-8 | 9-12").crossings
    2
    >>> judge(round_robin, chunks=4).ok  # the same, as four chunks of one layer on each device
    True
    """
    if isinstance(assignment, Partition):
        devices = assignment.devices if devices is None else devices
        chunks = assignment.stages // assignment.devices if chunks is None else chunks
        if costs is None and layers in (None, len(assignment.costs)):
            costs, communication = assignment.costs, assignment.communication or None
            speeds = assignment.speeds
    chunks = 1 if chunks is None else count(chunks, "chunks")
    layers = len(costs) if layers is None and costs is not None else layers
    known = None if devices is None else count(devices, "devices")
    groups = read_assignment(assignment, layers, known and known * chunks)
    if layers is None:
        layers = max((n for g in groups for n in g), default=0)
    devices = known or len(groups)
    costs = layer_costs(layers) if costs is None else list(costs)
    if len(costs) != layers:
        raise PartitionError(f"{len(costs)} costs do not describe {layers} layers: give one each")
    numbers = speeds, memory, capacity, communication, chunks
    best = partition(costs, devices * chunks, *numbers).bottleneck
    for rule, reason in _no_cover(groups, layers, devices, chunks):
        return Verdict(False, rule, reason, None, None, best)
    cut = stages_of(groups, devices, chunks)
    home = {n: s % devices for s, group in enumerate(cut) for n in group}
    place = [home[n] for n in range(1, layers + 1)]
    # of each stage, cost over its device's speed, plus every send from its layers elsewhere
    crosses = [a != b for a, b in pairwise(place)]
    sends = communication if isinstance(communication, Sized) else [communication or 0.0] * layers
    times = tuple(
        math.fsum(costs[n - 1] for n in group) / (speeds[s % devices] if speeds else 1.0)
        + math.fsum(sends[n - 1] for n in group if n < layers and crosses[n - 1])
        for s, group in enumerate(cut)
    )
    found = sum(crosses), max(times), best, tuple(map(tuple, cut)), times
    broken = _not_layerwise(cut, place, devices, chunks)
    for rule, reason in chain(broken, _over_memory(place, memory, capacity, devices)):
        return Verdict(False, rule, reason, *found)
    what = "device" if chunks == 1 else "chunk"
    reason = f"The slowest {what} takes {max(times):g}; the best possible is {best:g}."
    return Verdict(True, "", reason, *found)


# -- the rules, in the order in which they are looked at: (rule, reason) of each that is broken ----

Broken = Iterator[tuple[str, str]]


def _no_cover(groups: list[list[int]], layers: int, devices: int, chunks: int) -> Broken:
    """Some layer has not exactly one place among the devices."""
    stages, many = devices * chunks, len(groups)
    if many > stages:
        of_chunks = f"chunks and there are {stages}, {chunks} on each of {devices} devices"
        what = of_chunks if chunks > 1 else f"devices and there are {stages}"
        more = f"leave {many - stages} out" if groups[0] else "they count from 0"
        yield "unknown device", f"The answer names {many} {what}; {more}."
    if devices < many < stages:
        each = f"each of {devices} devices, or of each of {stages} chunks ({chunks} per device)"
        yield "wrong chunks", f"The answer has {many} groups of layers; give the layers of {each}."
    holder: dict[int, str] = {}
    for g, group in enumerate(groups):
        name = stage_name(g, devices, 1 if many <= devices else chunks)
        for n in group:
            if not 1 <= n <= layers:
                given = f"{name.capitalize()} is given layer {n}"
                yield "unknown layer", f"{given}; the layers are 1 to {layers}."
            if n in holder:
                both = f"Layer {n} is on {holder[n]} and again on {name}"
                yield "layer twice", f"{both}; every layer has one place."
            holder[n] = name
    if missing := [f"{n}" for n in range(1, layers + 1) if n not in holder]:
        names = ", ".join(missing[:6] + ["..."] * (len(missing) > 6))
        have = f"{len(holder)} of {layers} layers have a place; missing: {names}"
        yield "layer missing", f"{have}. A model without them computes something else."


def _not_layerwise(stages: list[list[int]], place: list[int], devices: int, chunks: int) -> Broken:
    """A stage has no layers, or they are not consecutive, or not in rising order."""
    what, before = "chunk", "chunk 0 of every device, then through chunk 1, ..."
    consecutive = f"the layers of a chunk are consecutive, and a device holds {chunks} chunks."
    if chunks == 1:
        what, before = "device", "the devices in order"
        consecutive = (
            f"in layer-wise partitioning they are consecutive. Activations change device "
            f"{sum(a != b for a, b in pairwise(place))} times, against {devices - 1} for a "
            f"contiguous split.{_interleaved(place, devices)}"
        )
    names = [stage_name(s, devices, chunks) for s in range(len(stages))]
    for name, group in zip(names, stages, strict=True):
        if not group:
            has = f"{name.capitalize()} has 0 of {len(place)} layers"
            yield f"idle {what}", f"{has}; every {what} needs at least 1."
    for name, group in zip(names, stages, strict=True):
        if max(group) - min(group) + 1 != len(group):
            holds = f"{name.capitalize()} holds layers {layer_ranges(group)}"
            yield "not contiguous", f"{holds}; {consecutive}"
    for s, (name, group) in enumerate(zip(names, stages, strict=True)):
        if group != sorted(group):
            runs = f"{name.capitalize()} runs layer {group[0]} before layer {min(group)}"
            yield "out of order", f"{runs}; layers run in rising order."
        if s and group[0] < (first := stages[s - 1][0]):
            here = f"{name.capitalize()} starts at layer {group[0]}"
            both = f"{here} and {names[s - 1]} at layer {first}"
            yield "out of order", f"{both}; the layers pass through {before}."


def _over_memory(
    place: list[int],
    memory: Sequence[float] | None,
    capacity: float | Sequence[float] | None,
    devices: int,
) -> Broken:
    if memory is None or capacity is None:
        return
    for device, cap in enumerate(capacities(capacity, devices)):
        used = math.fsum(m for m, d in zip(memory, place, strict=True) if d == device)
        if used > cap:
            holds = f"Device {device} would hold {format_bytes(used)} and has room for"
            more = f"move at least {format_bytes(used - cap)} to another device."
            yield "over memory", f"{holds} {format_bytes(cap)}; {more}"


def _interleaved(place: list[int], devices: int) -> str:
    """A sentence if the assignment assigns equal chunks of layers round the devices."""
    run = next((i for i, d in enumerate(place) if d != place[0]), len(place))
    chunks, rest = divmod(len(place), devices * run)
    if devices < 2 or rest or place != [i // run % devices for i in range(len(place))]:
        return ""
    return (
        f" It is exactly the placement of the interleaved schedule with v = {chunks} chunks per "
        f"device, {chunks * devices} in all."
    )
