"""Regions of zarr arrays: chunk by chunk, each there, checked and decoded into its place.

One chunk at a time: zarr itself reads many at once, and holds as many in memory. It also takes a
chunk that is not there for one of fill values; here that is damage. So whatever is written here is
written in full, chunks of zeros too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core.disk import sync
from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan.products.regions import Region, slices

__all__ = ["create", "look", "read", "write"]


def create(array: Any) -> None:
    """Make the folder in place of any, without chunks yet; they are compressed, with checksums."""
    with needed_for("a zarr array"):
        import zarr
        from zarr.codecs import ZstdCodec
    about = {"shape": array.shape, "dtype": array.dtype, "chunks": array.chunks, "fill_value": 0}
    zarr.create_array(array.path, **about, compressors=ZstdCodec(checksum=True), overwrite=True)


def look(path: str) -> Any:
    """The array, opened for what its header says."""
    with _opened(path, "is no zarr array, which has a zarr.json or a .zarray") as found:
        return found


def read(array: Any, region: Region, out: np.ndarray) -> None:
    """None, once ``out`` holds the region of a StoredArray."""
    with _opened(array.path) as stored:
        from zarr.buffer.cpu import NDBuffer

        stored.get_basic_selection(slices(region), out=NDBuffer.from_numpy_array(out))


def write(array: Any, region: Region, block: np.ndarray, durable: bool) -> None:
    """None, once the chunks of a StoredArray hold ``block`` there; if ``durable`` on the disk."""
    with _opened(array.path, mode="r+", durable=durable) as stored:
        stored.set_basic_selection(slices(region), np.ascontiguousarray(block, array.dtype))


@contextmanager
def _opened(
    path: str, fault: str = "is damaged", mode: str = "r", durable: bool = False
) -> Iterator[Any]:
    """The zarr array, of which one chunk at a time is read or written; ConfigError for all that
    zarr raises inside, but for what the disk says."""
    with needed_for("a zarr array"):
        import zarr
        from zarr.storage import LocalStore, WrapperStore

    class Chunks(WrapperStore):  # type: ignore[misc]
        async def get(self, key: str, *how: Any, **more: Any) -> Any:
            found = await super().get(key, *how, **more)
            if found is None and mode == "r" and "z" not in key:  # only names of headers have a z
                raise ConfigError(f"{path}/{key}, a chunk, is missing; write the array again")
            return found

        async def set(self, key: str, value: Any) -> None:
            await super().set(key, value)
            file = os.path.join(path, key)
            for name in (file, os.path.dirname(file), path) if durable else ():
                sync(name)

    # others read and write past `get` and `set`
    pipeline = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
    config = zarr.config.set({"array.write_empty_chunks": True, "async.concurrency": 1} | pipeline)
    try:
        with config:
            yield zarr.open_array(Chunks(LocalStore(path)), mode=mode)
    except Exception as error:
        if isinstance(error, ConfigError) or (isinstance(error, OSError) and error.errno):
            raise
        words = f"{type(error).__name__}: {str(error)[:300]}".splitlines()[0]
        raise ConfigError(f"{path} {fault} ({words}); write it again") from error
