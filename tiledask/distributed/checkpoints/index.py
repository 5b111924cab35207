"""A checkpoint on the disk: its index says which box of which array is in which file.

    stored   |   rank 0   |   rank 1   |        each rank reads the parts that its own boxes
    asked    |  0  |   1   |  2  |  3  |        touch, checks them, and copies its own out

Of all there are checksums. A rank holds what it asked for and the parts of one array, never all.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from tiledask.errors import CheckpointError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.regions import (
    Region,
    TensorSlice,
    around,
    extents_of,
    overlap,
    within,
)
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import as_dtype

__all__ = ["ABOUT", "BODY", "FILE", "Checkpoint", "Stored", "StoredBox", "check_cover"]
__all__ += ["folder_of", "open_checkpoint", "steps_in", "whole"]

FILE, BODY, ABOUT = "index.zip", "index.json", "about.json"
"""The file of the index, its name in there, and the name of what a rank saves along in its own."""


class StoredBox(NamedTuple):
    """A box of an array, row after row in a file."""

    rank: int
    """Whose file it is in: rank-0.zip, ..."""
    box: Region


class Stored(NamedTuple):
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

    def read(self, pieces: Mapping[str, TensorSlice] | None = None) -> dict[str, np.ndarray]:
        """New arrays in host memory by name, in the shapes of these pieces; all, if left out.

        Bit for bit what was saved. Raises CheckpointError where a name is not there, a shape is
        another, or a file is damaged; nothing that has not passed its checksum comes back.
        """
        with _readable(self.path):
            if pieces is None:
                pieces = {name: whole(each.shape) for name, each in self.arrays.items()}
            return {name: self._array(name, piece) for name, piece in pieces.items()}

    def _array(self, name: str, piece: TensorSlice) -> np.ndarray:
        if name not in self.arrays:
            raise CheckpointError(f"{self} has no array {name!r}; .arrays lists those it has")
        stored = self.arrays[name]
        if piece.shape != stored.shape:
            raise CheckpointError(
                f"{name!r} of {self} is {list(stored.shape)}, the piece is of an array of "
                f"{list(piece.shape)}; the model is another one"
            )
        local = np.empty(piece.local_shape, as_dtype(stored.dtype))
        read: dict[StoredBox, np.ndarray] = {}
        for box, view in piece.views(local):
            for part in stored.parts:
                if (both := overlap(part.box, box)) is None:
                    continue
                if part not in read:
                    numbers = np.frombuffer(self._of(part.rank, f"{name} {part.box}"), local.dtype)
                    read[part] = numbers.reshape(extents_of(part.box))
                view[within(both, box)] = read[part][within(both, part.box)]
                if both == box:  # several may hold it: one is enough
                    break
        return local

    def about(self, rank: int = 0) -> dict[str, Any]:
        """What a rank saved along."""
        with _readable(self.path):
            return dict(json.loads(self._of(rank, ABOUT)))

    def _of(self, rank: int, name: str) -> bytes:
        """What a rank wrote under this name, which has its checksum."""
        path = self.path / f"rank-{rank:d}.zip"  # a number, so that it is nowhere else
        if path.is_symlink():
            raise ValueError(f"{path.name} is a link")
        with ZipFile(path) as file:
            return file.read(name)

    def __repr__(self) -> str:
        return f"Checkpoint(step {self.step}, {len(self.arrays)} arrays, {str(self.path)!r})"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """CheckpointError for all that is raised by files that are not as they were written."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint, it is damaged: {type(error).__name__}: "
            f"{str(error)[:300]}; open an earlier step with step="
        ) from None


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
    is none, or if the index is damaged, of another step, or its boxes are not all of an array.
    """
    there = steps_in(folder)
    if not there or (step is not None and step not in there):
        wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        has = f"steps {', '.join(map(str, there))}" if there else "none"
        raise CheckpointError(f"there is not {wanted} in {folder}: it has {has}")
    step = there[-1] if step is None else step
    path = folder_of(folder, step) / FILE
    with _readable(path):
        with ZipFile(path) as file:
            body = json.loads(file.read(BODY))
        if body["step"] != step:
            raise ValueError(f"it is of step {body['step']}")
        arrays = {}
        for name, (shape, dtype, parts) in body["arrays"].items():
            boxes = [StoredBox(rank, tuple(map(tuple, box))) for rank, box in parts]
            arrays[name] = Stored(tuple(shape), dtype, tuple(boxes))
            check_cover(name, arrays[name].shape, [part.box for part in arrays[name].parts])
        return Checkpoint(path.parent, step, arrays)


def whole(shape: tuple[int, ...]) -> TensorSlice:
    """All of an array, as each replica holds it.

    >>> whole((4, 6)).boxes
    (((0, 4), (0, 6)),)
    """
    return Tiling(tuple(shape), (), ()).slice(())


def check_cover(name: str, shape: tuple[int, ...], boxes: Iterable[Region]) -> None:
    """None; raises CheckpointError unless the boxes together are the array."""
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
