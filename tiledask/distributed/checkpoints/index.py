"""Which box of which array is in which file, with checksums: the index of a checkpoint, as JSON."""

import json
import stat
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import CheckpointError, KernelError, short
from tiledask.plan.products.regions import Region, extents_of
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import as_dtype

__all__ = [
    "FILE",
    "Index",
    "Stored",
    "StoredBox",
    "check_cover",
    "in_file",
    "read_index",
    "write_index",
]

FILE = "index.json"
FORMAT = 2
_CELLS = 2**28
"""Parts, at most, into which the boxes of an array cut it."""


class StoredBox(NamedTuple):
    """A box in a file of its own."""

    file: str
    box: Region
    offset: int
    """Bytes before the numbers."""
    checksum: int
    """CRC-32 of the numbers."""


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


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds."""

    step: int
    arrays: dict[str, Stored]
    about: dict[str, Any]
    """What the caller added: anything that JSON can hold."""


def in_file(dtype: Any) -> np.dtype:
    """The type as which numbers of ``dtype`` are in a .npy file, which does not know bfloat16.

    >>> in_file("bfloat16").name, in_file("float32").name
    ('uint16', 'float32')
    """
    found = as_dtype(dtype)
    return np.dtype(np.uint16) if found.name == "bfloat16" else found


def write_index(folder: Path, index: Index) -> Path:
    """The index's file, with a checksum of its own; not yet forced to the disk."""
    arrays = {
        name: {"shape": each.shape, "dtype": each.dtype, "parts": each.parts}
        for name, each in index.arrays.items()
    }
    body = {"format": FORMAT, "step": index.step, "about": index.about, "arrays": arrays}
    text = _canonical(body)
    path = folder / FILE
    path.write_text(f'{{"crc32": {zlib.crc32(text.encode())}, "index": {text}}}\n')
    return path


def read_index(folder: Path) -> Index:
    """The index in ``folder``; CheckpointError if it is not whole, or is not of these files.

    Nothing in it is believed before it is compared: what it names are files in the folder, each of
    the size that it says, and together they are the arrays.
    """
    path = folder / FILE
    try:
        given = json.loads(path.read_text())
        body, checksum = given["index"], given["crc32"]
        whole = zlib.crc32(_canonical(body).encode()) == checksum
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint's index ({type(error).__name__}: "
            f"{str(error)[:200]}); open an earlier step with step="
        ) from None
    if not whole:
        raise CheckpointError(
            f"{path} is damaged: its checksum is not {checksum}; open an earlier step with step="
        )
    known = isinstance(body, dict) and body.keys() == {"format", "step", "about", "arrays"}
    if isinstance(body, dict) and body.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{path} has format {short(body['format'])}, this version reads {FORMAT}; read it with "
            f"the version that wrote it"
        )
    try:
        _need(known, f"format, step, about and arrays make an index, got {short(body)}")
        step, about, arrays = body["step"], body["about"], body["arrays"]
        _need(_whole(step) and folder.name.endswith(f"-{step:08d}"), f"its step is {short(step)}")
        _need(isinstance(about, dict), f"about is a dict, got {short(about)}")
        _need(isinstance(arrays, dict), f"arrays is a dict, got {short(arrays)}")
        index = Index(step, {name: _stored(name, each) for name, each in arrays.items()}, about)
        _check_files(folder, index)
    except _WrongError as error:
        raise CheckpointError(
            f"{path} is not of what is beside it: {error}; one of the two is damaged: open an "
            f"earlier step with step="
        ) from None
    return index


def check_cover(name: str, shape: Sequence[int], boxes: Iterable[Region]) -> None:
    """None; raises CheckpointError unless the boxes together are the array.

    >>> check_cover("w", (4,), [((0, 1),), ((2, 4),)])
    Traceback (most recent call last):
        ...
    tiledask.errors.CheckpointError: no rank holds ((1, 2),) of 'w', which is [4]; all ranks together must hold all of it: is a stage or a shard left out?
    """  # noqa: E501
    boxes = list(boxes)
    ends = [
        sorted({0, n, *(end for box in boxes for end in box[axis])}) for axis, n in enumerate(shape)
    ]
    if not prod(shape):
        return
    cells = prod(len(each) - 1 for each in ends)
    if cells > _CELLS:
        raise CheckpointError(
            f"the {len(boxes)} boxes of {name!r} cut it into {cells} cells, up to {_CELLS} can be "
            f"looked through; cut it along fewer axes"
        )
    held = np.zeros([len(each) - 1 for each in ends], bool)
    for box in boxes:
        at = (slice(each.index(a), each.index(b)) for each, (a, b) in zip(ends, box, strict=True))
        held[tuple(at)] = True
    if not held.all():
        first = np.argwhere(~held)[0] if held.ndim else ()
        gap = tuple((each[i], each[i + 1]) for each, i in zip(ends, first, strict=True))
        raise CheckpointError(
            f"no rank holds {gap} of {name!r}, which is {list(shape)}; all ranks together must "
            f"hold all of it: is a stage or a shard left out?"
        )


def _canonical(body: dict[str, Any]) -> str:
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"about= goes into the index as JSON: numbers, text, lists and dicts of them ({error})"
        ) from None


class _WrongError(Exception):
    """What in an index cannot be."""


def _need(right: bool, otherwise: str) -> None:
    if not right:
        raise _WrongError(otherwise)


def _whole(n: Any) -> bool:
    return is_whole(n, 0, 2**63 - 1)


def _stored(name: str, each: Any) -> Stored:
    """What the index says of one array, if that can be."""
    _need(
        isinstance(each, dict) and each.keys() == {"shape", "dtype", "parts"},
        f"array {short(name)} is {short(each)}",
    )
    shape, dtype, parts = each["shape"], each["dtype"], each["parts"]
    _need(
        isinstance(shape, list) and len(shape) <= 32 and all(map(_whole, shape)),
        f"{short(name)} has shape {short(shape)}",
    )
    _need(isinstance(dtype, str) and _is_number(dtype), f"{short(name)} has dtype {short(dtype)}")
    # arrays of no elements have extents all the same
    size = prod(n for n in shape if n) * as_dtype(dtype).itemsize
    _need(size < 2**63, f"{short(name)} has shape {short(shape)}, {size} bytes")
    _need(isinstance(parts, list), f"{short(name)} has parts {short(parts)}")
    return Stored(tuple(shape), dtype, tuple(_part(name, shape, part) for part in parts))


def _part(name: str, shape: list[int], part: Any) -> StoredBox:
    wrong = f"{short(name)}, of shape {short(shape)}, has a part {short(part)}"
    _need(isinstance(part, list) and len(part) == len(StoredBox._fields), wrong)
    file, box, offset, checksum = part
    plain = isinstance(file, str) and file not in ("", ".", "..") and not set("/\\\0") & set(file)
    _need(plain, f"{wrong}, whose file is not one in this folder")
    _need(isinstance(box, list) and len(box) == len(shape), wrong)
    for span, n in zip(box, shape, strict=True):
        inside = isinstance(span, list) and len(span) == 2 and all(map(_whole, span))
        _need(inside and span[0] < span[1] <= n, wrong)
    _need(_whole(offset) and _whole(checksum), wrong)
    return StoredBox(file, tuple(map(tuple, box)), offset, checksum)


def _is_number(dtype: str) -> bool:
    """Whether elements of the type named so are in files as bytes, and nothing but bytes."""
    try:
        found = as_dtype(dtype)
    except KernelError:
        return False
    return found.name == dtype and (found.kind in "biufc" or dtype == "bfloat16")


def _check_files(folder: Path, index: Index) -> None:
    """None, if the parts are files in the folder, of the right sizes, and together the arrays.

    So no shape is larger than what is on the disk.
    """
    names = [part.file for each in index.arrays.values() for part in each.parts]
    _need(len(set(names)) == len(names), "two parts are in one file")
    inside = folder.resolve()
    for name, each in index.arrays.items():
        size = as_dtype(each.dtype).itemsize
        for part in each.parts:
            path = folder / part.file
            wanted = part.offset + prod(extents_of(part.box)) * size
            try:
                leaves = not path.resolve().is_relative_to(inside)
                found = path.stat()
            except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a long name
                why = getattr(error, "strerror", None) or error
                raise _WrongError(f"{short(part.file)} cannot be read: {why}") from None
            _need(not leaves, f"{part.file} is a link that leaves the folder")
            _need(
                stat.S_ISREG(found.st_mode) and found.st_size == wanted,
                f"{part.file} has {found.st_size} bytes and {short(name)} needs {wanted} of it",
            )
        try:
            check_cover(name, each.shape, [part.box for part in each.parts])
        except CheckpointError as error:
            raise _WrongError(error) from None
