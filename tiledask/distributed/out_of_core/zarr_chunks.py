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

from tiledask.distributed.out_of_core.disk import sync
from tiledask.distributed.out_of_core.npy import rounded
from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan.products.regions import Region, slices

__all__ = ["create", "look", "read", "write"]


def create(array: Any) -> None:
    """Make the folder, without chunks yet; they are compressed by zstd, with checksums."""
    with needed_for("a zarr array"):
        import zarr
        from zarr.codecs import ZstdCodec
    about = {"shape": array.shape, "dtype": array.dtype, "chunks": array.chunks, "fill_value": 0}
    zarr.create_array(array.path, **about, compressors=ZstdCodec(checksum=True))


def look(path: str) -> Any:
    """The array, opened for what its header says."""
    with _opened(path, "is no zarr array, which has a zarr.json or a .zarray") as found:
        return found


def read(array: Any, region: Region, out: np.ndarray) -> None:
    """None, once ``out`` holds the region of a StoredArray."""
    with _opened(array.path) as stored:
        from zarr.buffer.cpu import NDBuffer

        _check_there(_files(array, stored, region))
        stored.get_basic_selection(slices(region), out=NDBuffer.from_numpy_array(out))


def write(array: Any, region: Region, block: np.ndarray, durable: bool) -> None:
    """None, once the chunks of a StoredArray hold ``block`` there; if ``durable`` on the disk."""
    with _opened(array.path, mode="r+") as stored:
        files = _files(array, stored, region)
        sides = zip(region, array.chunks, array.shape, strict=True)
        if not all(a % c == 0 and (b % c == 0 or b == n) for (a, b), c, n in sides):
            _check_there(files)  # the rest of a chunk stays
        stored.set_basic_selection(slices(region), rounded(block, array.dtype))
        if durable:
            for name in [*files, *{os.path.dirname(file) for file in files}, array.path]:
                sync(name)


def _files(array: Any, stored: Any, region: Region) -> list[str]:
    """Those of the chunks that a region touches."""
    ends = [
        (a // c, -(-b // c) if b > a else 0) for (a, b), c in zip(region, array.chunks, strict=True)
    ]
    keys = map(stored.metadata.encode_chunk_key, product(*(range(*each) for each in ends)))
    return [os.path.join(array.path, key) for key in keys]


def _check_there(files: list[str]) -> None:
    if gone := [file for file in files if not os.path.exists(file)]:
        raise ConfigError(f"{gone[0]}, a chunk, is missing; write the array again")


@contextmanager
def _opened(path: str, fault: str = "is damaged", mode: str = "r") -> Iterator[Any]:
    """The zarr array, of which one chunk at a time is read or written; ConfigError for all that
    zarr raises inside, but for what the disk says."""
    with needed_for("a zarr array"):
        import zarr
    config = zarr.config.set({"array.write_empty_chunks": True, "async.concurrency": 1})
    try:
        with config:
            yield zarr.open_array(path, mode=mode)
    except Exception as error:
        if isinstance(error, ConfigError) or (isinstance(error, OSError) and error.errno):
            raise
        words = f"{type(error).__name__}: {str(error)[:300]}".splitlines()[0]
        raise ConfigError(f"{path} {fault} ({words}); write it again") from error
