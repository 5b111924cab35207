"""What an unfinished product remembers, in a file beside its result: ``<result>.tiledask``

    {"A": ..., "B": ..., "result": ..., "kernel and tile": ...,        what the sums depend on
     "cuts": ..., "tiles": [[[0, 3072], [0, 3072]], ...]}              the tiles that are finished

It says less than the result holds and never more: a tile is on the disk before it is there. The
client alone writes it, as a whole each time.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import astuple
from pathlib import Path

from tiledask.distributed.out_of_core.disk import on_disk, sync
from tiledask.errors import ConfigError
from tiledask.files import atomic_write
from tiledask.plan.products.regions import Region
from tiledask.plan.products.streaming import Cuts

__all__ = ["journal_of", "record", "recorded"]


def journal_of(path: str) -> Path:
    """The file beside the result at ``path``; it is there while a product is not finished."""
    return Path(f"{path}.tiledask")


def recorded(journal: Path, about: Mapping[str, str]) -> tuple[Cuts, set[Region]]:
    """(the cuts, the tiles that are finished) of a product that was begun with the same ``about``;
    ConfigError if it was begun with other input, or the file is damaged."""
    try:
        was = json.loads(journal.read_text())
        rows, columns, panel = was["cuts"]
        cuts = Cuts(tuple(rows), tuple(columns), panel)
        changed = [x for x in about if was[x] != about[x]]
        finished: set[Region] = {((a, b), (c, d)) for (a, b), (c, d) in was["tiles"]}
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{journal} is damaged ({error}); overwrite=True starts over") from None
    if changed:
        raise ConfigError(
            f"{journal} records a product with another {' and '.join(changed)}; bring that back to "
            f"go on, or start over with overwrite=True"
        )
    return cuts, finished


def record(
    journal: Path, about: Mapping[str, str], cuts: Cuts, finished: Collection[Region]
) -> None:
    """None, once the disk has this and nothing else of a product."""
    text = json.dumps({**about, "cuts": astuple(cuts), "tiles": [*finished]})
    with on_disk(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(journal, text.encode())
        sync(journal.parent)
