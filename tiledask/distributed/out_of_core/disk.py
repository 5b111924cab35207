"""What a disk refuses, in words: it is full, and by how much; a file cannot be written or read."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes

__all__ = ["free", "reading", "sync", "writing"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(
    path: str | os.PathLike[str], needs: Callable[[], int], error: type[Exception] = ConfigError
) -> Iterator[None]:
    """An ``error`` that names the file, where the disk refuses what is written inside the block.

    ``needs``: bytes that are wanted on the disk; it is asked only where there is no room.
    """
    try:
        yield
    except OSError as refused:
        why = f"{refused.strerror or refused}; see who may write there"
        # of an array that had no room NumPy says how much was "requested and written", and no more
        if refused.errno in _FULL or (refused.errno is None and "requested and" in str(refused)):
            why = (
                f"its disk is full: {format_bytes(needs())} more are needed, "
                f"{format_bytes(free(path))} are free; make room and do the same again"
            )
        raise error(f"{os.fspath(path)} cannot be written: {why}") from refused


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """ConfigError that names the file, where the system cannot read it inside the block."""
    try:
        yield
    except OSError as refused:
        raise ConfigError(
            f"{os.fspath(path)} cannot be read: {refused.strerror or refused}; see that it is "
            f"there, whole and yours to read, or write it again"
        ) from refused


def free(path: str | os.PathLike[str]) -> int:
    """Free bytes on the disk where ``path`` is, or would be."""
    there = Path(os.path.abspath(path))
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def sync(path: str) -> None:
    """None, once the file or folder is on its disk as it is now."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
