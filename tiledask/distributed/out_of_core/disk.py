"""What a disk refuses, in words: it is full, and by how much; a file cannot be written or read."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes

__all__ = ["on_disk", "sync"]


@contextmanager
def on_disk(
    path: str | os.PathLike[str],
    needs: int | None = None,
    error: type[Exception] = ConfigError,
) -> Iterator[None]:
    """An ``error`` that names the file, where the disk refuses what is done inside the block:
    ``needs`` bytes are written to it, or if None it is read."""
    try:
        yield
    except OSError as refused:
        done = "read" if needs is None else "written"
        why = f"{refused.strerror or refused}; see that it is there, and who may do that"
        # of an array that had no room NumPy says how much was "requested and written", and no more
        unnamed = refused.errno is None and "requested and" in str(refused)
        if needs is not None and (unnamed or refused.errno in (errno.ENOSPC, errno.EDQUOT)):
            place = Path(os.path.abspath(path))
            free = shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free
            why = (
                f"its disk is full: {format_bytes(needs)} more are needed, {format_bytes(free)} "
                f"are free; make room and do the same again"
            )
        raise error(f"{os.fspath(path)} cannot be {done}: {why}") from refused


def sync(path: str) -> None:
    """None, once the file or folder is on its disk as it is now."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
