"""Data sets for small models: a text and pictures that came with the package.

Row i of a batch follows from the seed, the step and i alone: a rank draws its own rows of the
global batch without the others', and any number of ranks draws the same batch.
"""

import gzip
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import ConfigError, short
from tiledask.plan.data import data_file, read
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import Array, as_dtype
from tiledask.tile.layers.random import key, positions, splitmix64

__all__ = ["Images", "Text", "load_images", "load_text"]

Rows = slice | Sequence[int]
"""Of a batch: those that are drawn; the others need not be."""


def _shipped(folder: str, ends: str) -> tuple[str, ...]:
    """Names of the files of a kind that came with the package."""
    found = data_file(folder).glob(f"*{ends}")
    return tuple(sorted(path.name.removesuffix(ends) for path in found))


@dataclass(frozen=True, repr=False)
class Text:
    """A text whose characters are numbered.

    >>> text = load_text("tales")
    >>> text.decode(text.ids[:19]), text.vocabulary
    ('Clara finds 2 kites', 50)
    """

    name: str
    characters: str  # Every character that occurs, sorted: number i stands for the i-th
    ids: np.ndarray  # [length], of as few bytes as they need; not to be changed
    floor: float | None = None  # The best loss there is, in nats per character, where it is known

    @property
    def vocabulary(self) -> int:
        """How many characters there are."""
        return len(self.characters)

    def decode(self, ids: Array) -> str:
        """The text of numbers, in a row."""
        return "".join(self.characters[i] for i in ids)

    def batch(
        self, seed: int, step: int, size: int, sequence: int, rows: Rows = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """(ids, targets), each [rows, sequence] int32, of a step's batch of ``size`` rows.

        Each row begins anywhere in the text; targets are one character on.

        >>> text = load_text("tales")
        >>> whole, _ = text.batch(0, 3, size=8, sequence=16)
        >>> mine, _ = text.batch(0, 3, size=8, sequence=16, rows=slice(2, 4))
        >>> bool((whole[2:4] == mine).all())
        True
        """
        starts = len(self.ids) - sequence
        if not is_whole(sequence, 1) or starts < 1 or not is_whole(size, 1):
            raise ConfigError(
                f"a batch of the text {self.name!r} has 1 row or more of 1 to {len(self.ids) - 1} "
                f"characters, got {size!r} rows of {sequence!r}"
            )
        drawn = splitmix64(key(seed, "batch", step), positions((size,), (rows,)))
        first = (drawn % np.uint64(starts)).astype(np.int64)
        at = first[:, None] + np.arange(sequence)
        return self.ids[at].astype(np.int32), self.ids[at + 1].astype(np.int32)

    def __repr__(self) -> str:
        floor = "" if self.floor is None else f", best loss {self.floor:.4f}"
        return f"Text({self.name!r}, {len(self.ids):,} of {self.vocabulary} characters{floor})"


@lru_cache(maxsize=8)
def load_text(name: str | os.PathLike[str]) -> Text:
    """The shipped text of that name, or the text in a UTF-8 file.

    >>> load_text("tales")
    Text('tales', 173,179 of 50 characters, best loss 0.1419)
    """
    path, floor, texts = Path(name), None, _shipped("text", ".txt.gz")
    try:
        if str(name) in texts:
            path = data_file("text", f"{name}.txt.gz")
            floor = read(data_file("text", f"{name}.json")).take(float, "nats_per_character")
            content = gzip.decompress(path.read_bytes()).decode("utf-8")
        else:
            content = path.read_bytes().decode("utf-8")
        if len(content) < 2:
            raise ValueError(f"it has {len(content)} characters, a text 2 or more")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a text is one of {', '.join(texts)}, or a file in UTF-8; {str(name)!r} is not "
            f"({error})"
        ) from None
    points = np.frombuffer(content.encode("utf-32-le"), np.uint32)
    found = np.unique(points)
    ids = np.searchsorted(found, points).astype(np.min_scalar_type(len(found) - 1))
    ids.flags.writeable = False
    return Text(path.stem.removesuffix(".txt"), "".join(map(chr, found)), ids, floor)


@dataclass(frozen=True, repr=False)
class Images:
    """Pictures of one size, and what is on each."""

    name: str
    pixels: np.ndarray  # [count, rows, columns] uint8, not to be changed
    labels: np.ndarray  # [count] int64, 0 .. classes - 1
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, share: float = 0.8) -> tuple["Images", "Images"]:
        """(to learn from, to test with): the first ``share`` of the pictures, and the rest."""
        if not 0 < share < 1:
            raise ConfigError(f"data are split between 0 and 1, got {share}; 0.8 is usual")
        at = round(share * len(self))
        first = replace(self, pixels=self.pixels[:at], labels=self.labels[:at])
        return first, replace(self, pixels=self.pixels[at:], labels=self.labels[at:])

    def batch(
        self,
        seed: int,
        step: int,
        size: int,
        rows: Rows = slice(None),
        dtype: DTypeLike = "float32",
    ) -> tuple[np.ndarray, np.ndarray]:
        """(inputs [rows, 1, height, width] from 0 to 1, labels [rows]) of a step's batch.

        Batches of ``size`` follow each other through all pictures, in another order each time.

        >>> digits = load_images("digits")
        >>> _, labels = digits.batch(0, 5, size=64)
        >>> _, mine = digits.batch(0, 5, size=64, rows=slice(16, 32))
        >>> bool((labels[16:32] == mine).all())
        True
        """
        if not is_whole(size, 1) or not is_whole(step, 0):
            raise ConfigError(
                f"a batch has 1 row or more of a step from 0, got {size!r} of step {step!r}"
            )
        places = step * size + positions((size,), (rows,))
        at = np.empty(len(places), np.int64)
        for turn in np.unique(places // len(self)):
            here = places // len(self) == turn
            drawn = splitmix64(key(seed, "order", turn), np.arange(len(self)))
            at[here] = np.argsort(drawn, kind="stable")[places[here] % len(self)]
        pixels = self.pixels[at][:, None] / np.float32(255)
        return pixels.astype(as_dtype(dtype)), self.labels[at]

    def __repr__(self) -> str:
        _, high, wide = self.pixels.shape
        return f"Images({self.name!r}, {len(self):,} of {high}x{wide}, {self.classes} classes)"


@lru_cache(maxsize=8)
def load_images(name: str | os.PathLike[str]) -> Images:
    """The shipped pictures of that name, or those in an .npz file with ``pixels`` and ``labels``.

    >>> load_images("digits")
    Images('digits', 2,000 of 28x28, 10 classes)
    """
    pictures = _shipped("images", ".npz")
    path = data_file("images", f"{name}.npz") if str(name) in pictures else Path(name)
    try:
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["pixels"], file["labels"].astype(np.int64)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
            raise ValueError(f"{pixels.dtype} {list(pixels.shape)} and {list(labels.shape)}")
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a file that is damaged
        raise ConfigError(
            f"pictures are one of {', '.join(pictures)}, or an .npz file of pixels, uint8 [count, "
            f"rows, columns], and labels [count]; {short(str(name))} is not "
            f"({str(error)[:200] or type(error).__name__})"
        ) from None
    pixels.flags.writeable = labels.flags.writeable = False
    return Images(path.stem, pixels, labels, int(labels.max()) + 1)
