"""What an unfinished product remembers, in a folder beside its result: ``<result>.tiledask/``

    plan.json            the operands, the cuts and the kernel: what the sums depend on
    tile-3072-0.done     the tile at that row and column is finished
    client.lock          held, as long as it lives, by the process that works on it

The journal says less than the result holds and never more: a tile is on the disk before its file
here is. Plain files: a second attempt at a worker's tiles, after it died, skips what is finished.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.distributed.out_of_core.disk import sync, writing
from tiledask.errors import ConfigError, short
from tiledask.files import atomic_write
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts

__all__ = ["Journal", "differences"]

_BLOCK = 4096
"""Bytes on the disk, about, of a file in it."""
_DAMAGE = ValueError, LookupError, TypeError, AttributeError, RecursionError


class Journal(NamedTuple):
    """The folder."""

    folder: str

    @property
    def exists(self) -> bool:
        """Whether a product was begun and not finished."""
        return Path(self.folder, "plan.json").exists()

    def cuts(self, about: Mapping[str, Any], shape: tuple[int, int]) -> Cuts:
        """The cuts of a result of ``shape`` that was begun with the same ``about``; ConfigError if
        it was begun with other input, or its record is damaged."""
        text = Path(self.folder, "plan.json").read_bytes().decode(errors="replace")
        try:
            was = json.loads(text)
            value = was.pop("cuts")
            cuts = Cuts(tuple(value["rows"]), tuple(value["columns"]), value["panel"])
            changed = differences(was, about)
            if not changed and (cuts.rows[-1], cuts.columns[-1]) != shape:
                raise ValueError(f"the result is {shape}")
        except _DAMAGE as error:
            raise ConfigError(
                f"{self.folder}/plan.json is damaged ({error}), it says {short(text)}; "
                f"resume=False starts over"
            ) from None
        if changed:
            raise ConfigError(
                f"{self.folder.removesuffix('.tiledask')} was begun with other input: "
                f"{'; '.join(changed)}. Bring that back to go on, or start over with resume=False"
            )
        return cuts

    def begin(self, about: Mapping[str, Any], cuts: Cuts) -> None:
        """None, once a product is recorded; what was of any earlier one is gone."""
        self.forget()
        self._write("plan.json", json.dumps({**about, "cuts": asdict(cuts)}))

    def forget(self) -> None:
        """Remove all that is recorded; first what says that there is anything."""
        Path(self.folder, "plan.json").unlink(missing_ok=True)
        for file in Path(self.folder).glob("tile-*"):
            file.unlink(missing_ok=True)

    def finished(self, region: Region) -> bool:
        """Whether the tile at ``region`` is finished."""
        return Path(self.folder, _name(region)).exists()

    def finish(self, region: Region) -> None:
        """None, once it is recorded of the tile at ``region``, and would survive a power loss."""
        self._write(_name(region), "")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """This process alone works on the product inside the block; ConfigError if another one
        that lives is at it."""
        with writing(self.folder, lambda: _BLOCK):
            os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/client.lock", "a") as lock:
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
                if not self.exists:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        """None, once the file is there with all of ``text``, also after a loss of power."""
        with writing(self.folder, lambda: _BLOCK):
            atomic_write(Path(self.folder, name), text.encode())
            sync(self.folder)


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed from ``was`` to ``now``, two mappings of mappings, in words.

    >>> differences({"a": {"bytes": 3, "dtype": "f4"}}, {"a": {"bytes": 5, "dtype": "f4"}})
    ['a bytes was 3 and is 5']
    """
    found = []
    for of in sorted(was.keys() | now.keys()):
        before, after = was.get(of), now.get(of)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            before, after = {"": before}, {"": after}
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                name = f"{of} {key}".strip()
                found.append(f"{name} was {before.get(key)} and is {after.get(key)}")
    return found


def _name(region: Region) -> str:
    (top, _), (left, _) = region
    return f"tile-{top}-{left}.done"
