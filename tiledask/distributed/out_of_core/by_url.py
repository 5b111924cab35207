"""A folder in a store that fsspec reaches by URL, such as s3://bucket/a.zarr.

An object is put whole or not at all; there is nothing to rename, to sync or to lock.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from tiledask.distributed.out_of_core.folder import Folder
from tiledask.errors import ConfigError

__all__ = ["UrlFolder", "saying"]

_AT_ONCE = 500
"""Objects that are put at a time."""


@contextmanager
def saying(url: str, done: str) -> Iterator[None]:
    """ConfigError that names the URL, for whatever a store raises inside the block, but for what
    is not there, or already is."""
    try:
        yield
    except (ConfigError, FileNotFoundError, FileExistsError, IsADirectoryError):
        raise
    except Exception as refused:
        words = str(refused).splitlines()[0] if str(refused) else ""
        raise ConfigError(
            f"{url} cannot be {done} ({type(refused).__name__}: {words[:300]}); see that the store "
            f"can be reached, and that its credentials, from storage_options= or fsspec's own "
            f"configuration, may do that"
        ) from refused


class UrlFolder(Folder):
    """A folder by URL. fsspec remembers what it listed; others write too, so here it is asked."""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        super().__init__(url)
        try:
            self.fs, self.root = url_to_fs(url, **(options or {}))
        except ImportError as error:
            raise ConfigError(
                f"{url} needs a package that is not installed: {error}; install it with pip, here "
                f"and wherever workers run"
            ) from error
        except Exception as error:
            raise ConfigError(
                f"fsspec cannot go to {url} ({type(error).__name__}: {error}); see its protocol, "
                f"and storage_options="
            ) from error

    def at(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    def _object(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        with saying(self.at(name), "read"):
            self.fs.invalidate_cache()
            return bool(self.fs.exists(self._object(name)))

    def size(self, name: str) -> int:
        with saying(self.at(name), "read"), suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            return int(self.fs.size(self._object(name)) or 0)
        return 0

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        with saying(self.at(name), "read"):
            return bytes(self.fs.cat_file(self._object(name), start=start, end=stop))

    def files(self) -> Iterator[tuple[str, int | None]]:
        for name, about in self._listed().items():
            yield name, about["size"]

    def state(self) -> dict[str, int]:
        """What changes when any of its objects does; of times and tags a checksum."""
        listed = sorted(self._listed().items())
        said = [(name, sorted(about.items(), key=str)) for name, about in listed]
        return {
            "files": len(listed),
            "bytes": sum(about["size"] or 0 for _, about in listed),
            "listing crc32": zlib.crc32(repr(said).encode()),
        }

    def allocated(self) -> int:
        return self.state()["bytes"]

    def _listed(self) -> dict[str, dict[str, Any]]:
        """By name, what the store says of every object."""
        with saying(self.path, "listed"), suppress(FileNotFoundError):
            self.fs.invalidate_cache()
            found = self.fs.find(self.root, detail=True)
            return {name.removeprefix(f"{self.root}/"): about for name, about in found.items()}
        return {}

    def write(self, name: str, data: bytes) -> None:
        with self._writing(name):
            self.fs.pipe_file(self._object(name), data)

    def make(self) -> None:
        """Nothing: a store has no empty folders."""

    def fill(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Puts all ``files``, the last of them at the end; if that fails, the folder is cleared."""
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
        for name in names:
            with self._writing(name), suppress(FileNotFoundError):
                self.fs.rm_file(self._object(name))

    def clear(self) -> None:
        if self.exists():
            with self._writing(), suppress(FileNotFoundError):
                self.fs.rm(self.root, recursive=True)

    @contextmanager
    def _writing(self, name: str = "") -> Iterator[None]:
        try:
            with saying(self.at(name), "written"):
                yield
        except FileNotFoundError as error:  # of a bucket
            raise ConfigError(
                f"{self.at(name)} cannot be written: there is no such bucket ({error}); make it, "
                f"or name another"
            ) from error
