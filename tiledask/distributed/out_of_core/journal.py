"""What an unfinished product remembers, in a file beside its result: ``<result>.tiledask``

    {"A": ..., "B": ..., "result": ..., "kernel": ..., "cuts": ...}    what the sums depend on
    [[0, 3072], [0, 3072]]                                             this tile is finished
    [[0, 3072], [3072, 6144]]                                          and this one

It says less than the result holds and never more: a tile is on the disk before its line is. The
client alone writes it, and holds a lock on it as long as it lives.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiledask.distributed.out_of_core.disk import sync, writing
from tiledask.errors import ConfigError, short
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts

__all__ = ["Journal", "differences"]

_LINE = 4096
"""Bytes on the disk that a line may take."""
_DAMAGE = ValueError, LookupError, TypeError, AttributeError, RecursionError


class Journal:
    """The file beside the result at ``path``."""

    def __init__(self, path: str) -> None:
        self.result, self.path = path, Path(f"{path}.tiledask")

    @property
    def exists(self) -> bool:
        """Whether a product was begun and not finished."""
        return self.path.exists() and b"\n" in self.path.read_bytes()

    def read(self, about: Mapping[str, Any], shape: tuple[int, int]) -> tuple[Cuts, set[Region]]:
        """The cuts of a result of ``shape`` that was begun with the same ``about``, and the tiles
        that are finished; ConfigError if it was begun with other input, or this is damaged."""
        text = self.path.read_bytes().decode(errors="replace")
        try:
            was, *lines = map(json.loads, text.splitlines())
            value = was.pop("cuts")
            cuts = Cuts(tuple(value["rows"]), tuple(value["columns"]), value["panel"])
            changed = differences(was, about)
            finished: set[Region] = {((a, b), (c, d)) for (a, b), (c, d) in lines}
            if not changed and (cuts.rows[-1], cuts.columns[-1]) != shape:
                raise ValueError(f"the result is {shape}")
        except _DAMAGE as error:
            raise ConfigError(
                f"{self.path} is damaged ({error}), it says {short(text)}; resume=False starts over"
            ) from None
        if changed:
            raise ConfigError(
                f"{self.result} was begun with other input: {'; '.join(changed)}. Bring that back "
                f"to go on, or start over with resume=False"
            )
        return cuts, finished

    def append(self, line: Any) -> None:
        """None, once the ``line`` is there and would survive a power loss."""
        with writing(self.path, lambda: _LINE), open(self.path, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def forget(self) -> None:
        """Remove all that is recorded."""
        os.truncate(self.path, 0)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """This process alone works on the product inside the block; ConfigError if another one
        that lives is at it."""
        with writing(self.path, lambda: _LINE):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(self.path, "ab")  # noqa: SIM115
            sync(str(self.path.parent))
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(lock.fileno()), self.path.stat()):
                    raise FileNotFoundError  # the other one has just ended
            except (BlockingIOError, FileNotFoundError):
                raise ConfigError(
                    f"another process is working on {self.result} right now; wait for it, or name "
                    f"another result"
                ) from None
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)  # to its whole lines
            try:
                yield
            finally:
                if not self.exists:
                    self.path.unlink(missing_ok=True)


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed from ``was`` to ``now``, two mappings of mappings, in words.

    >>> differences({"a": {"bytes": 3, "dtype": "f4"}}, {"a": {"bytes": 5, "dtype": "f4"}})
    ['a bytes was 3 and is 5']
    """
    return [
        f"{of} {key} was {was[of].get(key)} and is {now[of].get(key)}"
        for of in now
        for key in sorted(was[of].keys() | now[of].keys())
        if was[of].get(key) != now[of].get(key)
    ]
