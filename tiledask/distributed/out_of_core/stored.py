"""Matrices in files: a .npy file, or a zarr array. A region is read or written at a time.

    .npy    header | element, element, ...      any run of contiguous elements can be read
    zarr    [0.0] [0.1] ...                     chunks, each read and written as a whole

Files are read into the caller's memory and never mapped: mapped pages would count as this
process's own, and the system could not tell what a plan is allowed to hold.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from platform import node
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core import npy
from tiledask.distributed.out_of_core import zarr_chunks as zarr
from tiledask.distributed.out_of_core.disk import on_disk
from tiledask.distributed.out_of_core.journal import journal_of
from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region, extents_of
from tiledask.plan.products.streaming import read_bytes
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole

__all__ = ["StoredArray", "create_array", "describe", "materialize", "open_array"]

DTYPES = ("float16", "float32", "float64")
CHUNK = 1024
"""Extent of the chunks of a zarr array that is created without chunks=."""


@dataclass(frozen=True, repr=False)
class StoredArray:
    """A matrix in a file, of which regions are read and written. Nothing is open or loaded.

    ``array[:10, 5]`` is a NumPy array of those elements.
    """

    path: str
    """Absolute."""
    shape: tuple[int, int]
    dtype: np.dtype
    chunks: tuple[int, int] | None = None
    """Extents of a chunk of a zarr array; None for .npy."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, before any compression."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def grid(self) -> tuple[int, int]:
        """Extents of the smallest region that is read and written on its own."""
        return self.chunks or (1, 1)

    def read(self, region: Region, out: np.ndarray) -> int:
        """Bytes read, once ``out`` holds the elements of ``region`` ((top, bottom), (left, right)).

        ``out`` has the region's shape and this dtype, in C order. Of zarr arrays the bytes are
        those of the decoded chunks. Raises ConfigError where the file ends too early, or a chunk is
        missing or does not decode.
        """
        self._check(region, out, out.dtype == self.dtype and out.flags.c_contiguous)
        with on_disk(self.path):
            (zarr if self.chunks else npy).read(self, region, out)
        return read_bytes(region, self.grid, self.dtype.itemsize)

    def write(self, region: Region, block: np.ndarray, durable: bool = False) -> None:
        """None, once ``region`` holds ``block``, converted to this dtype; if ``durable``, so that
        it would survive a loss of power.

        Regions of a zarr array that are written at a time must end where chunks do: chunks that
        two write at once keep the elements of one of them. ConfigError says how much is free where
        the disk is full.
        """
        self._check(region, block)
        with on_disk(self.path, block.size * self.dtype.itemsize):
            (zarr if self.chunks else npy).write(self, region, block, durable)

    def stamp(self) -> str:
        """What tells its files from others, and from themselves after a change."""
        place = Path(self.path)
        stats = [file.stat() for file in (place, *place.rglob("*")) if file.is_file()]
        changed = max((stat.st_mtime_ns for stat in stats), default=0)
        nbytes = sum(stat.st_size for stat in stats)
        return f"{self}, {len(stats)} files of {nbytes} bytes, changed at {changed}"

    def __getitem__(self, index: Any) -> np.ndarray:
        both = index if isinstance(index, tuple) else (index,)
        both = (*both, *[slice(None)] * (2 - len(both)))
        parts = [range(n)[i] for n, i in zip(self.shape, both, strict=True)]
        spans = [part if isinstance(part, range) else range(part, part + 1) for part in parts]
        if any(span.step != 1 for span in spans):
            raise IndexError(f"regions are read without steps, got {index}; read them and slice")
        rows, columns = ((span.start, max(span.start, span.stop)) for span in spans)
        out = np.empty(extents_of((rows, columns)), self.dtype)
        self.read((rows, columns), out)
        found: np.ndarray = out[tuple(slice(None) if isinstance(p, range) else 0 for p in parts)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.path} is in a file: an array of it is a copy")
        return self[:, :].astype(dtype or self.dtype, copy=False)

    def _check(self, region: Region, block: np.ndarray, plain: bool = True) -> None:
        inside = all(0 <= a <= b <= n for (a, b), n in zip(region, self.shape, strict=True))
        if not (inside and plain and block.shape == extents_of(region)):
            raise ConfigError(
                f"region {region} of {self.path}, which is {self.shape} {self.dtype} by rows, and "
                f"an array of {block.shape} {block.dtype} do not go together"
            )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.shape[0]}x{self.shape[1]} {self.dtype}, "
            f"{f'chunks {self.chunks}' if self.chunks else 'rows'}, "
            f"{format_bytes(self.nbytes)}, {self.path!r})"
        )


def open_array(path: str | os.PathLike[str]) -> StoredArray:
    """The matrix in a .npy file or a zarr directory (format 2 or 3), of float16, 32 or 64.

    Only the header is read; everything that is no such matrix, and a .npy file of another size than
    its header says, raises ConfigError. Chunks of a zarr array are decoded, and compared with their
    checksum if they have one, when they are read; one that is missing is an error then.
    """
    name = os.path.abspath(path)
    if not os.path.exists(name):
        raise ConfigError(f"there is no file {name} on {node()}; td.create_array makes one")
    with on_disk(name):
        found = (zarr if os.path.isdir(name) else npy).look(name)
    # chunks of a shard are written together
    chunks = getattr(found, "shards", None) or getattr(found, "chunks", None)
    return StoredArray(name, *_checked(name, found.shape, found.dtype), chunks)


def create_array(
    path: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: Any,
    chunks: tuple[int, int] | int | None = None,
    *,
    overwrite: bool = False,
) -> StoredArray:
    """A new matrix of zeros: a .npy file, or a zarr directory (format 3) in ``chunks``.

    The name decides: ``.npy``, or ``.zarr`` with chunks of 1024 x 1024 unless given. The .npy file
    is sparse and takes no space until it is written; a zarr directory has a file for every chunk,
    each with a checksum. An existing file raises ConfigError unless ``overwrite``.
    """
    array = describe(path, shape, dtype, chunks)
    if os.path.lexists(array.path) and not overwrite:
        raise ConfigError(
            f"{array.path} exists; td.open_array opens it, overwrite=True replaces it"
        )
    journal_of(array.path).unlink(missing_ok=True)
    materialize(array)
    if array.chunks:
        zeros = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        array.write(((0, array.shape[0]), (0, array.shape[1])), zeros)
    return array


def describe(path: Any, shape: Any, dtype: Any, chunks: Any = None) -> StoredArray:
    """The array that `create_array` would make; nothing is touched."""
    name, chunked = os.path.abspath(path), os.fspath(path).endswith(".zarr")
    if not chunked and (chunks is not None or not name.endswith(".npy")):
        raise ConfigError(
            f"the name says what is created: .npy, which has no chunks, or .zarr; got "
            f"{os.path.basename(name)!r} with chunks={chunks}"
        )
    shape, dtype = _checked(name, shape, dtype)
    if not chunked:
        return StoredArray(name, shape, dtype)
    rows, columns = _pair("chunks", np.broadcast_to(chunks or CHUNK, 2).tolist())
    return StoredArray(name, shape, dtype, (min(rows, shape[0]), min(columns, shape[1])))


def materialize(array: StoredArray) -> None:
    """None, once its file is there in place of whatever was; a zarr array has no chunks yet."""
    place = Path(array.path)
    with on_disk(place, 4096):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        (zarr if array.chunks else npy).create(array)


def _checked(name: str, shape: Any, dtype: Any) -> tuple[tuple[int, int], np.dtype]:
    """(shape, dtype) of what can be multiplied, or ConfigError."""
    found = next((known for known in map(np.dtype, DTYPES) if known == dtype), None)
    if found is None:
        raise ConfigError(
            f"{name} is {dtype}, stored matrices are {', '.join(DTYPES)} in this machine's byte "
            f"order; convert it with astype"
        )
    return _pair(f"the 2 dimensions of {name}", shape), found


def _pair(what: str, extents: Iterable[Any]) -> tuple[int, int]:
    numbers = tuple(extents)
    if len(numbers) != 2 or not all(is_whole(n, 1) for n in numbers):
        raise ConfigError(f"{what} are two whole numbers of 1 or more, got {numbers}")
    return int(numbers[0]), int(numbers[1])
