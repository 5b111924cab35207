"""What is known of a matrix in a file: where it is, and how its elements lie there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tiledask.distributed.out_of_core.folder import Folder
from tiledask.plan.products.streaming import StorageLayout

__all__ = ["StoredFile"]


@dataclass(frozen=True, repr=False)
class StoredFile:
    """A matrix in a file: where it is and how it lies there. Nothing is open, nothing is loaded."""

    path: str
    """Absolute; or a URL."""
    kind: str
    """"npy" or "zarr"."""
    shape: tuple[int, int]
    dtype: np.dtype
    chunks: tuple[int, int] | None = None
    """Extents of a chunk of a zarr array; None for .npy."""
    order: Literal["C", "F"] = "C"
    """Order of a .npy file: "C" has contiguous rows, "F" contiguous columns."""
    offset: int = 0
    """Bytes before the first element of a .npy file."""
    checksum: str = ""
    """What every chunk of a zarr array ends in, such as "crc32c"; "" if there is none."""
    missing: str = "refuse"
    """What chunks of a zarr array are that are not there: damage, or ("fill") its fill value."""
    storage_options: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)
    """What fsspec needs besides a URL; never printed or recorded, it may have credentials."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, before any compression."""
        return self.form.nbytes

    @property
    def folder(self) -> Folder:
        """The folder of a zarr array, or the .npy file."""
        return Folder(self.path, self.storage_options)

    @property
    def form(self) -> StorageLayout:
        """What reading and writing it costs."""
        return StorageLayout(self.shape, self.dtype.itemsize, self.order, self.chunks)
