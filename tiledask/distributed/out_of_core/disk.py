"""What a disk refuses, in words: which file cannot be written or read, on which host, and why."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from platform import node

from tiledask.errors import ConfigError

__all__ = ["on_disk", "sync"]


@contextmanager
def on_disk(
    path: str | os.PathLike[str], error: type[Exception] = ConfigError, doing: str = "written"
) -> Iterator[None]:
    """An ``error`` that names the file, where the disk refuses what is done inside the block."""
    try:
        yield
    except OSError as refused:
        words = f"{os.fspath(path)} cannot be {doing} on {node()}: {refused.strerror or refused}"
        raise error(f"{words}; see that there is room, and who may do that") from refused


def sync(path: str | os.PathLike[str]) -> None:
    """None, once the file or folder is on its disk as it is now."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
