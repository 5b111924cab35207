"""Regions of zarr arrays: chunk by chunk, each there, checked and decoded into its place.

One chunk at a time: zarr itself reads many at once, and holds as many in memory. It also takes a
chunk that is not there for one of fill values; here that is damage. So whatever is written here is
written in full, chunks of zeros too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan.products.regions import Region, overlap, slices, within
from tiledask.plan.products.streaming import StorageLayout

__all__ = ["chunk_files", "create", "fill_with_zeros", "look", "read", "write"]


def look(path: str) -> tuple[tuple[int, ...], np.dtype, tuple[int, ...]]:
    """(shape, dtype, chunks) of a zarr array; of a sharded one, its shards."""
    try:
        found = _open(path)
    except ConfigError:
        raise
    except Exception as error:  # zarr raises all sorts of things for what it cannot read
        raise ConfigError(
            f"{path} is a folder and no zarr array ({type(error).__name__}: {_first_line(error)}); "
            f"give the path of the array itself, which has a zarr.json or a .zarray; "
            f"td.create_array makes one"
        ) from None
    # the chunks within a shard are written together
    return found.shape, found.dtype, tuple(found.shards or found.chunks)


def create(path: str, form: StorageLayout, dtype: np.dtype) -> None:
    """Make the folder, without chunks yet; they are compressed by zstd and end in a crc32c."""
    zarr = _zarr()
    from zarr.codecs import Crc32cCodec, ZstdCodec

    zarr.create_array(
        path,
        shape=form.shape,
        dtype=dtype,
        chunks=form.grid,
        fill_value=0,
        compressors=[ZstdCodec(), Crc32cCodec()],
    )


def fill_with_zeros(path: str, form: StorageLayout) -> None:
    """Write every chunk: all of them are the same bytes, also those at the edges."""
    stored = _open(path, write=True)
    whole = tuple((0, n) for n in form.shape)
    first = overlap(_chunk(form, (0, 0)), whole)
    assert first is not None  # a matrix has elements
    stored[slices(first)] = 0
    source, *others = chunk_files(path, form, whole)
    with open(source, "rb") as file:
        chunk = file.read()
    for name in others:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(chunk)


def read(path: str, form: StorageLayout, region: Region, out: np.ndarray) -> int:
    """Bytes of the decoded chunks, once ``out`` holds the region."""
    stored, nbytes = _opened(path, form), 0
    from zarr.buffer.cpu import NDBuffer

    for at, part in _chunks(form, region):
        _check_there(path, stored, form, at)
        place = out[within(part, region)]
        with _decoding(path, stored, at):
            stored.get_basic_selection(slices(part), out=NDBuffer.from_numpy_array(place))
        nbytes += form.read_bytes(part)
    return nbytes


def write(path: str, form: StorageLayout, region: Region, block: np.ndarray) -> None:
    """None, once the chunks hold ``block`` there."""
    stored = _opened(path, form, write=True)
    for at, part in _chunks(form, region):
        if part != overlap(_chunk(form, at), tuple((0, n) for n in form.shape)):
            _check_there(path, stored, form, at)  # the rest of the chunk stays
        with _decoding(path, stored, at):
            stored[slices(part)] = block[within(part, region)]


def chunk_files(path: str, form: StorageLayout, region: Region) -> list[str]:
    """The files of the chunks that touch the region."""
    stored = _opened(path, form)
    return [_file(path, stored, at) for at, _ in _chunks(form, region)]


def _file(path: str, stored: Any, at: tuple[int, int]) -> str:
    return os.path.join(path, stored.metadata.encode_chunk_key(at))


def _check_there(path: str, stored: Any, form: StorageLayout, at: tuple[int, int]) -> None:
    if not os.path.exists(_file(path, stored, at)):
        raise ConfigError(
            f"{path} is {form.shape} in chunks of {form.chunks}, and chunk "
            f"{stored.metadata.encode_chunk_key(at)} is missing; write it again"
        )


@contextmanager
def _decoding(path: str, stored: Any, at: tuple[int, int]) -> Iterator[None]:
    """ConfigError for whatever a codec raises inside the block; what the disk says stays."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ConfigError(
            f"{path}: chunk {stored.metadata.encode_chunk_key(at)} is damaged: it does not decode "
            f"({type(error).__name__}: {_first_line(error)}); write the array again"
        ) from error


def _opened(path: str, form: StorageLayout, write: bool = False) -> Any:
    """The zarr array, if it still is what ``form`` says."""
    try:
        found = _open(path, write)
    except Exception as error:
        raise ConfigError(
            f"{path} is no zarr array any more ({type(error).__name__}: {_first_line(error)}); "
            f"write it again"
        ) from error
    now = found.shape, tuple(found.shards or found.chunks), found.dtype.itemsize
    if now != (form.shape, form.chunks, form.itemsize):
        raise ConfigError(
            f"{path} was opened as {form.shape} in chunks of {form.chunks}, and is now {now[0]} in "
            f"chunks of {now[1]}; td.open_array it again"
        )
    return found


def _open(path: str, write: bool = False) -> Any:
    zarr = _zarr()
    with zarr.config.set({"array.write_empty_chunks": True}):  # it is looked at on opening
        return zarr.open_array(path, mode="r+" if write else "r")


def _zarr() -> Any:
    """The package."""
    with needed_for("a zarr array"):
        import zarr
    return zarr


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else ""


def _chunks(form: StorageLayout, region: Region) -> Iterator[tuple[tuple[int, int], Region]]:
    """(indices of a chunk, the part of ``region`` in it), row by row."""
    rows, columns = (
        range(start // c, -(-stop // c)) for (start, stop), c in zip(region, form.grid, strict=True)
    )
    for at in product(rows, columns):
        if (part := overlap(_chunk(form, at), region)) is not None:
            yield at, part


def _chunk(form: StorageLayout, at: tuple[int, int]) -> Region:
    """Where a chunk lies, beyond the array's edges too."""
    return tuple((i * c, (i + 1) * c) for i, c in zip(at, form.grid, strict=True))
