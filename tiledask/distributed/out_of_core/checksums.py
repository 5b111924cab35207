"""Checksums of parts of a matrix in a file, and those beside a .npy file, which has none itself.

    x.npy        header | elements
    x.npy.crc    {"shape": ..., "tiles": [[top, bottom, left, right, CRC-32], ...]}

A product leaves them for its result, `StoredArray.write_checksums` for any other file; writing to
the file removes them.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core.disk import reading, writing
from tiledask.distributed.out_of_core.stored_file import StoredFile
from tiledask.distributed.out_of_core.stored_npy import rounded
from tiledask.errors import ConfigError
from tiledask.plan.digests import crc_of
from tiledask.plan.products.regions import Region, overlap, region_size
from tiledask.plan.whole import is_whole

__all__ = ["Sums", "checksum", "forget", "keep", "kept", "lines"]

_SLAB = 2**20
"""Bytes of a tile, about, that are read or rounded at a time for its checksum."""
_MOST = 2**26
"""Bytes of a file of checksums, at most."""

Sums = tuple[tuple[Region, int], ...]
"""(part of the matrix, its checksum), which together are all of it."""


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
        check = crc_of(rounded(lines, array.dtype), check)
    return check


def lines(array: StoredFile) -> list[Region]:
    """Parts of a .npy file of whole lines, some MiB each."""
    along = int(array.order == "F")
    extent, other = array.shape[along], array.shape[1 - along]
    step = max(1, 16 * _SLAB // (other * array.dtype.itemsize))
    parts = [((i, min(extent, i + step)), (0, other)) for i in range(0, extent, step)]
    return [part if along == 0 else part[::-1] for part in parts]


def kept(array: StoredFile) -> Sums:
    """What is beside a .npy file; () if nothing is, ConfigError if it is not for this matrix."""
    path = Path(_beside(array))
    if not path.exists():
        return ()
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        with reading(path):
            said = json.loads(path.read_bytes())
        found = tuple(_tile(*each) for each in said["tiles"])
        if (said["shape"], said["dtype"]) != (list(array.shape), array.dtype.name):
            raise ValueError(f"they are of {said['shape']} {said['dtype']}")
        whole: Region = tuple((0, n) for n in array.shape)
        inside = all(overlap(region, whole) == region for region, _ in found)
        if not inside or sum(region_size(region) for region, _ in found) != region_size(whole):
            raise ValueError("its tiles are not the matrix")
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} has no checksums of {array.path}, {array.shape} {array.dtype} "
            f"({str(error)[:200]}); remove it, and check what it says otherwise"
        ) from None
    return found


def _tile(*numbers: Any) -> tuple[Region, int]:
    top, bottom, left, right, check = numbers
    if not all(is_whole(n, 0) for n in numbers):
        raise ValueError("a tile is five whole numbers")
    return ((top, bottom), (left, right)), check


def keep(array: StoredFile, sums: Sequence[tuple[Region, int]]) -> None:
    """None, once ``sums`` are beside a .npy file, all at once."""
    tiles = [[*rows, *columns, check] for (rows, columns), check in sums]
    said = {"shape": list(array.shape), "dtype": array.dtype.name, "tiles": tiles}
    path = _beside(array)
    with writing(path, lambda: len(tiles) * 64):
        Path(f"{path}.partial").write_text(json.dumps(said))
        os.replace(f"{path}.partial", path)


def forget(array: StoredFile) -> None:
    """None, once there are no checksums beside a .npy file."""
    if array.kind == "npy":
        with writing(_beside(array), lambda: 0):
            Path(_beside(array)).unlink(missing_ok=True)


def _beside(array: StoredFile) -> str:
    return f"{array.path}.crc"
