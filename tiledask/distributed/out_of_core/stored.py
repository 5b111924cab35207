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
from typing import Any, Literal

import numpy as np

from tiledask.distributed.out_of_core import npy
from tiledask.distributed.out_of_core import zarr_chunks as zarr
from tiledask.distributed.out_of_core.disk import reading, sync, writing
from tiledask.errors import ConfigError, KernelError
from tiledask.plan.products.regions import Region, extents_of
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile import as_dtype

__all__ = ["StoredArray", "create_array", "describe", "materialize", "open_array"]

DTYPES = ("float16", "float32", "float64")
_MODULES: dict[str, Any] = {"npy": npy, "zarr": zarr}
CHUNK = 1024
"""Extent of the chunks of a zarr array that is created without chunks=."""


@dataclass(frozen=True, repr=False)
class StoredArray:
    """A matrix in a file, of which regions are read and written. Nothing is open or loaded.

    ``array[:10, 5]`` is a NumPy array of those elements.
    """

    path: str
    """Absolute."""
    kind: Literal["npy", "zarr"]
    shape: tuple[int, int]
    dtype: np.dtype
    chunks: tuple[int, int] | None = None
    """Extents of a chunk of a zarr array; None for .npy."""
    offset: int = 0
    """Bytes before the first element of a .npy file."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

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
        self._check(region, out)
        if out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ConfigError(f"{self.path} is read into {self.dtype} by rows, not {out.dtype}")
        with reading(self.path):
            read: int = _MODULES[self.kind].read(self, region, out)
            return read

    def write(self, region: Region, block: np.ndarray) -> None:
        """None, once ``region`` holds ``block``, converted to this dtype if it has another.

        Regions of a zarr array that are written at a time must end where chunks do: chunks that
        two write at once keep the elements of one of them. ConfigError says how much is free where
        the disk is full.
        """
        self._check(region, block)
        with writing(self.path, self.unwritten):
            _MODULES[self.kind].write(self, region, block)

    def sync(self, region: Region) -> None:
        """None, once what was written to ``region`` would survive a loss of power."""
        with writing(self.path, self.unwritten):
            for name in _MODULES[self.kind].files(self, region):
                sync(name)

    def identity(self) -> dict[str, Any]:
        """What tells this file from another, or from itself after a change; for JSON."""
        stats = [file.stat() for file in self._files()]
        return {
            "path": self.path,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "files": len(stats),
            "bytes": sum(stat.st_size for stat in stats),
            "mtime_ns": max((stat.st_mtime_ns for stat in stats), default=0),
        }

    def unwritten(self) -> int:
        """Bytes that the elements take and the disk has not given yet."""
        return max(0, self.nbytes - sum(file.stat().st_blocks * 512 for file in self._files()))

    def _files(self) -> list[Path]:
        place = Path(self.path)
        if place.is_dir():
            return [file for file in place.rglob("*") if file.is_file()]
        return [place] if place.exists() else []

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

    def _check(self, region: Region, block: np.ndarray) -> None:
        inside = all(0 <= a <= b <= n for (a, b), n in zip(region, self.shape, strict=True))
        if not inside or block.shape != extents_of(region):
            raise ConfigError(
                f"region {region} of {self.path}, which is {self.shape}, and a buffer of "
                f"{block.shape} do not go together"
            )

    def __repr__(self) -> str:
        lies = f"chunks {self.chunks}" if self.chunks else "rows"
        return (
            f"{type(self).__name__}({self.shape[0]}x{self.shape[1]} {self.dtype}, {lies}, "
            f"{format_bytes(self.nbytes)}, {self.path!r})"
        )


def open_array(path: str | os.PathLike[str]) -> StoredArray:
    """The matrix in a .npy file or a zarr directory (format 2 or 3), of float16, 32 or 64.

    Only the header is read; everything that is no such matrix, and a .npy file of another size than
    its header says, raises ConfigError. Chunks of a zarr array are decoded, and compared with their
    checksum if they have one, when they are read; one that is missing is an error then.
    """
    name = os.path.abspath(path)
    kind: Literal["npy", "zarr"] = "zarr" if os.path.isdir(name) else "npy"
    with reading(name):
        if not os.path.exists(name):
            raise ConfigError(f"there is no file {name}; td.create_array makes one")
        shape, dtype, lies = _MODULES[kind].look(name)
    return StoredArray(name, kind, *_checked(name, shape, dtype), **lies)


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
    is sparse and takes no space until it is written. A zarr directory has a file for every chunk,
    each with a crc32c. An existing file
    raises ConfigError unless ``overwrite``.
    """
    array = describe(path, shape, dtype, chunks)
    if os.path.lexists(array.path) and not overwrite:
        raise ConfigError(
            f"{array.path} exists; td.open_array opens it, overwrite=True replaces it"
        )
    Path(f"{array.path}.tiledask").unlink(missing_ok=True)  # of an unfinished product
    materialize(array)
    if array.kind == "zarr":
        zeros = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        array.write(((0, array.shape[0]), (0, array.shape[1])), zeros)
    return array


def describe(
    path: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: Any,
    chunks: tuple[int, int] | int | None = None,
) -> StoredArray:
    """The array that `create_array` would make; nothing is touched."""
    name = os.path.abspath(path)
    if not name.endswith((".npy", ".zarr")) or (name.endswith(".npy") and chunks is not None):
        raise ConfigError(
            f"the name says what is created: .npy, which has no chunks, or .zarr; got "
            f"{os.path.basename(name)!r} with chunks={chunks}"
        )
    shape, dtype = _checked(name, shape, dtype)
    if name.endswith(".npy"):
        return StoredArray(name, "npy", shape, dtype, offset=len(npy.header(shape, dtype)))
    given: Any = CHUNK if chunks is None else chunks
    extents = tuple(given) if isinstance(given, Iterable) else (given, given)
    if len(extents) != 2 or not all(is_whole(c, 1) for c in extents):
        raise ConfigError(f"chunks are two whole numbers of 1 or more, got {extents}")
    # a chunk is stored in full, so that one larger than the array is only larger
    rows, columns = (min(int(c), n) for c, n in zip(extents, shape, strict=True))
    return StoredArray(name, "zarr", shape, dtype, (rows, columns))


def materialize(array: StoredArray) -> None:
    """None, once its file is there in place of whatever was; a zarr array has no chunks yet."""
    place = Path(array.path)
    with writing(place, lambda: array.offset):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        _MODULES[array.kind].create(array)


def _checked(name: str, shape: Any, dtype: Any) -> tuple[tuple[int, int], np.dtype]:
    """(shape, dtype) of what can be multiplied, or ConfigError."""
    try:
        found = as_dtype(dtype)
    except KernelError as error:
        raise ConfigError(f"{name}: {error}") from None
    if found.name not in DTYPES or not found.isnative:
        complex_ = "store its .real and its .imag, a file each"
        raise ConfigError(
            f"{name} is {found.name if found.isnative else f'{found} (foreign byte order)'}, "
            f"stored matrices are {', '.join(DTYPES)}; "
            f"{complex_ if found.kind == 'c' else 'convert it with astype'}"
        )
    shape = tuple(shape)
    if len(shape) != 2 or not all(is_whole(n, 1) for n in shape):
        raise ConfigError(
            f"{name} has shape {shape}, a stored matrix has 2 dimensions of 1 or more; reshape it"
        )
    rows, columns = map(int, shape)
    return (rows, columns), found
