"""Which layers on which device, as people write it.

"1-3 | 4-6"    [[1, 2, 3], [4, 5, 6]]    [0, 0, 0, 1, 1, 1]    a Partition
"""

import re
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from tiledask.errors import PartitionError
from tiledask.plan.data import short
from tiledask.plan.splitting.partition import Partition

__all__ = ["Assignment", "read_assignment", "stages_of"]

Assignment = Partition | str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]]
"""A split, text, the device of each layer, or the layers of each device."""


def read_assignment(assignment: Assignment) -> list[list[int]]:
    """The layers of each device, counted from 1, from any of the forms that `judge` takes.

    A :class:`Partition` gives the layers of each stage.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1])
    ([[1, 2, 3], [4]], [[1], [2, 3]])
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in layers] for layers in assignment.layers]
    if isinstance(assignment, str):
        text = assignment.strip()
        bracketed = text.startswith("[")
        parts = re.split(r"\]\s*,?\s*\[", text.strip("[]")) if bracketed else text.split("|")
        return [_read_group(part) for part in parts]
    try:
        entries = list[SupportsIndex | Iterable[SupportsIndex]](assignment)
        places = [entry for entry in entries if isinstance(entry, SupportsIndex)]
        if entries and len(places) == len(entries):
            devices = [int(place) for place in places]
            if min(devices) < 0:
                raise PartitionError(f"devices are counted from 0, got device {min(devices)}")
            layers: list[list[int]] = [[] for _ in range(max(devices) + 1)]
            for layer, device in enumerate(devices, start=1):
                layers[device].append(layer)
            return layers
        groups = [entry for entry in entries if isinstance(entry, Iterable)]
        if groups and len(groups) == len(entries) and str not in map(type, groups):
            return [[_layer_number(n) for n in group] for group in groups]
    except TypeError:
        pass
    raise PartitionError(
        f"cannot read {short(assignment)} as an assignment; write the layers of each device, as in "
        f"'1-6 | 7-12' or [[1, 2], [3, 4]], or the device of each layer, as in [0, 0, 1, 1]"
    )


def stages_of(groups: Sequence[Sequence[int]], devices: int, chunks: int) -> list[list[int]]:
    """The layers of each stage, from groups that are those of the stages or of the devices.

    Where a device has several chunks, its layers are cut where a number is left out; a device
    with fewer such runs than chunks leaves stages empty, one with more keeps the rest in its last.

    >>> stages_of([[1, 2, 5, 6], [3, 4, 7, 8]], devices=2, chunks=2)
    [[1, 2], [3, 4], [5, 6], [7, 8]]
    """
    if chunks == 1 or len(groups) > devices:
        return [list(g) for g in groups] + [[]] * (devices * chunks - len(groups))
    stages: list[list[int]] = [[] for _ in range(devices * chunks)]
    for device, group in enumerate(groups):
        chunk = 0
        for i, n in enumerate(group):
            if i and n != group[i - 1] + 1:
                chunk = min(chunk + 1, chunks - 1)
            stages[chunk * devices + device].append(n)
    return stages


def _layer_number(value: SupportsIndex) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise PartitionError(f"a layer is a whole number counted from 1, got {short(value)}")
    return int(value)


def _read_group(text: str) -> list[int]:
    """The layers of "1-3, 7" in the order written."""
    group: list[int] = []
    for word in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,12})(?:\s*[-–]\s*(\d{1,12}))?", word)
        if not match:
            raise PartitionError(
                f"cannot read {short(word)} in {short(text.strip())}; write layers as in '1-6' or "
                f"'1,4,7'"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > 1_000_000:
            raise PartitionError(
                f"{short(word)} names {short(last - first + 1)} layers; 1000000 at most"
            )
        group += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return group
