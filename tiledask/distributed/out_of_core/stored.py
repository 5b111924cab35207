"""Matrices in files: a .npy file, or a zarr array. A region is read or written at a time.

    .npy    header | element, element, ...      any run of contiguous elements can be read
    zarr    [0.0] [0.1] ...                     chunks, each read and written as a whole

Files are read into the caller's memory and never mapped: mapped pages would count as this
process's own, and the system could not tell what a plan is allowed to hold. A zarr array is a
directory, or by its URL lies in a store that fsspec knows.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core import stored_npy as npy
from tiledask.distributed.out_of_core import stored_zarr as zarr
from tiledask.distributed.out_of_core.disk import reading, sync, writing
from tiledask.distributed.out_of_core.folder import Folder, is_url, located
from tiledask.distributed.out_of_core.stored_file import StoredFile
from tiledask.errors import ConfigError, KernelError
from tiledask.plan import html
from tiledask.plan.digests import crc_of
from tiledask.plan.products.regions import Region, extents_of
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile import as_dtype

__all__ = [
    "StoredArray",
    "checksum",
    "create_array",
    "describe",
    "materialize",
    "open_array",
    "present",
    "records_of",
    "remove",
    "unfinished",
]

DTYPES = ("float16", "float32", "float64")
_SLAB = 2**20
"""Bytes of a tile, about, that are read or rounded at a time for its checksum."""
CHUNK = 1024
"""Extent of the chunks of a zarr array that is created without chunks=."""


@dataclass(frozen=True, repr=False)
class StoredArray(StoredFile):
    """A matrix in a file, of which regions are read and written.

    ``array[:10, 5]`` is a NumPy array of those elements.
    """

    @property
    def checked(self) -> str:
        """What is compared when it is read: what is not, nothing here can vouch for."""
        if self.kind == "npy":
            return "size and header only: .npy has no checksum"
        if self.checksum:
            return f"header, every chunk there and its {self.checksum}"
        return "header, every chunk there and decoded: its codecs have no checksum"

    def read(self, region: Region, out: np.ndarray) -> int:
        """Bytes read, once ``out`` holds the elements of ``region`` ((top, bottom), (left, right)).

        ``out`` is of the region's shape and of this dtype. The bytes are counted read by read; of
        zarr arrays they are those of the decoded chunks. A .npy file fills contiguous rows (of an
        "F" file: columns) of ``out`` without a copy.

        Raises ConfigError where the file is damaged as far as that is `checked`.
        """
        self._check(region, out)
        if out.dtype != self.dtype:
            raise ConfigError(f"{self.path} holds {self.dtype}, the buffer is {out.dtype}")
        with reading(self.path):
            return (npy.read if self.kind == "npy" else zarr.read)(self, region, out)

    def write(self, region: Region, block: np.ndarray) -> None:
        """None, once ``region`` holds ``block``, converted to this dtype if it has another.

        Regions of a zarr array that are written at a time must end where chunks do: chunks that
        two write at once keep the elements of one of them. ConfigError says how much is free where
        the disk is full.
        """
        self._check(region, block)
        with writing(self.path, self._unwritten):
            (npy.write if self.kind == "npy" else zarr.write)(self, region, block)

    def check_of(self, region: Region) -> int:
        """CRC-32 of the elements of ``region``, as `checksum` of a block gives it."""
        return checksum(self, region, lambda rows, columns: self[rows, columns])

    def sync(self, region: Region) -> None:
        """None, once what was written to ``region`` would survive a loss of power.

        A store has it when it was written.
        """
        if is_url(self.path):
            return
        with writing(self.path, self._unwritten):
            if self.kind == "npy":
                sync(self.path)
                return
            names = list(zarr.chunk_files(self, region))
            for name in [*names, *{os.path.dirname(name) for name in names}, self.path]:
                sync(name)

    def identity(self) -> dict[str, Any]:
        """What tells this file from another, or from itself after a change; for JSON."""
        return {
            "path": self.path,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            **self.folder.state(),
        }

    def allocated(self) -> int:
        """Bytes that the file takes on its disk now; 0 if it is not there."""
        return self.folder.allocated()

    def _unwritten(self) -> int:
        """Bytes that the elements take and the disk has not given yet."""
        return max(0, self.nbytes - self.allocated())

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > 2:
            raise IndexError(f"a matrix has 2 dimensions, got {len(index)} indices")
        index = (*index, *[slice(None)] * (2 - len(index)))
        region: list[tuple[int, int]] = []
        keep: list[slice | int] = []
        for i, extent in zip(index, self.shape, strict=True):
            part = range(extent)[i]  # an IndexError beyond the end, as NumPy's
            if isinstance(part, range) and part.step != 1:
                raise IndexError(f"regions are read without steps, got {i}; read them and slice")
            span = (part.start, max(part.start, part.stop)) if isinstance(part, range) else None
            region.append(span or (part, part + 1))
            keep.append(slice(None) if span else 0)
        out = np.empty(extents_of(tuple(region)), self.dtype, order=self.order)
        if out.size:
            self.read(tuple(region), out)
        found: np.ndarray = out[tuple(keep)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.path} is in a file: an array of it is a copy")
        return self[:, :].astype(dtype or self.dtype, copy=False)

    def _check(self, region: Region, block: np.ndarray) -> None:
        shape = extents_of(region)
        inside = all(0 <= a <= b <= n for (a, b), n in zip(region, self.shape, strict=True))
        if not inside or block.shape != shape:
            raise ConfigError(
                f"region {region} of {self.path}, which is {self.shape}, and a buffer of "
                f"{block.shape} do not go together"
            )

    def _words(self) -> str:
        lies = f"chunks {self.chunks}" if self.chunks else f"{self.order} order"
        return f"{self.shape[0]}x{self.shape[1]} {self.dtype}, {lies}, {format_bytes(self.nbytes)}"

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self._words()}, {self.path!r}, checked: {self.checked})"

    def _repr_html_(self) -> str:
        return (
            f"<b>{type(self).__name__}</b> {self._words()}<br><code>{html.words(self.path)}</code>"
            f"<br>checked: {html.words(self.checked)}"
        )


def checksum(array: StoredFile, region: Region, part: Callable[[slice, slice], np.ndarray]) -> int:
    """CRC-32 of the tile of ``array`` at ``region``, line by line as the file has them.

    ``part(rows, columns)`` is that part of the array. It is asked for one slab after the other, of
    whole chunks where there are chunks; the checksum does not depend on how the tile is cut.
    """
    along = int(array.order == "F")  # the axis across lines
    (start, stop), (low, high) = region[along], region[1 - along]
    step = max(1, _SLAB // ((high - low) * array.dtype.itemsize))
    if array.chunks:
        step = -(-step // array.chunks[0]) * array.chunks[0]
    check = 0
    for i in range(start, stop, step):
        across = slice(i, min(stop, i + step)), slice(low, high)
        lines = part(*across) if along == 0 else part(*across[::-1]).T
        check = crc_of(npy.rounded(lines, array.dtype), check)
    return check


def open_array(
    path: str | os.PathLike[str],
    *,
    missing: str = "refuse",
    storage_options: Mapping[str, Any] | None = None,
) -> StoredArray:
    """The matrix in a .npy file or a zarr directory (format 2 or 3), of float16, 32 or 64.

    A zarr array may also be named by a URL that fsspec knows, such as "s3://bucket/a.zarr".

    Only the header is read, and it is compared with what is there: a file of another size, a chunk
    that is missing or one too many raises ConfigError, as does everything that is no such matrix.
    Chunks are decoded, and compared with their checksum if they have one, when they are read;
    ``.checked`` says what is.

    missing
        "refuse": a chunk of a zarr array that is not there is damage. "fill": it is full of the
        array's fill value, as zarr reads it; for arrays that were stored sparse.
    storage_options
        What fsspec needs besides a URL: endpoint, credentials. Workers are told. Without it,
        fsspec's own configuration on every machine says so.
    """
    if missing not in ("refuse", "fill"):
        raise ConfigError(f'missing is "refuse" or "fill", got {missing!r}')
    name = located(path, storage_options)
    with reading(name):
        if is_url(name) or os.path.isdir(name):
            return _open_zarr(name, missing, storage_options)
        if not os.path.exists(name):
            raise ConfigError(f"there is no file {name}; td.create_array makes one")
        return _open_npy(name)


def create_array(
    path: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: Any,
    chunks: tuple[int, int] | int | None = None,
    *,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> StoredArray:
    """A new matrix of zeros: a .npy file, or a zarr directory (format 3) in ``chunks``.

    The name decides: ``.npy``, or ``.zarr`` with chunks of 1024 x 1024 unless told otherwise; any
    other name is zarr if it has chunks. The .npy file is sparse and takes no space until it is
    written; it has no checksum. A zarr directory has a file for every chunk, each with a crc32c. An
    existing file raises ConfigError unless ``overwrite``, which also forgets what an
    unfinished product had recorded about it. A zarr array may be named by a URL, with
    ``storage_options``, as of `open_array`.
    """
    array = describe(path, shape, dtype, chunks, storage_options)
    if present(array) and not overwrite:
        raise ConfigError(
            f"{array.path} exists; td.open_array opens it, overwrite=True replaces it"
        )
    Folder(records_of(array), storage_options).clear()
    return materialize(array, zeros=True)


def describe(
    path: str | os.PathLike[str],
    shape: tuple[int, int],
    dtype: Any,
    chunks: tuple[int, int] | int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> StoredArray:
    """The array that `create_array` would make; nothing is touched."""
    name = located(path, storage_options)
    kind = "npy" if name.endswith(".npy") else "zarr"
    if kind == "zarr" and chunks is None and not name.endswith(".zarr"):
        raise ConfigError(
            f"the name says what is created: .npy or .zarr, got {os.path.basename(name)!r}; "
            f"rename it, or give chunks= for zarr"
        )
    if kind == "npy" and chunks is not None:
        raise ConfigError(f"a .npy file has no chunks, got chunks={chunks}; name it .zarr")
    shape, dtype = _checked(name, shape, dtype)
    if kind == "npy":
        return StoredArray(name, kind, shape, dtype, offset=len(npy.header(shape, dtype)))
    given: Any = CHUNK if chunks is None else chunks
    extents = tuple(given) if isinstance(given, Iterable) else (given, given)
    if len(extents) != 2 or not all(is_whole(c, 1) for c in extents):
        raise ConfigError(f"chunks are two whole numbers of 1 or more, got {extents}")
    # a chunk is stored in full, so that one larger than the array is only larger
    rows, columns = (min(int(c), n) for c, n in zip(extents, shape, strict=True))
    more: dict[str, Any] = {"checksum": "crc32c", "storage_options": storage_options}
    return StoredArray(name, kind, shape, dtype, (rows, columns), **more)


def materialize(array: StoredArray, zeros: bool) -> StoredArray:
    """``array``, once its file is there, in place of whatever was there.

    It is all zeros; a zarr array has no chunks yet unless ``zeros``, and reading them is refused.
    """
    with writing(array.path, lambda: array.nbytes if array.kind == "zarr" else array.offset):
        if not is_url(array.path):
            Path(array.path).parent.mkdir(parents=True, exist_ok=True)
        remove(array)
        if array.kind == "npy":
            npy.create(array)
        else:
            zarr.create(array, zeros)
    return array


def present(array: StoredArray) -> bool:
    """Whether there is anything at the array's path or URL."""
    return array.folder.exists() if is_url(array.path) else os.path.lexists(array.path)


def remove(array: StoredArray) -> None:
    """None, once there is no file or folder at the array's path or URL."""
    if is_url(array.path) or (os.path.isdir(array.path) and not os.path.islink(array.path)):
        array.folder.clear()
    else:
        Path(array.path).unlink(missing_ok=True)


def records_of(array: StoredArray) -> str:
    """The folder beside ``array`` that remembers how far an unfinished product has come."""
    return f"{array.path}.tiledask"


def unfinished(array: StoredArray) -> bool:
    """Whether a product that is to fill ``array`` was begun and not finished."""
    return Folder(records_of(array), array.storage_options).exists("plan.json")


def _open_npy(name: str) -> StoredArray:
    try:
        with open(name, "rb") as file:
            promised, fortran, dtype, offset, size = npy.look(file)
    except ValueError as error:
        raise ConfigError(
            f"{name} cannot be read as .npy: {str(error)[:300]}; numpy.save writes one, and a zarr "
            f"array is a folder"
        ) from None
    shape, dtype = _checked(name, promised, dtype)
    # a matrix of one row or column lies the same in both orders
    columns_first = fortran and 1 not in shape
    array = StoredArray(
        name, "npy", shape, dtype, order="F" if columns_first else "C", offset=offset
    )
    if size != offset + array.nbytes:
        what = "was cut short" if size < offset + array.nbytes else "has more than the matrix"
        raise ConfigError(
            f"{name} says it is {shape[0]}x{shape[1]} {dtype}, {offset + array.nbytes} bytes with "
            f"its header, and has {size}; it {what}, or its header is damaged: write it again"
        )
    return array


def _open_zarr(name: str, missing: str, options: Mapping[str, Any] | None) -> StoredArray:
    try:
        shape, dtype, chunks, checksum = zarr.look(name, options)
    except ConfigError:  # of a store
        raise
    except Exception as error:  # zarr raises all sorts of things for what it cannot read
        words = str(error).splitlines()[0] if str(error) else ""
        what = "names no zarr array" if is_url(name) else "is a folder and no zarr array"
        raise ConfigError(
            f"{name} {what} ({type(error).__name__}: {words}); give the "
            f"{'URL' if is_url(name) else 'path'} of the array itself, which has a zarr.json or a "
            f".zarray; td.create_array makes one"
        ) from None
    extents, found = _checked(name, shape, dtype)
    rows, columns = chunks  # as many as the array has dimensions
    more: dict[str, Any] = {"checksum": checksum, "missing": missing}
    array = StoredArray(
        name, "zarr", extents, found, (rows, columns), **more, storage_options=options
    )
    zarr.survey(array, unfinished(array))
    return array


def _checked(name: str, shape: Any, dtype: Any) -> tuple[tuple[int, int], np.dtype]:
    """(shape, dtype) of what can be multiplied, or ConfigError."""
    try:
        found = as_dtype(dtype)
    except KernelError as error:
        raise ConfigError(f"{name}: {error}") from None
    if found.name not in DTYPES or not found.isnative:
        raise ConfigError(
            f"{name} is {found.name if found.isnative else f'{found} (foreign byte order)'}, "
            f"stored matrices are {', '.join(DTYPES)}; convert it with astype"
        )
    shape = tuple(shape)
    if len(shape) != 2 or not all(is_whole(n, 1) for n in shape):
        raise ConfigError(
            f"{name} has shape {shape}, a stored matrix has 2 dimensions of 1 or more; reshape it"
        )
    rows, columns = map(int, shape)
    return (rows, columns), found
