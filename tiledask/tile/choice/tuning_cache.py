"""The tiles that were measured as the fastest, in a JSON file under the user's cache folder.

    $TILEDASK_CACHE, or $XDG_CACHE_HOME/tiledask, or ~/.cache/tiledask
        tuned.json    device | kernel | type | sizes  ->  tile, seconds, when, of which product

A file that cannot be read, or that another user could have written, is said and ignored: the worst
that is lost is a measurement.
"""

import json
import os
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, KernelError, short
from tiledask.plan.data import LARGEST, read
from tiledask.tile.cache import cache_folder, read_own, write_whole
from tiledask.tile.cuda.hopper_tile import AnyTile, HopperTile, as_tile

__all__ = ["key_of", "recall", "remember", "remembered_file", "size_class"]


def remembered_file() -> Path:
    """Where tiles are remembered; the file need not exist."""
    return cache_folder() / "tuned.json"


def size_class(m: int, n: int, k: int) -> str:
    """The next powers of two: products of one class are taken to have one best tile.

    >>> size_class(1024, 1000, 1025)
    '1024x1024x2048'
    """
    return "x".join(str(1 << (extent - 1).bit_length()) for extent in (m, n, k))


def key_of(device: str, kernel: str, dtype: str, m: int, n: int, k: int) -> str:
    """The key under which a tile is remembered.

    >>> key_of("NVIDIA H200", "tiled", "float32", 100, 100, 100)
    'NVIDIA H200 | tiled | float32 | 128x128x128'
    """
    return " | ".join((device, kernel, dtype, size_class(m, n, k)))


def recall(key: str) -> tuple[AnyTile, dict[str, Any]] | None:
    """The tile remembered under ``key``, and all that was written with it; None if there is none.

    What cannot be read is a UserWarning.
    """
    entry = _entries().get(key)
    if entry is None:
        return None
    try:
        return as_tile(entry["tile"]), entry
    except (KernelError, KeyError, TypeError):
        _warn(f"the tile of {short(key)} is not one: {short(entry)}; measure it again")
        return None


def remember(key: str, tile: AnyTile, seconds: float, product: tuple[int, int, int]) -> Path | None:
    """Write ``tile`` under ``key``, for good or until the next; the file, or None if it cannot be.

    The file is replaced whole, so that a reader never sees a part of it; of two processes that
    write at one time, the later one's view of the others' tiles stays.
    """
    path = remembered_file()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    said = tile.name if isinstance(tile, HopperTile) else list(tile)
    entry = {"tile": said, "seconds": seconds, "product": list(product), "measured": now}
    text = json.dumps({"tiles": {**_entries(), key: entry}}, indent=1, ensure_ascii=False)
    try:
        os.makedirs(path.parent, 0o700, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        _warn(f"cannot be written: {error.strerror}; set TILEDASK_CACHE to a folder that can")
        return None
    return path


def _entries() -> dict[str, Any]:
    path = remembered_file()
    if not os.path.lexists(path):
        return {}
    try:
        read_own(path, LARGEST)
        entries = read(path).values.get("tiles")
    except (ConfigError, OSError) as error:
        _warn(f"is ignored, and replaced when a tile is next remembered ({error})")
        return {}
    if not isinstance(entries, dict):
        _warn("is ignored, and replaced when a tile is next remembered: it has no object 'tiles'")
        return {}
    return entries


def _warn(what: str) -> None:
    warnings.warn(f"{remembered_file()}: {what}", UserWarning, stacklevel=4)
