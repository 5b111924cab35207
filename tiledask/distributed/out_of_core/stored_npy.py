"""Regions of .npy files: runs of contiguous elements, each read into its place in one call.

C order    row 0 | row 1 | ...            a region is a run per row, or a single one if its
F order    column 0 | column 1 | ...      rows are whole; of an "F" file, columns
"""

import os
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.products.regions import Region

__all__ = ["create", "files", "header", "look", "read", "rounded", "write"]

_SLAB = 2**20
"""Bytes that are converted at a time where memory and file do not agree."""


_parsing = threading.Lock()
"""Held while a header is parsed: CPython 3.11.7, for one, counts how deep its parser is for all
threads together, and a SystemError comes of it (python/cpython issue 106905)."""


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


def look(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype, int, int]:
    """(shape, Fortran order?, dtype, bytes before the data, bytes in all) of an open .npy file.

    ValueError if it is none. Nothing in it is executed or believed: what its header promises is
    for the caller to compare with the bytes there are.
    """
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in readers:  # 3.0 is for names of fields, which a matrix has none of
        raise ValueError(f"format {version} is not 1.0 or 2.0")
    try:
        with _parsing:
            shape, fortran, dtype = readers[version](file)
    except (ValueError, OSError):
        raise
    except Exception as error:  # of the tokenizer that NumPy tries last
        raise ValueError(f"its header cannot be read ({error})") from None
    return shape, fortran, dtype, file.tell(), os.fstat(file.fileno()).st_size


def _runs(array: Any, region: Region, block: np.ndarray) -> Iterator[tuple[Any, int]]:
    """(part of ``block`` as bytes, where it is in the file): as few runs as can be.

    ``block`` lies as the file does, and its rows are contiguous.
    """
    ((top, bottom), (left, right)), line = region, array.shape[array.order == "C"]
    start, step = array.offset + (top * line + left) * block.itemsize, line * block.itemsize
    if right - left == line and block.flags.c_contiguous:
        yield block.reshape(-1).view(np.uint8), start
        return
    rows = block.view(np.uint8)
    for i in range(bottom - top):
        yield rows[i], start + i * step


def _slabs(region: Region, block: np.ndarray) -> Iterator[tuple[Region, np.ndarray]]:
    """``block`` in slabs of some rows, about a MiB each."""
    (top, bottom), columns = region
    step = max(1, _SLAB // max(1, block.shape[1] * block.itemsize))
    for i in range(0, bottom - top, step):
        part = block[i : i + step]
        yield ((top + i, top + i + len(part)), columns), part


def read(array: Any, region: Region, out: np.ndarray) -> int:
    """Bytes read, once ``out`` holds the region of a StoredArray."""
    return _carry(os.preadv, "rb", array, region, out)


def write(array: Any, region: Region, block: np.ndarray) -> None:
    """None, once the file of a StoredArray holds ``block`` there."""
    _carry(os.pwritev, "r+b", array, region, block)


def files(array: Any, region: Region) -> list[str]:
    """What is on the disk of that region."""
    return [array.path]


def _carry(call: Any, mode: str, array: Any, region: Region, block: np.ndarray) -> int:
    """Bytes that went from the file to ``block``, or from it to the file: without a copy where
    both agree."""
    reads, done = mode == "rb", 0
    if array.order == "F":  # seen so that what is contiguous in the file is the last dimension
        region, block = region[::-1], block.T
    rows_lie_together = block.shape[1] <= 1 or block.strides[1] == block.itemsize
    direct = block.dtype == array.dtype and rows_lie_together
    with open(array.path, mode, buffering=0) as file:
        for within, part in [(region, block)] if direct else _slabs(region, block):
            lines = part
            if not direct:
                lines = np.empty(part.shape, array.dtype) if reads else rounded(part, array.dtype)
            for run, offset in _runs(array, within, lines):
                done += _transfer(call, file.fileno(), run, offset, array.path)
            if reads and not direct:
                part[...] = lines
    return done


def rounded(block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``block`` as contiguous rows of ``dtype``; itself if it is that."""
    with np.errstate(over="ignore"):  # beyond float16's range is infinity, as in any sum of halves
        return np.ascontiguousarray(block, dtype)


def _transfer(call: Any, file: int, part: np.ndarray, offset: int, path: str) -> int:
    """Bytes read or written: all of ``part``, in as many calls as the system wants."""
    done: int = call(file, [part], offset)
    while done < len(part):
        more = call(file, [part[done:]], offset + done)
        if not more:
            raise ConfigError(
                f"{path} ended at byte {offset + done} while it was read, "
                f"{len(part) - done} bytes too early; something else cut it short"
            )
        done += more
    return done
