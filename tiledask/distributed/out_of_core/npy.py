"""Regions of .npy files: a run of contiguous elements for each row, or one if rows are whole."""

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
    partial = Path(f"{array.path}.partial")
    try:
        partial.write_bytes(header(array.shape, array.dtype))
        os.truncate(partial, array.offset + array.nbytes)
        partial.replace(array.path)
    finally:
        partial.unlink(missing_ok=True)


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
    with open(array.path, "rb", buffering=0) as file:
        _transfer(os.preadv, file.fileno(), array, region, out)
    return out.nbytes


def write(array: Any, region: Region, block: np.ndarray) -> None:
    """None, once the file of a StoredArray holds ``block`` there."""
    (top, bottom), columns = region
    step = max(1, _SLAB // max(1, block.shape[1] * array.dtype.itemsize))
    with open(array.path, "r+b", buffering=0) as file:
        for first in range(top, bottom, step):
            rows = first, min(first + step, bottom)
            part = rounded(block[first - top : rows[1] - top], array.dtype)
            _transfer(os.pwritev, file.fileno(), array, (rows, columns), part)


def files(array: Any, region: Region) -> list[str]:
    """What is on the disk of that region."""
    return [array.path]


def rounded(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``block`` as contiguous rows of ``dtype``; itself if it is that."""
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in any sum of halves
        return np.ascontiguousarray(block, dtype)


def _transfer(call: Any, file: int, array: Any, region: Region, block: np.ndarray) -> None:
    """Read into the rows of ``block``, or write from them, in as few runs as can be."""
    ((top, _), (left, right)), line = region, array.shape[1] * block.itemsize
    start, whole = array.offset + top * line + left * block.itemsize, right - left == array.shape[1]
    rows = block.reshape(1, -1) if whole else block
    for at, run in enumerate(rows.view(np.uint8) if block.size else ()):
        done, begin = 0, start + at * line
        while done < len(run):  # in as many calls as the system wants
            more: int = call(file, [run[done:]], begin + done)
            if not more:
                raise ConfigError(
                    f"{array.path} ended at byte {begin + done} while it was read, "
                    f"{len(run) - done} bytes too early; something else cut it short"
                )
            done += more
