"""Regions of zarr arrays: chunk by chunk, each there, checked and decoded into its place.

One chunk at a time: zarr itself reads many at once, and holds as many in memory. It also takes a
chunk that is not there for one of fill values; here that is a damage, unless the array was opened
with ``missing="fill"``. So whatever is written here is written in full, chunks of zeros too.
"""

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core.folder import Folder, is_url
from tiledask.distributed.out_of_core.stored_file import StoredFile
from tiledask.distributed.out_of_core.stored_npy import rounded
from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan.products.regions import Region, overlap, slices, within

__all__ = ["chunk_files", "create", "look", "read", "survey", "write"]

_CHECKED = ("crc32c", "crc32", "adler32", "fletcher32", "gzip", "zlib")
"""Codecs that fail where a chunk is not what was stored; zstd too, if its checksum is on."""
_PLAIN = ("bytes", "transpose", "crc32c")
"""Codecs after which a chunk of some shape has one size, 4 bytes more for each crc32c."""
_HEADER = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
_CHUNK = re.compile(r"(c[/.])?\d+[/.]\d+")


def look(
    path: str, options: Mapping[str, Any] | None = None
) -> tuple[tuple[int, ...], np.dtype, tuple[int, ...], str]:
    """(shape, dtype, chunks, checksum of each) of a zarr array; of a sharded one, its shards.

    Raises whatever zarr raises for a folder that is none, and ValueError for a header that is not
    what `create` wrote, if it was `create` that wrote it.
    """
    found = _open(path, options)
    if found.metadata.zarr_format == 3:
        said = json.loads(Folder(path, options).read("zarr.json"))
        checksum = (said.get("attributes") or {}).get("tiledask", {}).get("header crc32")
        if checksum is not None and checksum != _checksum(said):
            raise ValueError(
                f"its zarr.json has the checksum {_checksum(said)} and was written with "
                f"{checksum}; if it was you who changed it, remove its attribute 'tiledask'"
            )
    codecs = _codecs(found.metadata)
    checks = [name for name, about in codecs if name in _CHECKED or about.get("checksum") is True]
    # the chunks within a shard are written together
    chunks = tuple(found.shards or found.chunks)
    return found.shape, found.dtype, chunks, checks[-1] if checks else ""


def survey(array: StoredFile, unfinished: bool) -> None:
    """None; ConfigError if files of chunks are missing, are too many, or have an impossible size.

    ``unfinished``: chunks may be missing yet, and torn ones are going to be written again.
    """
    metadata, grid = _metadata(array), _grid(array)
    # not the other way round: a damaged header may promise more chunks than can be listed
    found = {name: size for name, size in array.folder.files() if _CHUNK.fullmatch(name)}
    held = {}
    for name in found:
        at = tuple(map(int, re.findall(r"\d+", name)))
        inside = all(i < n for i, n in zip(at, grid, strict=True))
        if inside and metadata.encode_chunk_key(at) == name:
            held[at] = name
    count = prod(grid)
    if len(held) < count and array.missing == "refuse" and not unfinished:
        places = (divmod(i, grid[1]) for i in range(count))  # np.ndindex makes them all at once
        first = next(at for at in places if at not in held)
        raise _missing(
            array,
            f"of {count} chunks {count - len(held)}, such as {metadata.encode_chunk_key(first)},",
        )
    if more := sorted(found.keys() - held.values()):
        raise ConfigError(
            f"{array.path} says that it is {array.shape} in chunks of {array.chunks}, which are "
            f"{count}, and has {len(more)} more, {more[0]} for one; its header is damaged, or "
            f"those are another array's: write it again, or remove them"
        )
    codecs = [name for name, _ in _codecs(metadata)]
    if not unfinished and all(name in _PLAIN for name in codecs):
        size = prod(array.form.grid) * array.dtype.itemsize + 4 * codecs.count("crc32c")
        for name, there in sorted(found.items()):
            if there not in (size, None):
                raise ConfigError(
                    f"{array.path}: chunk {name} has {there} bytes, one of {array.chunks} "
                    f"{array.dtype} has {size}; it is damaged: write the array again"
                )


def create(array: StoredFile, zeros: bool) -> None:
    """Makes the folder all at once, with chunks of zeros, or without any yet.

    Chunks are compressed by zstd and end in a crc32c, and the header has a checksum too.
    """
    zarr = _zarr()
    from zarr.codecs import Crc32cCodec, ZstdCodec

    held: dict[str, Any] = {}
    with zarr.config.set({"array.write_empty_chunks": True}):
        blank = zarr.create_array(
            held,
            shape=array.shape,
            dtype=array.dtype,
            chunks=array.form.grid,
            fill_value=0,
            compressors=[ZstdCodec(), Crc32cCodec()],
        )
    said = json.loads(held.pop("zarr.json").to_bytes())
    said["attributes"] = {"tiledask": {"header crc32": _checksum(said)}}

    def files() -> Iterator[tuple[str, bytes]]:
        if zeros:  # all chunks are the same bytes, also those at the edges
            rows, columns = array.form.grid
            blank[:rows, :columns] = 0
            (chunk,) = (each.to_bytes() for each in held.values())
            for at in np.ndindex(*_grid(array)):
                yield blank.metadata.encode_chunk_key(at), chunk
        yield "zarr.json", json.dumps(said, indent=2).encode()

    array.folder.fill(files())


def read(array: StoredFile, region: Region, out: np.ndarray) -> int:
    """Bytes of the decoded chunks, once ``out`` holds the region."""
    stored, read = _opened(array), 0
    from zarr.buffer.cpu import NDBuffer

    check = _check_of(array, stored.metadata)
    for at, part in _chunks(array, region):
        check(at, part)
        place = out[within(part, region)]
        with _decoding(array, stored.metadata.encode_chunk_key(at)):
            stored.get_basic_selection(slices(part), out=NDBuffer.from_numpy_array(place))
        read += array.form.read_bytes(part)
    return read


def write(array: StoredFile, region: Region, block: np.ndarray) -> None:
    """None, once the chunks hold ``block`` there."""
    stored = _opened(array, write=True)
    check = _check_of(array, stored.metadata)
    for at, part in _chunks(array, region):
        whole = overlap(_chunk(array, at), tuple((0, n) for n in array.shape))
        assert whole is not None  # the chunk begins within the array
        if part != whole:  # the rest of the chunk stays
            check(at, whole)
        chunk = rounded(block[within(part, region)], array.dtype)
        with _decoding(array, stored.metadata.encode_chunk_key(at)):
            stored[slices(part)] = chunk


def chunk_files(array: StoredFile, region: Region) -> Iterator[str]:
    """The files of the chunks that touch the region."""
    metadata = _metadata(array)
    for at, _ in _chunks(array, region):
        yield os.path.join(array.path, metadata.encode_chunk_key(at))


# -- what is there -------------------------------------------------------------------------------


def _check_of(array: StoredFile, metadata: Any) -> Callable[[tuple[int, int], Region], None]:
    """A function of (chunk, part of the array in it): ConfigError if some of that is not stored."""
    if array.missing == "fill" or is_url(array.path):  # a store says so itself
        return lambda at, part: None

    def check(at: tuple[int, int], part: Region) -> None:
        name = metadata.encode_chunk_key(at)
        if not array.folder.exists(name):
            raise _missing(array, f"chunk {name}")

    return check


def _missing(array: StoredFile, what: str) -> ConfigError:
    return ConfigError(
        f"{array.path} is {array.shape} in chunks of {array.chunks}, and {what} is missing; write "
        f"it again, or, of a sparse array, whose missing chunks are its fill value, open it by "
        f'td.open_array(path, missing="fill")'
    )


@contextmanager
def _decoding(array: StoredFile, name: str) -> Iterator[None]:
    """ConfigError for whatever a codec raises inside the block; what disk or store say stays."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        size = array.folder.size(name)
        whole = prod(array.form.grid) * array.dtype.itemsize
        words = str(error).splitlines()[0] if str(error) else ""
        raise ConfigError(
            f"{array.path}: chunk {name} is damaged: its {size} bytes do not decode to the {whole} "
            f"of {array.chunks} {array.dtype} ({type(error).__name__}: {words[:200]}); write the "
            f"array again"
        ) from error


def _opened(array: StoredFile, write: bool = False) -> Any:
    """The zarr array, if it still is what ``array`` says."""
    try:
        found = _open(array.path, array.storage_options, array, write)
        now = found.shape, found.dtype, tuple(found.shards or found.chunks)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{array.path} is no zarr array any more ({type(error).__name__}: "
            f"{str(error)[:200]}); write it again"
        ) from error
    if now != (array.shape, array.dtype, array.chunks):
        raise ConfigError(
            f"{array.path} was opened as {array.shape} {array.dtype} in chunks of {array.chunks}, "
            f"and is now {now[0]} {now[1]} in {now[2]}; td.open_array it again"
        )
    return found


def _zarr() -> Any:
    """The package."""
    with needed_for("a zarr array"):
        import zarr
    return zarr


def _open(
    path: str,
    options: Mapping[str, Any] | None,
    array: StoredFile | None = None,
    write: bool = False,
) -> Any:
    """What zarr says is at ``path``. By URL, chunks of ``array`` that are missing say so."""
    zarr = _zarr()
    store: Any = path
    if is_url(path):
        from tiledask.distributed.out_of_core.zarr_store import zarr_store

        def absent(name: str) -> ConfigError | None:
            if array is None or array.missing == "fill" or not _CHUNK.fullmatch(name):
                return None
            return _missing(array, f"chunk {name}")

        store = zarr_store(path, options, absent, read_only=not write)
    if not write:
        return zarr.open_array(store, mode="r")
    with zarr.config.set({"array.write_empty_chunks": True}):  # it is looked at on opening
        return zarr.open_array(store, mode="r+")


def _metadata(array: StoredFile) -> Any:
    return _opened(array).metadata


def _codecs(metadata: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, configuration) of every codec, those within shards too."""
    about = metadata.to_dict()
    if metadata.zarr_format == 2:
        given = [*(about.get("filters") or ()), about.get("compressor")]
        dicts = [each.get_config() if hasattr(each, "get_config") else each for each in given]
        return [("bytes", {}), *((each["id"], dict(each)) for each in dicts if each)]
    found = []
    for each in about["codecs"]:
        name, how = each["name"].removeprefix("numcodecs."), dict(each.get("configuration") or {})
        found.append((name, how))
        if name == "sharding_indexed":
            found += [
                (inner["name"].removeprefix("numcodecs."), dict(inner.get("configuration") or {}))
                for inner in how["codecs"]
            ]
    return found


def _checksum(header: dict[str, Any]) -> int:
    """CRC-32 of what a zarr.json says of the elements."""
    about = {key: header.get(key) for key in _HEADER}
    return zlib.crc32(json.dumps(about, sort_keys=True, separators=(",", ":")).encode())


# -- which chunks --------------------------------------------------------------------------------


def _grid(array: StoredFile) -> tuple[int, ...]:
    """Chunks down and across."""
    return tuple(-(-n // c) for n, c in zip(array.shape, array.form.grid, strict=True))


def _chunks(array: StoredFile, region: Region) -> Iterator[tuple[tuple[int, int], Region]]:
    """(indices of a chunk, the part of ``region`` in it), row by row."""
    rows, columns = (
        range(start // c, -(-stop // c))
        for (start, stop), c in zip(region, array.form.grid, strict=True)
    )
    for at in product(rows, columns):
        if (part := overlap(_chunk(array, at), region)) is not None:
            yield at, part


def _chunk(array: StoredFile, at: tuple[int, int]) -> Region:
    """Where a chunk lies, beyond the array's edges too."""
    return tuple((i * c, (i + 1) * c) for i, c in zip(at, array.form.grid, strict=True))
