"""Regions of zarr arrays: chunk by chunk, each there, checked and decoded into its place.

One chunk at a time: zarr itself reads many at once, and holds as many in memory. It also takes a
chunk that is not there for one of fill values; here that is damage. So whatever is written here is
written in full, chunks of zeros too.
"""

import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core.npy import rounded
from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan.products.regions import Region, overlap, slices, within
from tiledask.plan.products.streaming import read_bytes

__all__ = ["create", "files", "look", "read", "write"]


def look(path: str) -> tuple[tuple[int, ...], np.dtype, dict[str, tuple[int, ...]]]:
    """(shape, dtype, {"chunks": extents}) of a zarr array; of a sharded one its shards, whose
    chunks are written together."""
    found = _open(path)
    return found.shape, found.dtype, {"chunks": tuple(found.shards or found.chunks)}


def create(array: Any) -> None:
    """Make the folder, without chunks yet; they are compressed by zstd and end in a crc32c."""
    with needed_for("a zarr array"):
        import zarr
        from zarr.codecs import Crc32cCodec, ZstdCodec
    compressors = [ZstdCodec(), Crc32cCodec()]
    about = {"shape": array.shape, "dtype": array.dtype, "chunks": array.chunks, "fill_value": 0}
    zarr.create_array(array.path, **about, compressors=compressors)


def read(array: Any, region: Region, out: np.ndarray) -> int:
    """Bytes of the decoded chunks, once ``out`` holds the region of a StoredArray."""
    stored = _open(array.path)
    from zarr.buffer.cpu import NDBuffer

    for name, _, part in _chunks(array, stored, region):
        _check_there(array, name)
        place = NDBuffer.from_numpy_array(out[within(part, region)])
        _coded(array, name, stored.get_basic_selection, slices(part), out=place)
    return read_bytes(region, array.grid, array.dtype.itemsize)


def write(array: Any, region: Region, block: np.ndarray) -> None:
    """None, once the chunks of a StoredArray hold ``block`` there."""
    stored = _open(array.path, write=True)
    for name, chunk, part in _chunks(array, stored, region):
        if part != overlap(chunk, tuple((0, n) for n in array.shape)):
            _check_there(array, name)  # the rest of the chunk stays
        values = rounded(block[within(part, region)], array.dtype)
        _coded(array, name, stored.set_basic_selection, slices(part), values)


def files(array: Any, region: Region) -> list[str]:
    """What is on the disk of that region: chunks, and the folders that name them."""
    chunks = _chunks(array, _open(array.path), region)
    names = [os.path.join(array.path, name) for name, _, _ in chunks]
    return [*names, *{os.path.dirname(name) for name in names}, array.path]


def _chunks(array: Any, stored: Any, region: Region) -> Iterator[tuple[str, Region, Region]]:
    """(name of a chunk, where it lies, the part of ``region`` in it), row by row."""
    ends = zip(region, array.chunks, strict=True)
    for at in product(*(range(start // c, -(-stop // c)) for (start, stop), c in ends)):
        # beyond the array's edges too
        chunk = tuple((i * c, (i + 1) * c) for i, c in zip(at, array.chunks, strict=True))
        if (part := overlap(chunk, region)) is not None:
            yield stored.metadata.encode_chunk_key(at), chunk, part


def _check_there(array: Any, name: str) -> None:
    if not os.path.exists(os.path.join(array.path, name)):
        raise ConfigError(
            f"{array.path} is {array.shape} in chunks of {array.chunks}, and chunk {name} is "
            f"missing; write it again"
        )


def _coded(array: Any, name: str, call: Callable[..., Any], *args: Any, **more: Any) -> None:
    """Make the ``call`` for a chunk: ConfigError for what a codec raises; the disk's own stays."""
    try:
        call(*args, **more)
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ConfigError(
            f"{array.path}: chunk {name} is damaged: it does not decode ({_words(error)}); write "
            f"the array again"
        ) from error


def _open(path: str, write: bool = False) -> Any:
    with needed_for("a zarr array"):
        import zarr
    try:
        with zarr.config.set({"array.write_empty_chunks": True}):  # it is looked at on opening
            return zarr.open_array(path, mode="r+" if write else "r")
    except Exception as error:  # zarr raises all sorts of things for what it cannot read
        raise ConfigError(
            f"{path} is no zarr array ({_words(error)}); give the path of the array itself, which "
            f"has a zarr.json or a .zarray; td.create_array makes one"
        ) from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}".splitlines()[0]
