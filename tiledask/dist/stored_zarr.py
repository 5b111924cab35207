"""Regions of zarr arrays: chunk by chunk, each decoded into its place.

One chunk at a time: zarr itself reads many at once, and holds as many in memory.
"""

import os
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from tiledask.dist.stored_npy import rounded
from tiledask.plan.products.placement import Region

if TYPE_CHECKING:
    from tiledask.dist.stored import StoredArray

__all__ = ["chunk_files", "create", "look", "read", "write"]


def look(path: str) -> tuple[tuple[int, ...], np.dtype, tuple[int, ...]]:
    """(shape, dtype, chunks) of a zarr array of format 2 or 3; of a sharded one, its shards.

    Raises whatever zarr raises for a folder that is none.
    """
    import zarr

    found = zarr.open_array(path, mode="r")
    # the chunks within a shard are written together
    return found.shape, found.dtype, tuple(found.shards or found.chunks)


def create(array: "StoredArray") -> None:
    """Makes the folder, for an array of zeros."""
    import zarr

    zarr.create_array(
        array.path, shape=array.shape, dtype=array.dtype, chunks=array.chunks, fill_value=0
    )


def read(array: "StoredArray", region: Region, out: np.ndarray) -> int:
    """Bytes of the decoded chunks, once ``out`` holds the region."""
    import zarr
    from zarr.buffer.cpu import NDBuffer

    stored, read = zarr.open_array(array.path, mode="r"), 0
    for _, part in _chunks(array, region):
        place = out[_within(part, region)]
        stored.get_basic_selection(tuple(slice(*span) for span in part), out=NDBuffer(place))
        read += array.form.read_bytes(part)
    return read


def write(array: "StoredArray", region: Region, block: np.ndarray) -> None:
    """None, once the chunks hold ``block`` there."""
    import zarr

    stored = zarr.open_array(array.path, mode="r+")
    for _, part in _chunks(array, region):
        chunk = rounded(block[_within(part, region)], array.dtype)
        stored[tuple(slice(*span) for span in part)] = chunk


def chunk_files(array: "StoredArray", region: Region) -> Iterator[str]:
    """The files of the chunks that touch the region; those that are all zeros have none."""
    import zarr

    metadata = zarr.open_array(array.path, mode="r").metadata
    for at, _ in _chunks(array, region):
        yield os.path.join(array.path, metadata.encode_chunk_key(at))


def _chunks(array: "StoredArray", region: Region) -> Iterator[tuple[tuple[int, int], Region]]:
    """(indices of a chunk, the part of ``region`` in it), row by row."""
    spans = [
        range(start // c, -(-stop // c))
        for (start, stop), c in zip(region, array.chunks, strict=True)
    ]
    for at in product(*spans):
        part = zip(at, array.chunks, region, strict=True)
        yield at, tuple((max(a, i * c), min(b, (i + 1) * c)) for i, c, (a, b) in part)


def _within(part: Region, whole: Region) -> tuple[slice, ...]:
    return tuple(
        slice(a - origin, b - origin) for (a, b), (origin, _) in zip(part, whole, strict=True)
    )
