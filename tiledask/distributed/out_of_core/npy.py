"""Regions of .npy files: a run of contiguous elements for each row, or one if rows are whole."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiledask.distributed.out_of_core.disk import sync
from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region

__all__ = ["create", "look", "read", "rounded", "write"]

_SLAB = 2**18
"""Elements that are converted and written at a time."""


def create(array: Any) -> None:
    """Make the file, of zeros that take no space."""
    np.lib.format.open_memmap(array.path, "w+", array.dtype, array.shape)


def read(array: Any, region: Region, out: np.ndarray) -> None:
    """None, once ``out`` holds the region of a StoredArray."""
    with open(array.path, "rb", buffering=0) as file:
        for at, row in _runs(array, region, out):
            file.seek(at)
            left = row.view(np.uint8).data
            while left:  # in as many calls as the system wants
                if not (read := file.readinto(left)):
                    raise ConfigError(f"{array.path} was cut short meanwhile; write it again")
                left = left[read:]


def write(array: Any, region: Region, block: np.ndarray, durable: bool) -> None:
    """None, once the file of a StoredArray holds ``block`` there; if ``durable`` on the disk."""
    with open(array.path, "r+b") as file:
        for at, row in _runs(array, region, block):
            file.seek(at)
            for first in range(0, row.size, _SLAB):
                file.write(rounded(row[first : first + _SLAB], array.dtype).data)
    if durable:
        sync(array.path)


def rounded(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``block`` as contiguous rows of ``dtype``; itself if it is that."""
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in any sum of halves
        return np.ascontiguousarray(block, dtype)


def _runs(array: Any, region: Region, block: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(bytes of the file before it, a run of ``block``) of all that lies together in both."""
    ((top, _), (left, right)), itemsize = region, array.dtype.itemsize
    line = array.shape[1] * itemsize
    start = look(array.path).offset + top * line + left * itemsize
    for i, row in enumerate(block.reshape(1, -1) if right - left == array.shape[1] else block):
        yield start + i * line, row


def look(path: str) -> Any:
    """The array, mapped for what its header says: by rows, and of as many bytes as the file has."""
    try:
        found: Any = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # of the tokenizer that NumPy tries last, too
        raise ConfigError(
            f"{path} cannot be read as .npy: {str(error)[:300]}; it was cut short, is damaged or "
            f"no such file: numpy.save writes one"
        ) from None
    if found.ndim == 2 and not found.flags.c_contiguous:
        raise ConfigError(f"{path} lies column by column; save numpy.ascontiguousarray of it")
    needs, has = found.offset + found.nbytes, os.path.getsize(path)
    if has != needs:
        raise ConfigError(
            f"{path} has {has} bytes, with its header it is {needs}: it is damaged; write it again"
        )
    return found
