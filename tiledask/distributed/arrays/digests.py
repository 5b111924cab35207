"""Checksums of arrays' elements, row after row, whatever their order in memory: no copy of all."""

import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain

import numpy as np

from tiledask.plan.arrays import Array

__all__ = ["crc_of", "digest_of"]

_SLAB = 2**18
"""Bytes that are looked at at a time: they stay in cache."""


def crc_of(array: Array) -> int:
    """CRC-32 of the elements of ``array``, row after row."""
    check = 0
    for part in _slabs(array):
        check = zlib.crc32(part, check)
    return check


def digest_of(arrays: Iterable[Array]) -> bytes:
    """A digest that arrays have alone which are equal to the bit, one after the other."""
    digest = blake2b()
    for part in chain.from_iterable(map(_slabs, arrays)):
        digest.update(part)
    return digest.digest()


def _slabs(array: Array) -> Iterator[memoryview]:
    rows = np.atleast_1d(array)
    step = max(1, _SLAB // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        yield np.ascontiguousarray(rows[start : start + step]).reshape(-1).view(np.uint8).data
