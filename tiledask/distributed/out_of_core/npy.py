"""Regions of .npy files: runs of contiguous elements, each read into its place by one call.

row 0 | row 1 | ...            a region is a run per row, or a single one if its rows are whole
"""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region

__all__ = ["create", "files", "header", "look", "read", "rounded", "write"]

_SLAB = 2**20
"""Bytes that are converted and written at a time."""


def header(shape: tuple[int, int], dtype: np.dtype) -> bytes:
    """What stands before the elements of a matrix in C order."""
    file = BytesIO()
    about = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def create(array: Any) -> None:
    """Make the file, of zeros that take no space; all at once, so that no half of it is seen."""
    partial = f"{array.path}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(header(array.shape, array.dtype))
            file.truncate(array.offset + array.nbytes)
        os.replace(partial, array.path)
    finally:
        Path(partial).unlink(missing_ok=True)


def look(path: str) -> tuple[tuple[int, ...], np.dtype, dict[str, int]]:
    """(shape, dtype, {"offset": bytes before the data}); ConfigError if the file is no array by
    rows, or has more or fewer bytes than its header says."""
    try:
        found: Any = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # of the tokenizer that NumPy tries last, too
        raise ConfigError(
            f"{path} cannot be read as .npy: {str(error)[:300]}; it was cut short or is damaged, "
            f"or is no such file: numpy.save writes one, and a zarr array is a folder"
        ) from None
    if found.ndim == 2 and not found.flags.c_contiguous:
        raise ConfigError(
            f"{path} lies column by column; store it by rows, as numpy.ascontiguousarray has it"
        )
    needs, has = found.offset + found.nbytes, os.path.getsize(path)
    if has != needs:
        raise ConfigError(
            f"{path} says it is {found.shape} {found.dtype}, {needs} bytes with its header, and "
            f"has {has}: it is damaged; write it again"
        )
    return found.shape, found.dtype, {"offset": found.offset}


def read(array: Any, region: Region, out: np.ndarray) -> int:
    """Bytes read, once ``out`` holds the region of a StoredArray."""
    together = out.shape[1] <= 1 or out.strides[1] == out.itemsize
    part = out if together else np.empty(out.shape, out.dtype)
    with open(array.path, "rb", buffering=0) as file:
        done = _transfer(os.preadv, file, array, region, part)
    if not together:
        out[...] = part
    return done


def write(array: Any, region: Region, block: np.ndarray) -> None:
    """None, once the file of a StoredArray holds ``block`` there."""
    (top, _), columns = region
    step = max(1, _SLAB // max(1, block.shape[1] * array.dtype.itemsize))
    with open(array.path, "r+b", buffering=0) as file:
        for first in range(0, len(block), step):
            part = rounded(block[first : first + step], array.dtype)
            ends = top + first, top + first + len(part)
            _transfer(os.pwritev, file, array, (ends, columns), part)


def files(array: Any, region: Region) -> list[str]:
    """What is on the disk of that region."""
    return [array.path]


def rounded(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``block`` as contiguous rows of ``dtype``; itself if it is that."""
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in any sum of halves
        return np.ascontiguousarray(block, dtype)


def _transfer(call: Any, file: Any, array: Any, region: Region, block: np.ndarray) -> int:
    """Bytes that ``call`` read into ``block`` or wrote from it, in as few runs as can be."""
    ((top, _), (left, right)), line = region, array.shape[1]
    start, step = array.offset + (top * line + left) * block.itemsize, line * block.itemsize
    whole = right - left == line and block.flags.c_contiguous
    runs = [block.reshape(-1).view(np.uint8)] if whole else block.view(np.uint8)
    for i, run in enumerate(runs):
        done = 0
        while done < len(run):  # in as many calls as the system wants
            at = start + i * step + done
            more: int = call(file.fileno(), [run[done:]], at)
            if not more:
                raise ConfigError(
                    f"{array.path} ended at byte {at} while it was read, {len(run) - done} bytes "
                    f"too early; something else cut it short"
                )
            done += more
    return block.nbytes
