"""A judge of assignments of layers to devices: which rule is broken, and how far from the best.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        1           |        2         |        3         |        4
                          ^ a crossing: the activations change device here

With chunks, the stages are assigned round the devices: 1 2 3 4 1 2 3 4.
"""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import pairwise

from tiledask.errors import PartitionError
from tiledask.plan import html
from tiledask.plan.splitting.assignment import Assignment, read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities, count
from tiledask.plan.splitting.partition import Partition, layer_costs, partition, stage_name
from tiledask.plan.units import format_bytes

__all__ = ["Verdict", "judge", "layer_ranges", "read_assignment", "stages_of"]


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
      - the device of each layer: ``[0, 0, 0, 1, 1, 1]``, counted from 0, or as text from 1,
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
    best = partition(
        costs, devices * chunks, speeds, memory, capacity, communication, chunks
    ).bottleneck
    broken = _not_a_cover(groups, layers, devices, chunks)
    if broken:
        return Verdict(False, *broken, None, None, best)
    stages = stages_of(groups, devices, chunks)
    place = [0] * layers
    for s, group in enumerate(stages):
        for n in group:
            place[n - 1] = s % devices
    crossings = sum(a != b for a, b in pairwise(place))
    times = tuple(_stage_times(stages, place, costs, speeds, communication))
    slowest, each = max(times), (tuple(map(tuple, stages)), times)
    caps = [] if memory is None or capacity is None else capacities(capacity, devices)
    broken = (
        _not_layerwise(stages, place, crossings, devices, chunks)
        or _out_of_order(stages, devices, chunks)
        or _over_memory(place, () if memory is None else memory, caps)
    )
    if broken:
        return Verdict(False, *broken, crossings, slowest, best, *each)
    what = "device" if chunks == 1 else "chunk"
    reason = f"The slowest {what} takes {slowest:g}; the best possible is {best:g}."
    return Verdict(True, "", reason, crossings, slowest, best, *each)


def _stage_times(
    stages: list[list[int]],
    place: list[int],
    costs: Sequence[float],
    speeds: Sequence[float] | None,
    communication: float | Sequence[float] | None,
) -> list[float]:
    """Of each stage, cost over its device's speed, plus every send from its layers elsewhere."""
    devices = max(place) + 1 if speeds is None else len(speeds)
    between = len(costs) - 1
    sends = communication if isinstance(communication, Sized) else [communication or 0.0] * between
    times = []
    for s, group in enumerate(stages):
        speed = 1.0 if speeds is None else speeds[s % devices]
        sent = (sends[n - 1] for n in group if n <= between and place[n] != place[n - 1])
        times.append(math.fsum(costs[n - 1] for n in group) / speed + math.fsum(sent))
    return times


def _not_a_cover(
    groups: list[list[int]], layers: int, devices: int, chunks: int
) -> tuple[str, str] | None:
    """(rule, reason) if some layer has not exactly one place among the devices."""
    stages = devices * chunks
    if len(groups) > stages:
        what = "devices" if chunks == 1 else "chunks"
        each = "" if chunks == 1 else f", {chunks} on each of {devices} devices"
        return "unknown device", (
            f"The answer names {len(groups)} {what} and there are {stages}{each}; "
            f"leave {len(groups) - stages} out."
        )
    if devices < len(groups) < stages:
        return "wrong chunks", (
            f"The answer has {len(groups)} groups of layers; give the layers of each of {devices} "
            f"devices, or of each of {stages} chunks ({chunks} per device)."
        )
    by_device = len(groups) <= devices
    holder: dict[int, str] = {}
    for g, group in enumerate(groups):
        name = stage_name(g, devices, 1 if by_device else chunks)
        for n in group:
            if not 1 <= n <= layers:
                return "unknown layer", (
                    f"{name.capitalize()} is given layer {n}; the layers are 1 to {layers}."
                )
            if n in holder:
                return "layer twice", (
                    f"Layer {n} is on {holder[n]} and again on {name}; every layer has one place."
                )
            holder[n] = name
    missing = [n for n in range(1, layers + 1) if n not in holder]
    if missing:
        names = ", ".join(map(str, missing[:6])) + (", ..." if len(missing) > 6 else "")
        return "layer missing", (
            f"{len(holder)} of {layers} layers have a place; missing: {names}. "
            f"A model without them computes something else."
        )
    return None


def _not_layerwise(
    stages: list[list[int]], place: list[int], crossings: int, devices: int, chunks: int
) -> tuple[str, str] | None:
    """(rule, reason) if a stage has no layers, or layers that are not consecutive."""
    what = "device" if chunks == 1 else "chunk"
    for s, group in enumerate(stages):
        if not group:
            return f"idle {what}", (
                f"{stage_name(s, devices, chunks).capitalize()} has 0 of {len(place)} layers; "
                f"every {what} needs at least 1."
            )
    for s, group in enumerate(stages):
        if max(group) - min(group) + 1 != len(group):
            name = stage_name(s, devices, chunks).capitalize()
            held = f"{name} holds layers {layer_ranges(group)}; "
            if chunks > 1:
                return "not contiguous", (
                    f"{held}the layers of a chunk are consecutive, and a device holds {chunks} "
                    f"chunks."
                )
            return "not contiguous", (
                f"{held}in layer-wise partitioning they are consecutive. Activations "
                f"change device {crossings} times, against {devices - 1} for a contiguous "
                f"split.{_interleaved(place, devices)}"
            )
    return None


def _out_of_order(stages: list[list[int]], devices: int, chunks: int) -> tuple[str, str] | None:
    """(rule, reason) if the layers do not pass through the stages in rising order."""
    for s, group in enumerate(stages):
        name = stage_name(s, devices, chunks)
        if group != sorted(group):
            return "out of order", (
                f"{name.capitalize()} runs layer {group[0]} before layer {min(group)}; "
                f"layers run in rising order."
            )
        if s and group[0] < stages[s - 1][0]:
            through = (
                "the layers pass through the devices in order"
                if chunks == 1
                else "the layers pass through chunk 1 of every device, then through chunk 2, ..."
            )
            return "out of order", (
                f"{name.capitalize()} starts at layer {group[0]} and "
                f"{stage_name(s - 1, devices, chunks)} at layer {stages[s - 1][0]}; {through}."
            )
    return None


def layer_ranges(layers: Sequence[int], most: int = 8) -> str:
    """Layers as people write them, the first ``most`` runs of them.

    >>> layer_ranges([1, 2, 3, 7]), layer_ranges(range(1, 99, 2), most=3)
    ('1-3, 7', '1, 3, 5, ...')
    """
    runs: list[list[int]] = []
    for n in layers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:most]]
    return ", ".join(words + ["..."] * (len(runs) > most))


def _interleaved(place: list[int], devices: int) -> str:
    """A sentence if the assignment assigns equal chunks of layers round the devices."""
    run = next((i for i, d in enumerate(place) if d != place[0]), len(place))
    if devices < 2 or len(place) % (devices * run):
        return ""
    if place != [i // run % devices for i in range(len(place))]:
        return ""
    chunks = len(place) // (devices * run)
    return (
        f" It is exactly the placement of the interleaved schedule with v = {chunks} chunks per "
        f"device, {chunks * devices} in all."
    )


def _over_memory(
    place: list[int], memory: Sequence[float], caps: list[float]
) -> tuple[str, str] | None:
    for device, cap in enumerate(caps):
        used = math.fsum(m for m, d in zip(memory, place, strict=True) if d == device)
        if used > cap:
            return "over memory", (
                f"Device {device + 1} would hold {format_bytes(used)} and has room for "
                f"{format_bytes(cap)}; move at least {format_bytes(used - cap)} "
                f"to another device."
            )
    return None
