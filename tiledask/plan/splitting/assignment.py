"""Which layers on which device, as people write it.

"1-3 | 4-6"           [[1, 2, 3], [4, 5, 6]]    the layers of each device
"1, 1, 1, 2, 2, 2"    [0, 0, 0, 1, 1, 1]        the device of each: from 1, as an index from 0
(3, 3)                (0, 3, 6)                 sizes and bounds, where it is known what of
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import SupportsIndex

from tiledask.errors import PartitionError, short
from tiledask.plan.splitting.partition import Partition
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Assignment", "read_assignment", "stages_of"]

Assignment = Partition | str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]]
"""A split, text, the device of each layer, or the layers of each device."""


_MOST = 1_000_000


def read_assignment(
    assignment: Assignment, layers: int | None = None, stages: int | None = None
) -> list[list[int]]:
    """The layers of each device, counted from 1, from any of the forms that `judge` takes.

    A :class:`Partition` gives the layers of each stage. Of so many ``layers`` on so many
    ``stages``, if both are given, plain numbers may also be how many layers each stage has, or the
    bounds between them. The device of each layer counts from 1 in text, unless there is a 0 in it.
    PartitionError for what can be read in no way, or in two.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1])
    ([[1, 2, 3], [4]], [[1], [2, 3]])
    >>> read_assignment((2, 1), 3, 2), read_assignment("0, 2, 3", 3, 2)
    ([[1, 2], [3]], [[1, 2], [3]])
    >>> read_assignment("1, 1, 2", 3, 2)
    [[1, 2], [3]]
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in layers] for layers in assignment.layers]
    given: object = assignment
    if not isinstance(assignment, str):
        with suppress(TypeError):
            given = list[object](assignment)
    if layers is not None and stages is not None and stages > 1:
        numbers = _plain_numbers(given)
        if numbers:
            return _read_numbers(given, numbers, layers, stages)
    if isinstance(given, str):
        text = given.strip()
        bracketed = text.startswith("[")
        parts = re.split(r"\]\s*,?\s*\[", text.strip("[]")) if bracketed else _PARTS.split(text)
        words = parts[0].replace(",", " ").split()
        if len(parts) == 1 and len(words) == stages:  # commas for bars
            parts = words
        return [_read_group(part) for part in parts]
    if isinstance(given, list) and given:
        places = [int(entry) for entry in given if is_whole(entry)]
        if len(places) == len(given):
            return _of_devices(places)
        groups = [entry for entry in given if isinstance(entry, Iterable)]
        if len(groups) == len(given) and str not in map(type, groups):
            return [[_layer_number(n) for n in group] for group in groups]
    raise PartitionError(
        f"cannot read {short(assignment)} as an assignment; write the layers of each device, as in "
        f"'1-6 | 7-12' or [[1, 2], [3, 4]], or the device of each layer, as in [0, 0, 1, 1]"
    )


_PARTS = re.compile(r"[|;\n]")
"""Between the layers of two devices."""


def _plain_numbers(assignment: object) -> list[int]:
    """Whole numbers without a range or a group; empty if there is anything else, or one only."""
    if isinstance(assignment, str):
        words = _PARTS.sub(",", assignment.strip(" \n\t[](),")).replace(",", " ").split()
        alone = all(len(part.replace(",", " ").split()) == 1 for part in _PARTS.split(assignment))
        barred = bool(_PARTS.search(assignment))
        plain = all(re.fullmatch(r"\d{1,9}", word) for word in words)
        return list(map(int, words)) if plain and len(words) > 1 and (alone or not barred) else []
    if isinstance(assignment, list) and len(assignment) > 1:
        places = [int(entry) for entry in assignment if is_whole(entry)]
        return places if len(places) == len(assignment) else []
    return []


def _read_numbers(
    assignment: object, numbers: list[int], layers: int, stages: int
) -> list[list[int]]:
    """The layers of each stage, by the only way in which ``numbers`` can be meant."""
    typed = isinstance(assignment, str)
    barred = isinstance(assignment, str) and _PARTS.search(assignment)
    places = [n - 1 for n in numbers] if typed and 0 not in numbers else numbers
    meant: dict[str, list[list[int]]] = {}
    if len(numbers) == layers and max(places) < stages and not barred:
        meant["the device of each layer"] = _of_devices(places)
    nothing = 0 if not meant else 1  # a stage without layers is a mistake, a device 0 is none
    if len(numbers) == stages and sum(numbers) == layers and min(numbers) >= nothing:
        meant["how many layers each has"] = _between([0, *accumulate(numbers)])
    rising = all(a <= b for a, b in pairwise(numbers))
    if len(numbers) == stages + 1 and (numbers[0], numbers[-1]) == (0, layers) and rising:
        meant["the bounds between them"] = _between(numbers)
    if len(meant) == 1:
        return next(iter(meant.values()))
    if not meant and barred:
        return [[n] for n in numbers]
    if not meant and (len(numbers) == layers or max(places) < stages):
        return _of_devices(places)
    if not meant:
        raise PartitionError(
            f"{short(assignment)} is {len(numbers)} numbers: neither the device of each of "
            f"{layers} layers, nor {stages} sizes that add up to {layers} (these add up to "
            f"{sum(numbers)}), nor {stages + 1} bounds from 0 to {layers}; write the layers of "
            f"each, as in '1-6 | 7-12'"
        )
    raise PartitionError(
        f"{short(assignment)} can be {' or '.join(meant)}; write the layers of each, as in "
        f"'1-6 | 7-12'"
    )


def _between(bounds: list[int]) -> list[list[int]]:
    return [list(range(a + 1, b + 1)) for a, b in pairwise(bounds)]


def _of_devices(places: list[int]) -> list[list[int]]:
    if min(places) < 0:
        raise PartitionError(f"a list counts devices from 0, got device {short(min(places))}")
    if max(places) >= _MOST:
        raise PartitionError(f"there are {_MOST:,} devices at most, got device {max(places)}")
    layers: list[list[int]] = [[] for _ in range(max(places) + 1)]
    for layer, device in enumerate(places, start=1):
        layers[device].append(layer)
    return layers


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
    return whole_number("a layer", value, of="counted from 1", error=PartitionError)


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
        if abs(last - first) >= _MOST:
            raise PartitionError(
                f"{short(word)} names {short(abs(last - first) + 1)} layers; {_MOST:,} at most"
            )
        group += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return group
