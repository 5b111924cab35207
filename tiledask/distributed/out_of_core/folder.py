"""A folder of files, on a disk or in a store that fsspec knows by URL; also a single file.

Names in it have "/". On a disk a file is written whole or not at all, and what is written stays;
a store puts an object whole or not at all, and has nothing to rename or to sync.
"""

import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from tiledask.distributed.out_of_core.disk import sync
from tiledask.errors import ConfigError

__all__ = ["Folder", "is_url", "located", "saying"]

_AT_ONCE = 500
"""Objects that are put at a time."""


def located(path: str | os.PathLike[str], options: Mapping[str, Any] | None) -> str:
    """``path``, absolute; or the URL that it is. What file:// names is a path."""
    name = os.fspath(path)
    if isinstance(path, PurePath) and re.match(r"[a-z][a-z0-9+.-]+:/", name):
        raise ConfigError(f"a URL is given as a string: pathlib has made {name} of it")
    if "://" not in name:
        place = os.path.abspath(name)
    elif "::" in name:
        raise ConfigError(
            f"{name} goes through several file systems, of which workers would have copies of "
            f"their own; give the URL of the array itself"
        )
    elif name.startswith(("file://", "local://")):
        place = os.path.abspath(name.partition("://")[2])
    else:
        place = name.rstrip("/")
        _check_url(place)
        return place
    if options:
        raise ConfigError(
            f"storage_options are what fsspec needs for a URL such as s3://bucket/a.zarr, and "
            f"{place} is a path; leave them out"
        )
    return place


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.password is not None:
        raise ConfigError(
            f"the URL on {parts.hostname} has a password in it, and URLs are printed and recorded; "
            f"give it in storage_options=, or in fsspec's own configuration"
        )
    if url.endswith(".npy"):
        raise ConfigError(
            f"{url}: .npy files are read and written in place, on a disk; copy it there (fsspec's "
            f"get_file), or store the matrix as zarr, whose chunks a URL can name: a.zarr"
        )
    if parts.scheme != "memory" and not parts.path.strip("/"):
        raise ConfigError(f"{url} is a whole bucket or host; give the URL of an array in it")


def is_url(place: str) -> bool:
    """Whether ``place``, which `located` returned, is a URL."""
    return "://" in place


@contextmanager
def saying(url: str, done: str) -> Iterator[None]:
    """ConfigError that names the URL, for whatever a store raises inside the block, but for what
    is not there, or already is. What a disk says stays."""
    try:
        yield
    except (ConfigError, FileNotFoundError, FileExistsError, IsADirectoryError):
        raise
    except Exception as refused:
        if not is_url(url):
            raise
        words = str(refused).splitlines()[0] if str(refused) else ""
        raise ConfigError(
            f"{url} cannot be {done} ({type(refused).__name__}: {words[:300]}); see that the store "
            f"can be reached, and that its credentials, from storage_options= or fsspec's own "
            f"configuration, may do that"
        ) from refused


class Folder:
    """A folder, or a single file, at a place that `located` returned; it need not be there yet.

    fsspec remembers what it listed; others write too, so here it is asked.
    """

    def __init__(self, place: str, options: Mapping[str, Any] | None = None) -> None:
        self.path, self._disk = place, not is_url(place)
        try:
            self.fs, self.root = url_to_fs(place, **(options or {}))
        except ImportError as error:
            raise ConfigError(
                f"{place} needs a package that is not installed: {error}; install it with pip, "
                f"here and wherever workers run"
            ) from error
        except Exception as error:
            raise ConfigError(
                f"fsspec cannot go to {place} ({type(error).__name__}: {error}); see its protocol, "
                f"and storage_options="
            ) from error

    def at(self, name: str) -> str:
        """Where the file ``name`` is; without one, the folder."""
        return f"{self.path}/{name}" if name else self.path

    def _object(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file; without a name, whether the folder is there."""
        with saying(self.at(name), "read"):
            self.fs.invalidate_cache()
            return bool(self.fs.exists(self._object(name)))

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        with saying(self.at(name), "read"), suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            return int(self.fs.size(self._object(name)) or 0)
        return 0

    def read(self, name: str) -> bytes:
        """A file's bytes; FileNotFoundError."""
        with saying(self.at(name), "read"):
            return bytes(self.fs.cat_file(self._object(name)))

    def files(self) -> Iterator[tuple[str, int | None]]:
        """(name, bytes) of all files in it and in the folders below; none if it is not there.

        None for the bytes where a store lists names alone.
        """
        for name, about in self._listed().items():
            yield name, about["size"]

    def state(self) -> dict[str, int]:
        """What changes when any of its files does; of a store's times and tags a checksum."""
        listed = sorted(self._listed().items())
        if self._disk:
            stats = [os.stat(about["name"]) for _, about in listed]
            return {
                "files": len(stats),
                "bytes": sum(stat.st_size for stat in stats),
                "mtime_ns": max((stat.st_mtime_ns for stat in stats), default=0),
            }
        said = [(name, sorted(about.items(), key=str)) for name, about in listed]
        return {
            "files": len(listed),
            "bytes": sum(about["size"] or 0 for _, about in listed),
            "listing crc32": zlib.crc32(repr(said).encode()),
        }

    def allocated(self) -> int:
        """Bytes that it takes on its disk; of a store, those of its objects."""
        listed = self._listed()
        if not self._disk:
            return sum(about["size"] or 0 for about in listed.values())
        return sum(os.stat(about["name"]).st_blocks * 512 for about in listed.values())

    def _listed(self) -> dict[str, dict[str, Any]]:
        """By name, what is said of every file."""
        with saying(self.path, "listed"), suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            found = self.fs.find(self.root, detail=True)
            return {name.removeprefix(f"{self.root}/"): about for name, about in found.items()}
        return {}

    def write(self, name: str, data: bytes) -> None:
        """None, once the file ``name`` is ``data``, and on a disk would survive a loss of power."""
        if not self._disk:
            with self._writing(name):
                self.fs.pipe_file(self._object(name), data)
            return
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
        """None, once the folder is there; a store has no empty ones."""
        if self._disk:
            os.makedirs(self.path, exist_ok=True)

    def fill(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Makes the folder, with all ``files``, the last of them at the end; or not at all."""
        if self._disk:
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
            return
        *others, (last, data) = files
        try:
            with self._writing():
                for i in range(0, len(others), _AT_ONCE):
                    some = {self._object(name): data for name, data in others[i : i + _AT_ONCE]}
                    self.fs.pipe(some)
            self.write(last, data)
        except BaseException:
            with suppress(Exception):
                self.clear()
            raise

    def remove(self, *names: str) -> None:
        """None, once there are no such files."""
        for name in names:
            with self._writing(name), suppress(FileNotFoundError):
                self.fs.rm_file(self._object(name))

    def clear(self) -> None:
        """None, once the folder is gone, with all in it."""
        if self.exists():
            with self._writing(), suppress(FileNotFoundError):
                self.fs.rm(self.root, recursive=True)

    @contextmanager
    def _writing(self, name: str = "") -> Iterator[None]:
        try:
            with saying(self.at(name), "written"):
                yield
        except FileNotFoundError as error:
            if self._disk:
                raise
            raise ConfigError(
                f"{self.at(name)} cannot be written: there is no such bucket ({error}); make it, "
                f"or name another"
            ) from error
