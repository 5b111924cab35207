"""Which layers on which device, as people write it.

"1-3 | 4-6"           [[1, 2, 3], [4, 5, 6]]    the layers of each device
"0, 0, 0, 1, 1, 1"    [0, 0, 0, 1, 1, 1]        the device of each, counted from 0
(3, 3)                (0, 3, 6)                 sizes and bounds, where it is known what of
"""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
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

    A :class:`Partition` gives the layers of each stage. Of so many ``layers`` on so many
    ``stages``, if both are given, plain numbers may also be how many layers each stage has, or the
    bounds between them. PartitionError for what can be read in no way, or in two.

    >>> read_assignment("1-3 | 4"), read_assignment([0, 1, 1])
    ([[1, 2, 3], [4]], [[1], [2, 3]])
    >>> read_assignment((2, 1), 3, 2), read_assignment("0, 2, 3", 3, 2)
    ([[1, 2], [3]], [[1, 2], [3]])
    """
    if isinstance(assignment, Partition):
        return [[n + 1 for n in group] for group in assignment.layers]
    known = stages if layers is not None and stages != 1 else None
    if isinstance(assignment, str):
        return _of_text(assignment, layers or 0, known, stages)
    given: list[Any] = list(assignment) if isinstance(assignment, Iterable) else []
    numbers = [int(n) for n in given if is_whole(n)]
    if numbers and len(numbers) == len(given):
        return _of_numbers(numbers, layers or 0, known if len(numbers) > 1 else None)
    if not given or not all(isinstance(g, Iterable) and not isinstance(g, str) for g in given):
        raise PartitionError(
            f"cannot read {short(assignment)} as an assignment; write the layers of each device, "
            f"as in '1-6 | 7-12' or [[1, 2], [3, 4]], or the device of each layer, as in "
            f"[0, 0, 1, 1]"
        )
    return [
        [whole_number("a layer", n, of="counted from 1", error=PartitionError) for n in group]
        for group in given
    ]


def _of_text(text: str, layers: int, known: int | None, stages: int | None) -> list[list[int]]:
    parts = re.split(r"\]\s*,?\s*\[|[|;\n]", text.strip("[]() \n\t"))
    words = [part.replace(",", " ").split() for part in parts]
    row, barred = [word for each in words for word in each], len(parts) > 1
    plain = len(row) > 1 and all(word.isdecimal() and len(word) < 10 for word in row)
    if known and plain and (not barred or all(len(each) == 1 for each in words)):
        return _of_numbers([*map(int, row)], layers, known, barred)
    if not barred and len(row) == stages:  # commas for bars
        words = [[word] for word in row]
    return [[n for word in each for n in _range(word)] for each in words]


def _of_numbers(
    numbers: list[int], layers: int, stages: int | None, barred: bool = False
) -> list[list[int]]:
    """The layers of each stage, by the only way in which plain ``numbers`` can be meant, which
    stood between bars if they are ``barred``."""
    if stages is None:
        return _of_devices(numbers)
    count, total, forms = len(numbers), sum(numbers), dict[str, list[list[int]]]()
    if by_layer := count == layers and max(numbers) < stages and not barred:
        forms["the device of each layer"] = _of_devices(numbers)
    # a stage without layers is a mistake, a device 0 is none
    if count == stages and total == layers and not (by_layer and 0 in numbers):
        forms["how many layers each has"] = _between([*accumulate(numbers, initial=0)])
    ends = count == stages + 1 and (numbers[0], numbers[-1]) == (0, layers)
    if ends and numbers == sorted(numbers):
        forms["the bounds between them"] = _between(numbers)
    if len(forms) > 1:
        raise PartitionError(
            f"{numbers} can be {' or '.join(forms)}; write the layers of each, as in '1-6 | 7-12'"
        )
    if forms:
        return forms.popitem()[1]
    if barred:
        return [[n] for n in numbers]
    if count == layers or max(numbers) < stages:
        return _of_devices(numbers)
    raise PartitionError(
        f"{short(numbers)} is {count} numbers: neither the device of each of {layers} layers, nor "
        f"{stages} sizes that add up to {layers} (these add up to {total}), nor {stages + 1} "
        f"bounds from 0 to {layers}; write the layers of each, as in '1-6 | 7-12'"
    )


def _between(bounds: list[int]) -> list[list[int]]:
    return [list(range(a + 1, b + 1)) for a, b in pairwise(bounds)]


def _of_devices(places: list[int]) -> list[list[int]]:
    wrong = [place for place in places if not 0 <= place < MOST]
    if wrong:
        raise PartitionError(
            f"devices count from 0, {MOST:,} of them at most, got device {short(wrong[0])}"
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
