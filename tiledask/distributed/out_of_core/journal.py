"""What an unfinished product remembers, in a file beside its result: ``<result>.tiledask``

    {"A": ..., "B": ..., "result": ..., "kernel": ..., "cuts": ...}    what the sums depend on
    [[0, 3072], [0, 3072]]                                             this tile is finished
    [[0, 3072], [3072, 6144]]                                          and this one

It says less than the result holds and never more: a tile is on the disk before its line is. The
client alone writes it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiledask.distributed.out_of_core.disk import on_disk, sync
from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts

__all__ = ["Journal", "differences"]

_LINE = 4096
"""Bytes on the disk that a line may take."""


class Journal:
    """The file beside the result at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = Path(f"{path}.tiledask")

    @property
    def exists(self) -> bool:
        """Whether a product was begun and not finished."""
        return self.path.exists() and b"\n" in self.path.read_bytes()

    def read(self, about: Mapping[str, str], shape: tuple[int, int]) -> tuple[Cuts, set[Region]]:
        """(the cuts, the tiles that are finished) of a result of ``shape`` that was begun with the
        same ``about``; ConfigError if it was begun with other input, or this is damaged."""
        lines = self.path.read_bytes().rpartition(b"\n")[0] + b"\n"
        os.truncate(self.path, len(lines))  # a line that was cut short is none
        try:
            was, *tiles = map(json.loads, lines.splitlines())
            rows, columns, panel = was.pop("cuts")
            cuts, changed = Cuts(tuple(rows), tuple(columns), panel), differences(was, about)
            finished: set[Region] = {((a, b), (c, d)) for (a, b), (c, d) in tiles}
            if not changed and (cuts.rows[-1], cuts.columns[-1]) != shape:
                raise ValueError(f"the result is {shape}")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            words = f"{self.path} is damaged ({error}); resume=False starts over"
            raise ConfigError(words) from None
        if changed:
            raise ConfigError(
                f"{self.path} records a product with another {changed}; bring that back to go on, "
                f"or start over with resume=False"
            )
        return cuts, finished

    def append(self, line: Any, mode: str = "a") -> None:
        """None, once the ``line`` is on the disk; in ``mode`` "w" nothing else is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with on_disk(self.path, _LINE), open(self.path, mode) as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
            sync(str(self.path.parent))


def differences(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What of a product is another one now."""
    return " and ".join(of for of in now if was[of] != now[of])
