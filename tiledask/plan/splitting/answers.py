"""Which layers on which device, as people write it.

"1-3 | 4-6"           [[1, 2, 3], [4, 5, 6]]    the layers of each device
"1, 1, 1, 2, 2, 2"    [0, 0, 0, 1, 1, 1]        the device of each: from 1, as an index from 0
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

from tiledask.errors import PartitionError, short
from tiledask.plan.splitting.partition import Partition
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Assignment", "layer_ranges", "read_assignment", "stages_of"]

Assignment = Partition | str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]]
"""A split, text, the device of each layer, or the layers of each device."""

MOST = 1_000_000
"""Devices, or layers of one range."""


def read_assignment(
    assignment: Assignment, layers: int | None = None, stages: int | None = None
) -> list[list[int]]:
    """The layers of each device, counted from 1, from any of the forms that `judge` takes.

    A :class:`Partition` gives the layers of each stage. Text without bars is the device of each of
    so many ``layers``, counted from 1 unless there is a 0 in it, the layer of each of so many
    ``stages``, or the bounds between them. PartitionError for what can be read in no way.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1])
    ([[1, 2, 3], [4]], [[1], [2, 3]])
    >>> read_assignment("1, 1, 2", 3, 2), read_assignment("1, 2", 2, 2)
    ([[1, 2], [3]], [[1], [2]])
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in layers] for layers in assignment.layers]
    if isinstance(assignment, str):
        parts = re.split(r"\]\s*,?\s*\[|[|;\n]", assignment.strip("[]() \n\t"))
        words = [part.replace(",", " ").split() for part in parts]
        if len(words) == 1:
            row, devices = words[0], (stages or 1) if layers else 1
            if len(row) > 1 < devices and all(re.fullmatch(r"\d{1,9}", word) for word in row):
                places = [int(word) - ("0" not in row) for word in row]
                if len(row) == layers or max(places) < devices:
                    return _of_devices(places)
                if len(row) == devices + 1 and (places[0], places[-1]) == (0, layers):  # bounds
                    return [[*range(a + 1, b + 1)] for a, b in pairwise(places)]
            if len(row) == stages:  # commas for bars
                words = [[word] for word in row]
        return [[n for word in each for n in _range(word)] for each in words]
    given = list(assignment) if isinstance(assignment, Iterable) else []
    if given and all(map(is_whole, given)):
        return _of_devices([*map(int, given)])
    groups = [each for each in given if isinstance(each, Iterable) and not isinstance(each, str)]
    if not groups or len(groups) < len(given):
        raise PartitionError(
            f"cannot read {short(assignment)} as an assignment; write the layers of each device, "
            f"as in '1-6 | 7-12' or [[1, 2], [3, 4]], or the device of each layer, as in "
            f"[0, 0, 1, 1]"
        )
    rule: dict[str, Any] = {"of": "counted from 1", "error": PartitionError}
    return [[whole_number("a layer", n, **rule) for n in group] for group in groups]


def _of_devices(places: list[int]) -> list[list[int]]:
    if wrong := [place for place in places if not 0 <= place < MOST]:
        raise PartitionError(
            f"a list counts devices from 0, {MOST:,} of them at most, got device {short(wrong[0])}"
        )
    layers: list[list[int]] = [[] for _ in range(max(places) + 1)]
    for layer, device in enumerate(places, start=1):
        layers[device].append(layer)
    return layers


def _range(word: str) -> Iterable[int]:
    """The layers of "3" or "7-12", in the order written."""
    match = re.fullmatch(r"(\d{1,12})(?:[-–](\d{1,12}))?", word)
    if not match:
        raise PartitionError(f"cannot read {short(word)}; write layers as in '1-6' or '1,4,7'")
    first, last = int(match[1]), int(match[2] or match[1])
    if abs(last - first) >= MOST:
        raise PartitionError(f"{short(word)} names more than {MOST:,} layers, the most")
    return range(first, last + 1) if first <= last else range(first, last - 1, -1)


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
