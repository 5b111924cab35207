"""What an unfinished product remembers, in a folder beside its result: ``<result>.tiledask/``

    plan.json              the operands, the cuts and the kernel: what the sums depend on
    tile-3072-0.json       up to which k the tile at that row and column is summed
    run                    the name of the run that may work now
    client.lock, slot-*.lock    held, as long as they live, by the processes that do

Beside a result that is named by its URL it is objects in the same store: see by_url.py.

A record says less than the result holds and never more: a tile is on the disk before its record
is, and a partial sum that is about to be overwritten is struck out first. It has the checksum of
all of the tile, so that one that changed since is computed again.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from tiledask.distributed.out_of_core.disk import writing
from tiledask.distributed.out_of_core.folder import Folder
from tiledask.distributed.out_of_core.place import folder_of
from tiledask.errors import ConfigError, DeadlineError, short
from tiledask.plan.products.regions import Region
from tiledask.plan.whole import is_whole

__all__ = ["StoppedError", "StreamRecords", "TileRecord", "differences"]

_TAKEOVER = 60.0
"""Seconds to wait for workers of a client that died, which stop at their next panel."""
_BLOCK = 4096
"""Bytes on the disk, about, of a record."""
_LETTING_GO = 20.0
"""Seconds that an interrupted client waits for its own."""


class StoppedError(RuntimeError):
    """The run that a worker works for was stopped, or another took its place."""


@dataclass(frozen=True)
class TileRecord:
    """How far a tile is."""

    summed: int
    """The tile in the file is the sum over 0..summed; 0 if it holds nothing of use."""
    check: int = 0
    """Its checksum."""


@dataclass(frozen=True)
class StreamRecords:
    """The folder, seen by one run. Values are written whole or not at all."""

    folder: str
    run: str
    """This run's name."""
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

    def tile(self, region: Region) -> TileRecord | None:
        """What is recorded of the tile at ``region``; ConfigError if it is damaged."""
        name = _name(region)
        try:
            value = self._read(name)
        except FileNotFoundError:
            return None
        try:
            whole = value["region"] == [list(span) for span in region]
            record = TileRecord(value["summed"], value["check"])
            whole = whole and all(is_whole(n, 0) for n in asdict(record).values())
        except (KeyError, TypeError):
            whole = False
        if not whole:
            raise self._damaged(name, f"it says {short(value)}, for the tile {region}")
        return record

    def keep(self, region: Region, record: TileRecord) -> None:
        """None, once ``record`` of the tile at ``region`` would survive a loss of power."""
        self._write(_name(region), {"region": region, **asdict(record)})

    def strike(self, region: Region) -> None:
        """Record that the tile at ``region`` is about to be overwritten, if it has a record."""
        if self._files.exists(_name(region)):
            self.keep(region, TileRecord(0))

    # -- who may work -----------------------------------------------------------------------------

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """This run alone works on the product inside the block; at its end none does.

        ConfigError if another client that lives is at it. Workers that a dead one left behind are
        told to stop, and waited for.
        """
        with ExitStack() as stack:
            with self._writing():
                self._files.make()
                try:
                    stack.enter_context(self._files.locked("client.lock", 0.0))
                except TimeoutError:
                    raise ConfigError(
                        f"another process is working on {self.folder.removesuffix('.tiledask')} "
                        f"right now; wait for it, or name another result"
                    ) from None
                self._files.write("run", self.run.encode())
            self._wait_for_workers(_TAKEOVER)
            try:
                yield
            finally:
                self._files.remove("run")
                with suppress(DeadlineError):  # frozen ones: they stop as soon as they wake up
                    self._wait_for_workers(_LETTING_GO)
                if not self.exist:
                    with suppress(OSError, ConfigError):
                        self._files.clear()

    @contextmanager
    def working(self, slot: int) -> Iterator[Callable[[], None]]:
        """The worker of ``slot`` works for this run inside the block, and no other in its place.

        What it gives is `check`, of that too: workers ask it between panels, and before they write.
        """
        self.check()
        with self._files.locked(f"slot-{slot}.lock", _TAKEOVER, self.check) as held:

            def check() -> None:
                self.check()
                if not held():
                    raise StoppedError(
                        f"slot {slot} was away too long, and another worker may be at work on "
                        f"{self.folder} in its place; what is finished is recorded"
                    )

            check()
            yield check

    def check(self) -> None:
        """Raise StoppedError if this run is over."""
        try:
            now = self._files.read("run").decode()
        except FileNotFoundError:
            now = ""
        if now != self.run:
            raise StoppedError(
                f"run {self.run} on {self.folder} was "
                + (f"replaced by {now}" if now else "stopped")
                + "; what is finished is recorded, and the same product goes on from there"
            )

    def _wait_for_workers(self, seconds: float) -> None:
        if held := self._files.still_held(self._names("slot-"), seconds):
            raise DeadlineError(
                f"a worker of an earlier run still holds {self._files.at(held)} after "
                f"{seconds:g} s; end it, or wait"
            )

    # -- files ------------------------------------------------------------------------------------

    @property
    def _files(self) -> Folder:
        return folder_of(self.folder, self.options)

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
