"""Which box of which array is in which file, with checksums: the index of a checkpoint, as JSON."""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.dist.checkpoints.pieces import Box, extents
from tiledask.errors import CheckpointError
from tiledask.tile.backend import as_dtype

__all__ = ["FILE", "Index", "Part", "Stored", "check_cover", "in_file", "read_index", "rows_of",
           "write_index"]  # fmt: skip

FILE = "index.json"
FORMAT = 1
SLAB = 2**20
"""Bytes, about, that have a checksum of their own: what is read at least."""


class Part(NamedTuple):
    """A box in a file of its own, checked in slabs of rows (of its first axis)."""

    file: str
    box: Box
    offset: int
    """Bytes before the numbers."""
    rows: int
    """Of each slab; the last may have fewer."""
    checksums: tuple[int, ...]
    """CRC-32 of each slab."""


@dataclass(frozen=True)
class Stored:
    """An array of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    """Its name, such as "bfloat16"."""
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Of the array; parts that overlap take more on the disk."""
        return prod(self.shape) * as_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Index:
    """What a checkpoint holds."""

    step: int
    arrays: dict[str, Stored]
    about: dict[str, Any]
    """What the caller added: anything that JSON can hold."""


def in_file(dtype: Any) -> np.dtype:
    """The type as which numbers of ``dtype`` lie in a .npy file, which does not know bfloat16.

    >>> in_file("bfloat16").name, in_file("float32").name
    ('uint16', 'float32')
    """
    found = as_dtype(dtype)
    return np.dtype(np.uint16) if found.name == "bfloat16" else found


def rows_of(box: Box, itemsize: int) -> int:
    """Rows of a slab of about `SLAB` bytes."""
    return max(1, SLAB // max(1, prod(extents(box)[1:]) * itemsize))


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
    """The index in ``folder``; CheckpointError if it is not whole."""
    path = folder / FILE
    try:
        given = json.loads(path.read_text())
        body, checksum = given["index"], given["crc32"]
        whole = zlib.crc32(_canonical(body).encode()) == checksum
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint's index ({type(error).__name__}: {error}); "
            f"open an earlier step with step="
        ) from None
    if not whole:
        raise CheckpointError(
            f"{path} is damaged: its checksum is not {checksum}; open an earlier step with step="
        )
    if body["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has format {body['format']}, this version reads {FORMAT}; read it with the "
            f"version that wrote it"
        )
    arrays = {name: _stored(each) for name, each in body["arrays"].items()}
    return Index(body["step"], arrays, body["about"])


def check_cover(name: str, shape: Sequence[int], boxes: Iterable[Box]) -> None:
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


def _stored(each: dict[str, Any]) -> Stored:
    parts = tuple(
        Part(file, tuple(map(tuple, box)), offset, rows, tuple(checksums))
        for file, box, offset, rows, checksums in each["parts"]
    )
    return Stored(tuple(each["shape"]), each["dtype"], parts)
