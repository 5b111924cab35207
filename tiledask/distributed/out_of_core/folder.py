"""A folder of files, by its path on a disk here; one by its URL is in by_url.py, and has the same.

Names in it have "/". A file is written whole or not at all, and what is written stays.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tiledask.distributed.out_of_core.disk import sync

__all__ = ["Folder"]


class Folder:
    """A folder on a disk, or a single file, which need not be there yet."""

    def __init__(self, path: str) -> None:
        self.path = path

    def at(self, name: str) -> str:
        """Where the file ``name`` is; without one, the folder."""
        return os.path.join(self.path, name) if name else self.path

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file; without a name, whether the folder is there."""
        return os.path.exists(self.at(name))

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        return os.path.getsize(self.at(name)) if self.exists(name) else 0

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """A file's bytes, or those from ``start`` to ``stop``; FileNotFoundError."""
        with open(self.at(name), "rb") as file:
            file.seek(start or 0)
            return file.read() if stop is None else file.read(stop - (start or 0))

    def files(self) -> Iterator[tuple[str, int | None]]:
        """(name, bytes) of all files in it and in the folders below; none if it is not there.

        None for the bytes where a store lists names alone.
        """
        for name, stat in self._stats(""):
            yield name, stat.st_size

    def state(self) -> dict[str, int]:
        """What changes when any of its files does."""
        stats = [stat for _, stat in self._stats("")]
        return {
            "files": len(stats),
            "bytes": sum(stat.st_size for stat in stats),
            "mtime_ns": max((stat.st_mtime_ns for stat in stats), default=0),
        }

    def allocated(self) -> int:
        """Bytes that it takes on its disk."""
        return sum(stat.st_blocks * 512 for _, stat in self._stats(""))

    def _stats(self, below: str) -> Iterator[tuple[str, os.stat_result]]:
        """(name, what the system says of it) of every file."""
        place = self.at(below)
        if not os.path.isdir(place):
            if os.path.exists(place):
                yield below, os.stat(place)
            return
        with os.scandir(place) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                if entry.is_dir():
                    yield from self._stats(name)
                else:
                    yield name, entry.stat()

    def write(self, name: str, data: bytes) -> None:
        """None, once the file ``name`` is ``data`` and would survive a loss of power."""
        partial = self.at(f"{name}.{os.getpid()}.partial")
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.at(name))
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise
        sync(self.path)

    def make(self) -> None:
        """None, once the folder is there."""
        os.makedirs(self.path, exist_ok=True)

    def fill(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Makes the folder, with all ``files`` at once, or not at all."""
        partial = f"{self.path}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            for name, data in files:
                file = Path(partial, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            os.rename(partial, self.path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def remove(self, *names: str) -> None:
        """None, once there are no such files."""
        for name in names:
            Path(self.at(name)).unlink(missing_ok=True)

    def clear(self) -> None:
        """None, once the folder is gone, with all in it."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)
