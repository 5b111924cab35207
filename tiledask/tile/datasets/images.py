"""Pictures with labels, and batches that any rank can draw its part of."""

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import ConfigError, short
from tiledask.plan.data import data_file
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import as_dtype
from tiledask.tile.layers.rng import key, positions, splitmix64

__all__ = ["Images", "load_images", "pictures"]


@dataclass(frozen=True, repr=False)
class Images:
    """Pictures of one size, and what is on each."""

    name: str
    pixels: np.ndarray
    """[count, rows, columns] uint8, not to be changed."""
    labels: np.ndarray
    """[count] int64, 0 .. classes - 1."""
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, share: float = 0.8) -> tuple["Images", "Images"]:
        """(to learn from, to test with): the first ``share`` of the pictures, and the rest."""
        if not 0 < share < 1:
            raise ConfigError(f"pictures are split between 0 and 1, got {share}; 0.8 is usual")
        at = round(share * len(self))
        first = replace(self, pixels=self.pixels[:at], labels=self.labels[:at])
        return first, replace(self, pixels=self.pixels[at:], labels=self.labels[at:])

    def inputs(self, at: Any = slice(None), dtype: DTypeLike = "float32") -> np.ndarray:
        """[count, 1, rows, columns] from 0 to 1, as a convolution takes them."""
        pixels: np.ndarray = self.pixels[at][:, None]
        return (pixels / np.float32(255)).astype(as_dtype(dtype))

    def batch(
        self,
        seed: int,
        step: int,
        size: int,
        rows: slice | Sequence[int] = slice(None),
        dtype: DTypeLike = "float32",
    ) -> tuple[np.ndarray, np.ndarray]:
        """(inputs [rows, 1, height, width], labels [rows]) of a step's batch of ``size`` pictures.

        Batches follow each other through all pictures, in another order each time. ``rows`` of
        the batch are drawn, and the others need not be.

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
        return self.inputs(at, dtype), self.labels[at]

    def __repr__(self) -> str:
        _, high, wide = self.pixels.shape
        return f"Images({self.name!r}, {len(self):,} of {high}x{wide}, {self.classes} classes)"


def pictures() -> tuple[str, ...]:
    """Names of the shipped sets of pictures."""
    return tuple(sorted(path.stem for path in data_file("images").glob("*.npz")))


MOST_BYTES = 2**29
"""Of a file's arrays, unpacked: a small file can hold far more zeros than there is memory."""


@lru_cache(maxsize=8)
def load_images(name: str | os.PathLike[str]) -> Images:
    """The shipped pictures of that name, or those in an .npz file with ``pixels`` and ``labels``.

    >>> load_images("digits")
    Images('digits', 2,000 of 28x28, 10 classes)
    """
    path = data_file("images", f"{name}.npz") if str(name) in pictures() else Path(name)
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > MOST_BYTES:
            raise ValueError(f"unpacked it has {size:,} bytes, and pictures {MOST_BYTES:,} at most")
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["pixels"], file["labels"].astype(np.int64)
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a file that is damaged
        raise ConfigError(
            f"pictures are one of {', '.join(pictures())}, or an .npz file with pixels "
            f"[count, rows, columns] and labels [count]; {short(str(name))} is not "
            f"({str(error)[:200] or type(error).__name__})"
        ) from None
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise ConfigError(
            f"{path}: pixels are uint8 [count, rows, columns] and labels [count], got "
            f"{pixels.dtype} {list(pixels.shape)} and {list(labels.shape)}"
        )
    pixels.flags.writeable = labels.flags.writeable = False
    return Images(path.stem, pixels, labels, int(labels.max()) + 1)
