"""Between a file and a GPU: some lines at a time, through pinned memory, on several threads.

    load    file --read--> pinned --copy--> panel                every thread has room of
    store   tile --rounded, copied--> pinned --write--> file     its own

A single thread reads a file in memory several times slower than the link to the GPU copies.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from dask.system import CPU_COUNT

from tiledask.distributed.cluster.device_arrays import pinned
from tiledask.distributed.out_of_core.stored import StoredArray
from tiledask.plan.digests import crc_joined, crc_of
from tiledask.plan.products.regions import Region, extents_of, within
from tiledask.tile.backend import namespace

__all__ = ["load", "store"]

SLAB = 2**22
"""Bytes of pinned memory that a thread has, about: a line at least."""
_MOST = 2**27
"""Bytes that all threads together have, where chunks are large."""
_THREADS = 8
"""At most; as many as the process has cores."""

T = TypeVar("T")


def load(array: StoredArray, region: Region, there: Any) -> int:
    """Bytes read, once ``there``, in a GPU's memory as `array.order` says, holds ``region``."""

    def some(mine: Sequence[Region]) -> list[int]:
        reads = []
        with there.device, namespace("cupy").cuda.Stream(non_blocking=True) as stream:
            room = _room(array, mine)
            for part in mine:
                held = _shaped(room, array, part)
                reads.append(array.read(part, held))
                there[within(part, region)].set(held, stream=stream)
                stream.synchronize()
        return reads

    parts = _parts(array, region)
    # where a line takes a call of its own, more threads wait for Python's lock: half as fast
    by_lines = not array.chunks and array.form.calls(parts[0]) > 1
    return sum(_on_threads(some, array, parts, 1 if by_lines else _THREADS))


def store(array: StoredArray, region: Region, c: Any) -> int:
    """The checksum of ``c``, which lies in a GPU's memory as `array.order` says, once the file has
    it, rounded there."""

    def some(mine: Sequence[Region]) -> list[int]:
        checks = []
        with c.device:
            room = _room(array, mine)
            for part in mine:
                held = _shaped(room, array, part)
                for piece in _parts(array, part, by_chunks=False):
                    lines = c[within(piece, region)].astype(array.dtype, copy=False)
                    lines.get(out=held[within(piece, part)])
                array.write(part, held)
                checks.append(crc_of(held if array.order == "C" else held.T))
        return checks

    parts = _parts(array, region)
    check = 0
    for part, of_part in zip(parts, _on_threads(some, array, parts, _THREADS), strict=True):
        check = crc_joined(check, of_part, _nbytes(array, part))
    return check


def _parts(array: StoredArray, region: Region, by_chunks: bool = True) -> list[Region]:
    """``region`` in parts of whole lines, about `SLAB` bytes each."""
    along = int(array.order == "F")
    (start, stop), other = region[along], region[1 - along]
    step = max(1, SLAB // ((other[1] - other[0]) * array.dtype.itemsize))
    if array.chunks and by_chunks:  # what is decoded as a whole is decoded once
        step = -(-step // array.chunks[0]) * array.chunks[0]
    ends = [start, *range(start - start % step + step, stop, step), stop]
    return [(other, span) if along else (span, other) for span in pairwise(ends)]


def _room(array: StoredArray, parts: Sequence[Region]) -> np.ndarray:
    """Pinned memory for the largest of them."""
    return pinned(max(_nbytes(array, part) for part in parts))


def _nbytes(array: StoredArray, part: Region) -> int:
    rows, columns = extents_of(part)
    return rows * columns * array.dtype.itemsize


def _shaped(room: np.ndarray, array: StoredArray, part: Region) -> np.ndarray:
    """The start of ``room`` as the matrix ``part``, in the file's order."""
    shape = extents_of(part)
    flat = room[: _nbytes(array, part)].view(array.dtype)
    return flat.reshape(shape, order=array.order)


def _on_threads(
    some: Callable[[Sequence[Region]], list[T]],
    array: StoredArray,
    parts: Sequence[Region],
    most: int,
) -> list[T]:
    """What ``some`` gives for each of the parts, in their order."""
    largest = max(_nbytes(array, part) for part in parts)
    threads = min(most, _MOST // largest or 1, CPU_COUNT, len(parts))
    shares = [parts[i::threads] for i in range(threads)]
    with ThreadPoolExecutor(threads, thread_name_prefix="files") as pool:
        found = list(pool.map(some, shares))
    return [found[i % threads][i // threads] for i in range(len(parts))]
