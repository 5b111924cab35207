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

__all__ = ["append", "journal_of", "recorded"]

_LINE = 4096
"""Bytes on the disk that a line may take."""


def journal_of(path: str) -> Path:
    """The file beside the result at ``path``; it is there while a product is not finished."""
    return Path(f"{path}.tiledask")


def recorded(journal: Path, about: Mapping[str, str]) -> tuple[Cuts, set[Region]]:
    """(the cuts, the tiles that are finished) of a product that was begun with the same ``about``;
    ConfigError if it was begun with other input, or the file is damaged."""
    lines = journal.read_bytes().rpartition(b"\n")[0] + b"\n"
    os.truncate(journal, len(lines))  # a line that was cut short is none
    try:
        was, *tiles = map(json.loads, lines.splitlines())
        rows, columns, panel = was.pop("cuts")
        cuts, changed = (
            Cuts(tuple(rows), tuple(columns), panel),
            [x for x in about if was[x] != about[x]],
        )
        finished: set[Region] = {((a, b), (c, d)) for (a, b), (c, d) in tiles}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        words = f"{journal} is damaged ({error}); resume=False starts over"
        raise ConfigError(words) from None
    if changed:
        raise ConfigError(
            f"{journal} records a product with another {' and '.join(changed)}; bring that back to "
            f"go on, or start over with resume=False"
        )
    return cuts, finished


def append(journal: Path, line: Any, mode: str = "a") -> None:
    """None, once the ``line`` is on the disk; in ``mode`` "w" nothing else is."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with on_disk(journal, _LINE), open(journal, mode) as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
        sync(str(journal.parent))
