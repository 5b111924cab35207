"""Opening and reading: the newest whole checkpoint, and of it what one rank asks for.

    stored   |   rank 0   |   rank 1   |        each rank reads the parts that its own boxes
    asked    |  0  |   1   |  2  |  3  |        touch, checks them, and copies its own out

A rank holds what it asked for and the parts of one array, never the whole model.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.distributed.arrays.digests import crc_of
from tiledask.distributed.checkpoints.index import Stored, StoredBox, read_index, whole
from tiledask.distributed.checkpoints.write import UNFINISHED, folder_of
from tiledask.errors import CheckpointError
from tiledask.plan.products.regions import TensorSlice, extents_of, overlap, region_size, within
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import as_dtype

__all__ = ["Checkpoint", "open_checkpoint", "steps_in"]


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
        """Bytes of all arrays."""
        return sum(each.nbytes for each in self.arrays.values())

    def read(self, pieces: Mapping[str, TensorSlice] | None = None) -> dict[str, np.ndarray]:
        """New arrays in host memory by name, in the shapes of these pieces; all, if left out.

        Bit for bit what was saved. Raises CheckpointError where a name is not there, a shape is
        another, or a file is damaged; nothing that has not passed its checksum comes back.
        """
        if pieces is None:
            pieces = {name: whole(each.shape) for name, each in self.arrays.items()}
        for name, piece in pieces.items():
            if name not in self.arrays:
                near = get_close_matches(name, self.arrays, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise CheckpointError(
                    f"{self} has no array {name!r}; {hint}.arrays lists those it has"
                )
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
        path, count = self.path / part.file, region_size(part.box) * dtype.itemsize
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


def open_checkpoint(folder: str | os.PathLike[str], step: int | None = None) -> Checkpoint:
    """The checkpoint of ``step`` in a folder; left out, the newest. Only its index is read.

    A save that was not finished is never taken for a checkpoint. Raises CheckpointError if there
    is none, or if the index is damaged.
    """
    there = steps_in(folder)
    if not there or (step is not None and step not in there):
        wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        has = f"steps {', '.join(map(str, there))}" if there else "none"
        torn = [p.name for p in Path(folder).glob(f"step-*{UNFINISHED}")]
        rest = f", and {', '.join(torn)} that was never finished" if torn else ""
        raise CheckpointError(f"there is not {wanted} in {folder}: it has {has}{rest}")
    path = folder_of(folder, there[-1] if step is None else step)
    return Checkpoint(path, *read_index(path))


def steps_in(folder: str | os.PathLike[str]) -> tuple[int, ...]:
    """The steps that were saved whole in a folder, in rising order."""
    found = (re.fullmatch(r"step-(\d{8,})", path.name) for path in Path(folder).glob("step-*"))
    return tuple(sorted(int(match[1]) for match in found if match))
