"""A judge of assignments of layers to devices: which rule is broken, and how far from the best.

layers   1  2  3  4  5  6 | 7  8  9 10 11 12 |13 14 15 16 17 18 |19 20 21 22 23 24
device        0           |        1         |        2         |        3
                          ^ a crossing: the activations change device here
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tiledask.errors import PartitionError
from tiledask.plan.exact import capacities, count
from tiledask.plan.partition import Partition, partition
from tiledask.plan.units import format_bytes

__all__ = ["Verdict", "judge", "read_assignment"]


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

    def __bool__(self) -> bool:
        return self.ok

    @property
    def best(self) -> bool:
        """Legal, and no legal split is faster."""
        return self.ok and math.isclose(self.bottleneck, self.optimum, rel_tol=1e-12)

    def _repr_html_(self) -> str:
        mark = "legal" if self.ok else f"refused: {self.rule}"
        numbers = (
            ("crossings", self.crossings),
            ("bottleneck", self.bottleneck),
            ("best possible", self.optimum),
        )
        rows = "".join(
            f"<tr><th>{name}</th><td>{'-' if value is None else format(value, 'g')}</td></tr>"
            for name, value in numbers
        )
        return f"<p><b>{mark}</b>. {escape(self.reason)}</p><table>{rows}</table>"


def judge(
    assignment,
    layers: int | None = None,
    devices: int | None = None,
    costs: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    capacity: float | Sequence[float] | None = None,
) -> Verdict:
    """The verdict on an assignment of layers to devices; the numbers are those of partition().

    ``assignment`` is one of
      - the layers of each device, counted from 1: ``[[1, 2, 3], [4, 5, 6]]`` or ranges,
      - the same as text: ``"1-3 | 4-6"`` or ``"[1-3][4-6]"`` or ``"1,2,3 | 4,5,6"``,
      - the device of each layer, counted from 0: ``[0, 0, 0, 1, 1, 1]``,
      - a :class:`Partition`.

    Without ``costs`` every layer costs 1. The number of layers is that of the costs, else
    ``layers``, else what the assignment shows. Rules, in the order in which they are looked
    at: unknown device, unknown layer, layer twice, layer missing, idle device, not contiguous,
    out of order, over memory. Raises PartitionError for what is not an assignment at all, and
    for a question that no split can answer.

    >>> round_robin = [layer % 3 for layer in range(12)]
    >>> verdict = judge(round_robin)
    >>> verdict.ok, verdict.rule, verdict.crossings
    (False, 'not contiguous', 11)
    >>> judge("1-4 | 5-8 | 9-12").crossings
    2
    """
    groups = read_assignment(assignment)
    if layers is None:
        layers = len(costs) if costs is not None else max((n for g in groups for n in g), default=0)
    devices = len(groups) if devices is None else count(devices, "devices")
    costs = [1.0] * count(layers, "layers") if costs is None else list(costs)
    if len(costs) != layers:
        raise PartitionError(f"{len(costs)} costs do not describe {layers} layers: give one each")
    optimum = partition(costs, devices, speeds, memory, capacity)
    broken = _not_a_cover(groups, layers, devices)
    if broken:
        return Verdict(False, *broken, None, None, optimum.bottleneck)
    groups += [[]] * (devices - len(groups))
    place = _place(groups, layers)
    crossings = sum(a != b for a, b in pairwise(place))
    sums = [math.fsum(costs[n - 1] for n in group) for group in groups]
    slowest = max(total / v for total, v in zip(sums, optimum.speeds, strict=True))
    caps = None if memory is None else capacities(capacity, devices)
    broken = _not_layerwise(groups, place, crossings) or _over_memory(groups, memory, caps)
    if broken:
        return Verdict(False, *broken, crossings, slowest, optimum.bottleneck)
    reason = f"The slowest device takes {slowest:g}; the best possible is {optimum.bottleneck:g}."
    return Verdict(True, "", reason, crossings, slowest, optimum.bottleneck)


def read_assignment(assignment) -> list[list[int]]:
    """The layers of each device, counted from 1, from any of the forms that :func:`judge` takes.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1])
    ([[1, 2, 3], [4]], [[1], [2, 3]])
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in layers] for layers in assignment.layers]
    if isinstance(assignment, str):
        return [_read_group(part) for part in _split_text(assignment)]
    try:
        entries = list(assignment)
        if entries and all(hasattr(entry, "__index__") for entry in entries):
            return _from_places([int(entry) for entry in entries])
        if entries and not any(isinstance(entry, str) for entry in entries):
            return [[_layer_number(n) for n in entry] for entry in entries]
    except TypeError:
        pass
    raise PartitionError(
        f"cannot read {assignment!r} as an assignment; write the layers of each device, as in "
        f"'1-6 | 7-12' or [[1, 2], [3, 4]], or the device of each layer, as in [0, 0, 1, 1]"
    )


def _layer_number(value) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise PartitionError(f"a layer is a whole number counted from 1, got {value!r}")
    return int(value)


def _from_places(places: list[int]) -> list[list[int]]:
    if min(places) < 0:
        raise PartitionError(f"devices are counted from 0, got device {min(places)}")
    groups = [[] for _ in range(max(places) + 1)]
    for layer, device in enumerate(places, start=1):
        groups[device].append(layer)
    return groups


def _split_text(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("["):
        text = text.strip("[]")
        return re.split(r"\]\s*,?\s*\[", text)
    return text.split("|")


def _read_group(text: str) -> list[int]:
    """The layers of "1-3, 7" in the order written."""
    group = []
    for word in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d+)(?:\s*[-–]\s*(\d+))?", word)
        if not match:
            raise PartitionError(
                f"cannot read {word!r} in {text.strip()!r}; write layers as in '1-6' or '1,4,7'"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > 1_000_000:
            raise PartitionError(f"{word!r} names {last - first + 1} layers; 1000000 at most")
        group += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return group


def _place(groups: list[list[int]], layers: int) -> list[int]:
    place = [0] * layers
    for device, group in enumerate(groups):
        for n in group:
            place[n - 1] = device
    return place


def _not_a_cover(groups, layers: int, devices: int) -> tuple[str, str] | None:
    """(rule, reason) if some layer has not exactly one place among the devices."""
    if len(groups) > devices:
        return "unknown device", (
            f"The answer names {len(groups)} devices and there are {devices}; "
            f"leave {len(groups) - devices} out."
        )
    holder: dict[int, int] = {}
    for device, group in enumerate(groups):
        for n in group:
            if not 1 <= n <= layers:
                return "unknown layer", (
                    f"Device {device} is given layer {n}; the layers are 1 to {layers}."
                )
            if n in holder:
                return "layer twice", (
                    f"Layer {n} is on device {holder[n]} and again on device {device}; "
                    f"every layer has one place."
                )
            holder[n] = device
    missing = [n for n in range(1, layers + 1) if n not in holder]
    if missing:
        names = ", ".join(map(str, missing[:6])) + (", ..." if len(missing) > 6 else "")
        return "layer missing", (
            f"{len(holder)} of {layers} layers have a place; missing: {names}. "
            f"A model without them computes something else."
        )
    return None


def _not_layerwise(groups, place: list[int], crossings: int) -> tuple[str, str] | None:
    """(rule, reason) if the groups are not consecutive layers in the order of the devices."""
    for device, group in enumerate(groups):
        if not group:
            return "idle device", (
                f"Device {device} has 0 of {len(place)} layers; every device needs at least 1."
            )
    for device, group in enumerate(groups):
        if max(group) - min(group) + 1 != len(group):
            return "not contiguous", (
                f"Device {device} holds {len(group)} layers spread over {min(group)} to "
                f"{max(group)}; in layer-wise partitioning they are consecutive. Activations "
                f"change device {crossings} times, against {len(groups) - 1} for a contiguous "
                f"split.{_interleaved(place, len(groups))}"
            )
    for device, group in enumerate(groups):
        if group != sorted(group):
            return "out of order", (
                f"Device {device} runs layer {group[0]} before layer {min(group)}; "
                f"layers run in rising order."
            )
        if device and group[0] < groups[device - 1][0]:
            return "out of order", (
                f"Device {device} starts at layer {group[0]} and device {device - 1} at layer "
                f"{groups[device - 1][0]}; the layers pass through the devices in order."
            )
    return None


def _interleaved(place: list[int], devices: int) -> str:
    """A sentence if the assignment deals equal chunks of layers round the devices."""
    run = next((i for i, d in enumerate(place) if d != place[0]), len(place))
    if devices < 2 or len(place) % (devices * run):
        return ""
    if place != [i // run % devices for i in range(len(place))]:
        return ""
    chunks = len(place) // (devices * run)
    return (
        f" It is exactly the placement of the interleaved schedule with v = {chunks} chunks per "
        f"device: {chunks * devices} stages on {devices} devices."
    )


def _over_memory(groups, memory, caps) -> tuple[str, str] | None:
    for device, group in enumerate(groups if memory is not None else []):
        used = math.fsum(memory[n - 1] for n in group)
        if used > caps[device]:
            return "over memory", (
                f"Device {device} would hold {format_bytes(used)} and has room for "
                f"{format_bytes(caps[device])}; move at least {format_bytes(used - caps[device])} "
                f"to another device."
            )
    return None
