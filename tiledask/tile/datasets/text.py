"""Text as numbers: a character each, and batches that any rank can draw its part of."""

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.data import data_file, read
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import Array
from tiledask.tile.layers.rng import key, positions, splitmix64

__all__ = ["Text", "load_text", "texts"]


@dataclass(frozen=True, repr=False)
class Text:
    """A text whose characters are numbered.

    >>> text = load_text("tales")
    >>> text.decode(text.ids[:19]), text.vocabulary
    ('Clara finds 2 kites', 50)
    """

    name: str
    characters: str
    """Every character that occurs, sorted: number i stands for the i-th."""
    ids: np.ndarray
    """[length] int32, not to be changed."""
    floor: float | None = None
    """The best loss there is, in nats per character; None where nobody knows it."""

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to each rank of a training: numbers of no more bytes than they need."""
        few = np.min_scalar_type(max(1, len(self.characters)) - 1)
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"ids": self.ids.astype(few)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"ids": state["ids"].astype(np.int32)})

    @property
    def vocabulary(self) -> int:
        """How many characters there are."""
        return len(self.characters)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: i for i, character in enumerate(self.characters)}

    def encode(self, text: str) -> np.ndarray:
        """The numbers [length] of a text; ConfigError for a character that does not occur."""
        try:
            return np.array([self._numbers[c] for c in text], np.int32)
        except KeyError as error:
            raise ConfigError(
                f"{self.name!r} has {self.vocabulary} characters and {error} is none of them: "
                f"{self.characters!r}"
            ) from None

    def decode(self, ids: Array) -> str:
        """The text of numbers, in a row."""
        return "".join(self.characters[i] for i in ids)

    def split(self, share: float = 0.9) -> tuple["Text", "Text"]:
        """(to learn from, to test with): the first ``share`` of the text, and the rest."""
        if not 0 < share < 1:
            raise ConfigError(f"a text is split between 0 and 1, got {share}; 0.9 is usual")
        at = round(share * len(self.ids))
        return replace(self, ids=self.ids[:at]), replace(self, ids=self.ids[at:])

    def batch(
        self,
        seed: int,
        step: int,
        size: int,
        sequence: int,
        rows: slice | Sequence[int] = slice(None),
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids, targets), each [rows, sequence] int32, of a step's batch of ``size`` rows.

        Each row begins anywhere in the text; targets are one character on. ``rows`` of the batch
        are drawn, and the others need not be.

        >>> text = load_text("tales")
        >>> whole, _ = text.batch(0, 3, size=8, sequence=16)
        >>> mine, _ = text.batch(0, 3, size=8, sequence=16, rows=slice(2, 4))
        >>> bool((whole[2:4] == mine).all())
        True
        """
        starts = len(self.ids) - sequence
        if not is_whole(sequence, 1) or starts < 1 or not is_whole(size, 1):
            raise ConfigError(
                f"a batch has 1 row or more of 1 to {len(self.ids) - 1} characters, as the text "
                f"{self.name!r} has {len(self.ids)}; got {size!r} rows of {sequence!r}"
            )
        drawn = splitmix64(key(seed, "batch", step), positions((size,), (rows,)))
        first = (drawn % np.uint64(starts)).astype(np.int64)
        at = first[:, None] + np.arange(sequence)
        return self.ids[at], self.ids[at + 1]

    def __repr__(self) -> str:
        floor = "" if self.floor is None else f", best loss {self.floor:.4f}"
        return f"Text({self.name!r}, {len(self.ids):,} of {self.vocabulary} characters{floor})"


def texts() -> tuple[str, ...]:
    """Names of the shipped texts."""
    return tuple(sorted(path.name[:-7] for path in data_file("text").glob("*.txt.gz")))


@lru_cache(maxsize=8)
def load_text(name: str | os.PathLike[str]) -> Text:
    """The shipped text of that name, or the text in a UTF-8 file.

    >>> load_text("tales")
    Text('tales', 173,179 of 50 characters, best loss 0.1419)
    """
    path, floor, shipped = Path(name), None, str(name) in texts()
    if shipped:
        path = data_file("text", f"{name}.txt.gz")
        about = data_file("text", f"{name}.json")
        floor = read(about).number("nats_per_character") if about.exists() else None
    try:
        whole = path.read_bytes()
        content = (gzip.decompress(whole) if shipped else whole).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a text is one of {', '.join(texts())}, or a file in UTF-8; {str(name)!r} is not "
            f"({error})"
        ) from None
    if len(content) < 2:
        raise ConfigError(f"{path} has {len(content)} characters, a text 2 or more")
    characters = "".join(sorted(set(content)))
    points = np.frombuffer(content.encode("utf-32-le"), np.uint32)
    ids = np.searchsorted(np.array([ord(c) for c in characters], np.uint32), points)
    ids = ids.astype(np.int32)
    ids.flags.writeable = False
    return Text(path.stem.removesuffix(".txt"), characters, ids, floor)
