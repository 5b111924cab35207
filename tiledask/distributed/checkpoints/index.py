"""Which box of which array is in which file, with checksums: the index of a checkpoint, as JSON."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.errors import CheckpointError, short
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.regions import Region, TensorSlice, overlap, region_size
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import as_dtype

__all__ = ["Stored", "StoredBox", "check_cover", "read_index", "whole", "write_index"]

FILE = "index.json"
FORMAT = 3
_DAMAGE = LookupError, TypeError, ValueError, OverflowError, AttributeError, OSError, RecursionError


class StoredBox(NamedTuple):
    """A box of an array, row after row in a file."""

    rank: int
    """Whose file it is in."""
    box: Region
    offset: int
    """Bytes before it."""
    checksum: int
    """CRC-32 of its numbers."""

    @property
    def file(self) -> str:
        """The file's name."""
        return f"rank-{self.rank}.bin"


@dataclass(frozen=True)
class Stored:
    """An array of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    """Its name, such as "bfloat16"."""
    parts: tuple[StoredBox, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the array; parts that overlap take more on the disk."""
        return prod(self.shape) * as_dtype(self.dtype).itemsize


def whole(shape: tuple[int, ...]) -> TensorSlice:
    """All of an array, as each replica holds it.

    >>> whole((4, 6)).boxes
    (((0, 4), (0, 6)),)
    """
    return Tiling(tuple(shape), (), ()).slice(())


def write_index(
    folder: Path, step: int, arrays: dict[str, Stored], about: dict[str, Any] | None
) -> Path:
    """The index's file, with a checksum of its own; not yet forced to the disk."""
    body = {"format": FORMAT, "step": step, "about": about or {}}
    text = _canonical(body | {"arrays": {name: vars(each) for name, each in arrays.items()}})
    path = folder / FILE
    path.write_text(f'{{"crc32": {zlib.crc32(text.encode())}, "index": {text}}}\n')
    return path


def read_index(folder: Path) -> tuple[int, dict[str, Stored], dict[str, Any]]:
    """(step, arrays, what the caller added) of the index in ``folder``; CheckpointError if it is
    damaged, or is not of these files: what it names is in them, and together it is the arrays."""
    path = folder / FILE
    try:
        given = json.loads(path.read_text())
        body = given["index"]
        if zlib.crc32(_canonical(body).encode()) != given["crc32"]:
            raise ValueError(f"its checksum is not {given['crc32']}")
        if body["format"] != FORMAT:
            raise ValueError(
                f"it has format {short(body['format'])}, this version reads {FORMAT}; read it with "
                f"the version that wrote it"
            )
        if not folder.name.endswith(f"-{body['step']:08d}"):
            raise ValueError(f"its step is {body['step']}")
        arrays = {name: _stored(folder, name, each) for name, each in body["arrays"].items()}
        return int(body["step"]), arrays, dict(body["about"])
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint's index, damaged or not of what is beside "
            f"it: {type(error).__name__}: {str(error)[:300]}; open an earlier step with step="
        ) from None


def _stored(folder: Path, name: str, each: dict[str, Any]) -> Stored:
    """What the index says of an array, whose parts are inside it and inside files of the folder."""
    shape, dtype = tuple(each["shape"]), as_dtype(each["dtype"])
    whole_extents = all(is_whole(n, 0) for n in shape) and len(shape) <= 32
    # arrays of no elements have extents, too
    if not whole_extents or prod(n for n in shape if n) * dtype.itemsize >= 2**63:
        raise ValueError(f"{name!r} has shape {short(shape)}")
    if dtype.name != each["dtype"] or not (dtype.kind in "biufc" or dtype.name == "bfloat16"):
        raise ValueError(f"{name!r} has dtype {each['dtype']}, and numbers are stored")
    parts = []
    for rank, ends, offset, checksum in each["parts"]:
        part = StoredBox(rank, tuple((start, stop) for start, stop in ends), offset, checksum)
        numbers = [rank, offset, checksum, *(end for pair in part.box for end in pair)]
        inside = all(0 <= a < b <= n for (a, b), n in zip(part.box, shape, strict=True))
        path = folder / part.file
        if not inside or not all(is_whole(n, 0) for n in numbers) or path.is_symlink():
            raise ValueError(f"{name!r} of {shape} has {part}, no part of it in this folder")
        has, needs = path.stat().st_size, offset + region_size(part.box) * dtype.itemsize
        if has < needs:
            raise ValueError(f"{part.file} has {has} bytes and {name!r} needs {needs} of it")
        parts.append(part)
    check_cover(name, shape, [part.box for part in parts])
    return Stored(shape, each["dtype"], tuple(parts))


def check_cover(name: str, shape: tuple[int, ...], boxes: Iterable[Region]) -> None:
    """None; raises CheckpointError unless the boxes together are the array.

    >>> check_cover("w", (4,), [((0, 1),), ((2, 4),)])
    Traceback (most recent call last):
        ...
    tiledask.errors.CheckpointError: no rank holds ((1, 2),) of 'w', which is [4]; all ranks together must hold all of it: is a stage or a shard left out?
    """  # noqa: E501
    left = [tuple((0, n) for n in shape)] if prod(shape) else []
    for box in boxes:
        left = [rest for region in left for rest in _without(region, box)]
    if left:
        raise CheckpointError(
            f"no rank holds {min(left)} of {name!r}, which is {list(shape)}; all ranks together "
            f"must hold all of it: is a stage or a shard left out?"
        )


def _without(region: Region, box: Region) -> list[Region]:
    """What of ``region`` is not in ``box``, in boxes."""
    if (both := overlap(region, box)) is None:
        return [region]
    found: list[Region] = []
    for axis, ((start, stop), (first, last)) in enumerate(zip(region, both, strict=True)):
        for ends in (start, first), (last, stop):
            if ends[0] < ends[1]:
                found.append((*both[:axis], ends, *region[axis + 1 :]))
    return found


def _canonical(body: dict[str, Any]) -> str:
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"about= goes into the index as JSON: numbers, text, lists and dicts of them ({error})"
        ) from None
