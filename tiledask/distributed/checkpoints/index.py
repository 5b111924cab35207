"""A checkpoint on the disk: its index says which box of which array is where, with checksums.

    stored   |   rank 0   |   rank 1   |        each rank reads the parts that its own boxes
    asked    |  0  |   1   |  2  |  3  |        touch, checks them, and copies its own out

A rank holds what it asked for and the parts of one array, never the whole model.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.arrays.digests import crc_of
from tiledask.errors import CheckpointError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.regions import (
    Region,
    TensorSlice,
    around,
    extents_of,
    overlap,
    region_size,
    within,
)
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.backend import as_dtype

__all__ = ["Checkpoint", "Stored", "StoredBox", "check_cover", "folder_of", "open_checkpoint"]
__all__ += ["steps_in", "whole", "write_index"]

FILE = "index.json"
FORMAT = 3
_DAMAGE = LookupError, TypeError, ValueError, OverflowError, AttributeError, OSError, RecursionError


class StoredBox(NamedTuple):
    """A box of an array, row after row in a file."""

    rank: int
    """Whose file it is in: rank-0.bin, ..."""
    box: Region
    offset: int
    """Bytes before it."""
    checksum: int
    """CRC-32 of its numbers."""


@dataclass(frozen=True)
class Stored:
    """An array of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    """Its name, such as "bfloat16"."""
    parts: tuple[StoredBox, ...]


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """A checkpoint on the disk; nothing is loaded."""

    path: Path
    step: int
    arrays: dict[str, Stored]
    """Shapes and types by name."""
    about: dict[str, Any]
    """What was saved along."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; parts that overlap take more on the disk."""
        return sum(prod(x.shape) * as_dtype(x.dtype).itemsize for x in self.arrays.values())

    def read(self, pieces: Mapping[str, TensorSlice] | None = None) -> dict[str, np.ndarray]:
        """New arrays in host memory by name, in the shapes of these pieces; all, if left out.

        Bit for bit what was saved. Raises CheckpointError where a name is not there, a shape is
        another, or a file is damaged; nothing that has not passed its checksum comes back.
        """
        if pieces is None:
            pieces = {name: whole(each.shape) for name, each in self.arrays.items()}
        for name, piece in pieces.items():
            if name not in self.arrays:
                raise CheckpointError(f"{self} has no array {name!r}; .arrays lists those it has")
            if tuple(piece.shape) != self.arrays[name].shape:
                raise CheckpointError(
                    f"{name!r} of {self} is {list(self.arrays[name].shape)}, the piece is of an "
                    f"array of {list(piece.shape)}; the model is another one"
                )
        return {name: self._array(self.arrays[name], piece) for name, piece in pieces.items()}

    def _array(self, stored: Stored, piece: TensorSlice) -> np.ndarray:
        local = np.empty(piece.local_shape, as_dtype(stored.dtype))
        read: dict[StoredBox, np.ndarray] = {}
        for box, view in piece.views(local):
            for part in stored.parts:
                if (both := overlap(part.box, box)) is None:
                    continue
                if part not in read:
                    read[part] = self._part(part, local.dtype)
                view[within(both, box)] = read[part][within(both, part.box)]
                if both == box:  # several may hold it: one is enough
                    break
        return local

    def _part(self, part: StoredBox, dtype: np.dtype) -> np.ndarray:
        """The numbers of ``part``, which have its checksum."""
        path, count = self.path / f"rank-{part.rank}.bin", region_size(part.box) * dtype.itemsize
        try:
            numbers = np.fromfile(path, np.uint8, count, offset=part.offset)
            if crc_of(numbers) != part.checksum:
                raise ValueError("it does not have its checksum")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}; {self} cannot be read whole: open an earlier step "
                f"with step="
            ) from None
        made: np.ndarray = numbers.view(dtype).reshape(extents_of(part.box))
        return made

    def __repr__(self) -> str:
        return (
            f"Checkpoint(step {self.step}, {len(self.arrays)} arrays, "
            f"{format_bytes(self.nbytes)}, {str(self.path)!r})"
        )


def folder_of(folder: str | os.PathLike[str], step: int) -> Path:
    """The path of the checkpoint of a step.

    >>> folder_of("runs/a", 40).name
    'step-00000040'
    """
    step = whole_number("step", step, 0, error=CheckpointError)
    return Path(folder) / f"step-{step:08d}"


def steps_in(folder: str | os.PathLike[str]) -> tuple[int, ...]:
    """The steps that were saved whole in a folder, in rising order."""
    found = (re.fullmatch(r"step-(\d{8,})", path.name) for path in Path(folder).glob("step-*"))
    return tuple(sorted(int(match[1]) for match in found if match))


def open_checkpoint(folder: str | os.PathLike[str], step: int | None = None) -> Checkpoint:
    """The checkpoint of ``step`` in a folder; left out, the newest. Only its index is read.

    A save that was not finished is never taken for a checkpoint. Raises CheckpointError if there
    is none, or if the index is damaged, or not of these files: what it names is in them, and
    together it is the arrays.
    """
    there = steps_in(folder)
    if not there or (step is not None and step not in there):
        wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        has = f"steps {', '.join(map(str, there))}" if there else "none"
        raise CheckpointError(f"there is not {wanted} in {folder}: it has {has}")
    path = folder_of(folder, there[-1] if step is None else step)
    try:
        given = json.loads((path / FILE).read_text())
        body = given["index"]
        if zlib.crc32(_canonical(body).encode()) != given["crc32"]:
            raise ValueError(f"its checksum is not {given['crc32']}")
        if body["format"] != FORMAT:
            raise ValueError(
                f"it has format {body['format']}, this version reads {FORMAT}; read it with the "
                f"version that wrote it"
            )
        if not path.name.endswith(f"-{body['step']:08d}"):
            raise ValueError(f"its step is {body['step']}")
        arrays = {name: _stored(path, name, each) for name, each in body["arrays"].items()}
        return Checkpoint(path, int(body["step"]), arrays, dict(body["about"]))
    except _DAMAGE as error:
        raise CheckpointError(
            f"{path / FILE} cannot be read as a checkpoint's index, damaged or not of what is "
            f"beside it: {type(error).__name__}: {str(error)[:300]}; open an earlier step with "
            f"step="
        ) from None


def _stored(folder: Path, name: str, each: dict[str, Any]) -> Stored:
    """What an index says of an array: its parts are in files of the folder, and all of it."""
    shape, dtype, parts = tuple(each["shape"]), as_dtype(each["dtype"]), list[StoredBox]()
    numbers, elements = list(shape), prod(n for n in shape if n)  # an axis of 0 hides no other
    for rank, ends, offset, checksum in each["parts"]:
        part = StoredBox(rank, tuple((start, stop) for start, stop in ends), offset, checksum)
        path, needs = folder / f"rank-{rank:d}.bin", offset + region_size(part.box) * dtype.itemsize
        if path.is_symlink() or path.stat().st_size < needs:
            raise ValueError(f"{path.name} has less than the {needs} bytes that {name!r} needs")
        numbers += [rank, offset, checksum, *(end for pair in part.box for end in pair)]
        parts.append(part)
    plain = dtype.name == each["dtype"] and (dtype.kind in "biufc" or dtype.name == "bfloat16")
    if not plain or not all(is_whole(n, 0) for n in numbers) or elements * dtype.itemsize >= 2**63:
        raise ValueError(f"{name!r} is not of numbers, or not in boxes of an array")
    check_cover(name, shape, [part.box for part in parts])
    return Stored(shape, dtype.name, tuple(parts))


def write_index(
    folder: Path, step: int, arrays: dict[str, Stored], about: dict[str, Any] | None
) -> Path:
    """The index's file, with a checksum of its own; not yet forced to the disk."""
    body = {"format": FORMAT, "step": step, "about": about or {}}
    text = _canonical(body | {"arrays": {name: vars(each) for name, each in arrays.items()}})
    path = folder / FILE
    path.write_text(f'{{"crc32": {zlib.crc32(text.encode())}, "index": {text}}}\n')
    return path


def _canonical(body: dict[str, Any]) -> str:
    try:
        return json.dumps(body, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"about= goes into the index as JSON: numbers, text, lists and dicts of them ({error})"
        ) from None


def whole(shape: tuple[int, ...]) -> TensorSlice:
    """All of an array, as each replica holds it.

    >>> whole((4, 6)).boxes
    (((0, 4), (0, 6)),)
    """
    return Tiling(tuple(shape), (), ()).slice(())


def check_cover(name: str, shape: tuple[int, ...], boxes: Iterable[Region]) -> None:
    """None; raises CheckpointError unless the boxes together are the array.

    >>> check_cover("w", (4,), [((0, 1),), ((2, 4),)])
    Traceback (most recent call last):
        ...
    tiledask.errors.CheckpointError: no rank holds ((1, 2),) of 'w', which is [4]; all ranks together must hold all of it: is a stage or a shard left out?
    """  # noqa: E501
    left: set[Region] = {tuple((0, n) for n in shape)} if prod(shape) else set()
    for box in boxes:
        holes = {region: overlap(region, box) for region in left}
        outside = (around(r, hole) if hole is not None else (r,) for r, hole in holes.items())
        left = {rest for regions in outside for rest in regions}
    if left:
        raise CheckpointError(
            f"no rank holds {min(left)} of {name!r}, which is {list(shape)}; all ranks together "
            f"must hold all of it: is a stage or a shard left out?"
        )
