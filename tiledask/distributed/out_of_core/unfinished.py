"""What an unfinished product remembers, in a folder beside its result: ``<result>.tiledask/``

    plan.json              the operands, the cuts and the kernel: what the sums depend on
    tile-3072-0.json       the tile at that row and column is finished, and its checksum
    client.lock            held, as long as it lives, by the process that works on it

Beside a result that is named by its URL it is objects in the same store, without the lock.

A record says less than the result holds and never more: a tile is on the disk before its record
is. One that changed since does not have its checksum, and is computed again.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tiledask.distributed.out_of_core.disk import opened, writing
from tiledask.distributed.out_of_core.folder import Folder, is_url
from tiledask.errors import ConfigError, short
from tiledask.plan.products.regions import Region
from tiledask.plan.whole import is_whole

__all__ = ["StreamRecords", "differences"]

_BLOCK = 4096
"""Bytes on the disk, about, of a record."""


@dataclass(frozen=True)
class StreamRecords:
    """The folder. Values are written whole or not at all."""

    folder: str
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    """storage_options of a folder by URL."""

    @property
    def exist(self) -> bool:
        """Whether a product was begun and not finished."""
        return self._files.exists("plan.json")

    def plan(self) -> dict[str, Any]:
        """What `begin` was given; ConfigError if it is damaged."""
        return self._read("plan.json")

    def begin(self, plan: Mapping[str, Any]) -> None:
        """None, once ``plan`` is recorded; records of any earlier plan are gone."""
        self.forget()
        self._write("plan.json", plan)

    def forget(self) -> None:
        """Remove all that is recorded; first what says that there is anything."""
        self._files.remove("plan.json")
        self._files.remove(*self._names("tile-"))

    def tile(self, region: Region) -> int | None:
        """The checksum of the tile at ``region``, if it is finished; ConfigError if the record is
        damaged."""
        name = _name(region)
        try:
            value = self._read(name)
        except FileNotFoundError:
            return None
        here = [list(span) for span in region]
        if value.get("region") != here or not is_whole(value.get("check"), 0):
            raise self._damaged(name, f"it says {short(value)}, for the tile {region}")
        return int(value["check"])

    def keep(self, region: Region, check: int) -> None:
        """None, once the record of the tile at ``region`` would survive a loss of power."""
        self._write(_name(region), {"region": region, "check": check})

    def strike(self, region: Region) -> None:
        """None, once nothing is recorded of the tile at ``region``."""
        self._files.remove(_name(region))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """This process alone works on the product inside the block, where a folder can be locked.

        ConfigError if another one that lives is at it.
        """
        if is_url(self.folder):
            yield
            return
        with self._writing():
            self._files.make()
        with opened(self._files.at("client.lock"), os.O_RDWR | os.O_CREAT) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is working on {self.folder.removesuffix('.tiledask')} "
                    f"right now; wait for it, or name another result"
                ) from None
            try:
                yield
            finally:
                if not self.exist:
                    with suppress(OSError, ConfigError):
                        self._files.clear()

    # -- files ------------------------------------------------------------------------------------

    @property
    def _files(self) -> Folder:
        return Folder(self.folder, self.options)

    def _names(self, start: str) -> list[str]:
        """The files whose names start so."""
        return sorted(name for name, _ in self._files.files() if name.startswith(start))

    def _read(self, name: str) -> dict[str, Any]:
        text = self._files.read(name).decode(errors="replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(name, f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self._damaged(name, f"it says {short(value)}")
        return value

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        with self._writing():
            self._files.write(name, json.dumps(value).encode())

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.folder, lambda: _BLOCK)

    def _damaged(self, name: str, why: str) -> ConfigError:
        return ConfigError(
            f"the record {self._files.at(name)} is damaged ({why}); records are written whole or "
            f"not at all, so something else wrote there. resume=False starts over"
        )


def differences(was: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> list[str]:
    """What changed from ``was`` to ``now``, in words, down to the innermost values.

    >>> differences({"a": {"bytes": 3, "dtype": "f4"}}, {"a": {"bytes": 5, "dtype": "f4"}})
    ['a bytes was 3 and is 5']
    """
    found = []
    for key in sorted(was.keys() | now.keys()):
        before, after, name = was.get(key), now.get(key), f"{of} {key}".strip()
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, name)
        elif before != after:
            found.append(f"{name} was {before} and is {after}")
    return found


def _name(region: Region) -> str:
    (top, _), (left, _) = region
    return f"tile-{top}-{left}.json"
