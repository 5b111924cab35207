"""Matrices in files: a .npy file, or a zarr array. A region is read or written at a time.

    .npy    header | element, element, ...      row by row, of any of its columns
    zarr    [0.0] [0.1] ...                     chunks, each read and written as a whole

Files are read into the caller's memory and never mapped: mapped pages would count as this
process's own, and the system could not tell what a plan is allowed to hold.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.distributed.out_of_core import zarr_chunks as zarr
from tiledask.distributed.out_of_core.disk import on_disk, sync
from tiledask.distributed.out_of_core.journal import journal_of
from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region, extents_of
from tiledask.plan.products.streaming import StreamPlan, read_bytes
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import Both

__all__ = ["StoredArray", "create_array", "describe", "materialize", "open_array"]

DTYPES = ("float16", "float32", "float64")
CHUNK = 1024
"""Rows and columns of a chunk of a zarr array that is created."""


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
    plan: StreamPlan | None = field(default=None, compare=False)
    """Of a product: the plan of what its run had left to do."""
    memory: "Both | None" = field(default=None, compare=False)
    """Of a product: its ledger, a place per slot, predicted and measured."""
    bytes_read: "Both | None" = field(default=None, compare=False)
    """Of a product: bytes read from files by all workers, predicted and counted."""
    seconds: float = field(default=0.0, compare=False)
    """Of a product: how long its run took, measured by the client."""

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
        with on_disk(self.path, doing="read"):
            (zarr.read if self.chunks else _read_npy)(self, region, out)
        return read_bytes(region, self.grid, self.dtype.itemsize)

    def write(self, region: Region, block: np.ndarray, durable: bool = False) -> None:
        """None, once ``region`` holds ``block``, converted to this dtype; if ``durable``, so that
        it would survive a loss of power.

        Regions of a zarr array that are written at a time must end where chunks do: chunks that
        two write at once keep the elements of one of them.
        """
        inside = all(0 <= a <= b <= n for (a, b), n in zip(region, self.shape, strict=True))
        if not inside or block.shape != extents_of(region):
            raise ConfigError(f"{block.shape} elements are no region {region} of {self}")
        # beyond float16's range is infinity, as in any sum of halves
        with on_disk(self.path), np.errstate(over="ignore"):
            (zarr.write if self.chunks else _write_npy)(self, region, block, durable)

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

    def __repr__(self) -> str:
        return (
            f"StoredArray({self.shape[0]}x{self.shape[1]} {self.dtype}, "
            f"{f'chunks {self.chunks}' if self.chunks else 'rows'}, "
            f"{format_bytes(self.nbytes)}, {self.path!r})"
        )


def open_array(path: str | os.PathLike[str]) -> StoredArray:
    """The matrix in a .npy file or a zarr directory (format 2 or 3), of float16, 32 or 64.

    Only the header is read; everything that is no such matrix, and a .npy file that was cut short,
    raises ConfigError. Chunks of a zarr array are decoded, and compared with their checksum if they
    have one, when they are read; one that is missing is an error then.
    """
    name = os.path.abspath(path)
    with on_disk(name, doing="read"):
        found = (zarr.look if os.path.isdir(name) else _look_npy)(name)
    # chunks of a shard are written together
    chunks = getattr(found, "shards", None) or getattr(found, "chunks", None)
    return StoredArray(name, *_checked(name, found.shape, found.dtype), chunks)


def create_array(path: str | os.PathLike[str], shape: tuple[int, int], dtype: Any) -> StoredArray:
    """A new matrix of zeros: a .npy file, or a zarr directory (format 3) in chunks of 1024 x 1024.

    The name decides: ``.npy`` or ``.zarr``. The .npy file is sparse and takes no space until it is
    written; a zarr directory has a file for every chunk, each with a checksum. An existing file
    raises ConfigError.
    """
    array = describe(path, shape, dtype)
    if os.path.lexists(array.path):
        raise ConfigError(f"{array.path} exists; td.open_array opens it, or remove it")
    journal_of(array.path).unlink(missing_ok=True)
    materialize(array)
    if array.chunks:
        zeros = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        array.write(((0, array.shape[0]), (0, array.shape[1])), zeros)
    return array


def describe(path: Any, shape: Any, dtype: Any) -> StoredArray:
    """The array that `create_array` would make; nothing is touched."""
    name = os.path.abspath(path)
    if not name.endswith((".npy", ".zarr")):
        raise ConfigError(f"the name says what is created: .npy or .zarr; got {name!r}")
    (rows, columns), dtype = _checked(name, shape, dtype)
    chunks = (min(CHUNK, rows), min(CHUNK, columns)) if name.endswith(".zarr") else None
    return StoredArray(name, (rows, columns), dtype, chunks)


def materialize(array: StoredArray) -> None:
    """None, once its file is there in place of whatever was; a zarr array has no chunks yet."""
    with on_disk(array.path):
        os.makedirs(os.path.dirname(array.path), exist_ok=True)
        if array.chunks:
            zarr.create(array)
        else:
            np.lib.format.open_memmap(array.path, "w+", array.dtype, array.shape)


def _checked(name: str, shape: Any, dtype: Any) -> tuple[tuple[int, int], np.dtype]:
    """(shape, dtype) of what can be multiplied, or ConfigError."""
    found = next((known for known in map(np.dtype, DTYPES) if known == dtype), None)
    if found is None:
        raise ConfigError(
            f"{name} is {dtype}, stored matrices are {', '.join(DTYPES)} in this machine's byte "
            f"order; convert it with astype"
        )
    if len(shape) != 2 or not all(is_whole(n, 1) for n in shape):
        raise ConfigError(f"the 2 dimensions of {name} are 1 or more, got {tuple(shape)}")
    return (int(shape[0]), int(shape[1])), found


# -- .npy files ------------------------------------------------------------------------------------


def _look_npy(path: str) -> Any:
    """The array, mapped for what its header says: by rows."""
    try:
        found: Any = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # of the tokenizer that NumPy tries last, too
        raise ConfigError(
            f"{path} cannot be read as .npy: {str(error)[:300]}; it was cut short, is damaged or "
            f"no such file: numpy.save writes one"
        ) from None
    if found.ndim == 2 and not found.flags.c_contiguous:
        raise ConfigError(f"{path} lies column by column; save numpy.ascontiguousarray of it")
    return found


def _rows(array: StoredArray, region: Region, block: np.ndarray) -> Iterator[tuple[int, Any]]:
    """(bytes of the file before it, its elements) of each row of the region in ``block``."""
    ((top, _), (left, _)), itemsize = region, array.dtype.itemsize
    start = _look_npy(array.path).offset
    for i, row in enumerate(block, top):
        yield start + (i * array.shape[1] + left) * itemsize, row


def _read_npy(array: StoredArray, region: Region, out: np.ndarray) -> None:
    with open(array.path, "rb") as file:
        for at, row in _rows(array, region, out):
            file.seek(at)
            if file.readinto(row.view(np.uint8).data) < row.nbytes:
                raise ConfigError(f"{array.path} was cut short meanwhile; write it again")


def _write_npy(array: StoredArray, region: Region, block: np.ndarray, durable: bool) -> None:
    with open(array.path, "r+b") as file:
        for at, row in _rows(array, region, block):
            file.seek(at)
            file.write(np.ascontiguousarray(row, array.dtype).data)
    if durable:
        sync(array.path)
