"""Checksums of arrays' elements, row after row, whatever their order in memory: no copy of all."""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from tiledask.plan.arrays import Array

__all__ = ["crc_joined", "crc_of", "digest_of"]

_SLAB = 2**18
"""Bytes that are looked at at a time: they stay in cache."""
_POLYNOMIAL = 0xEDB88320
"""CRC-32's, its highest power, 32, left out (IEEE 802.3)."""


def crc_of(array: Array, check: int = 0) -> int:
    """CRC-32 of the elements of ``array``, row after row, after those of ``check``."""
    for part in _slabs(array):
        check = zlib.crc32(part, check)
    return check


def crc_joined(first: int, second: int, nbytes: int) -> int:
    """The CRC-32 of what has the checksum ``first`` and, behind it, ``nbytes`` with ``second``.

    >>> a, b = b"some numbers", b"and more"
    >>> crc_joined(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)
    True
    """
    return _times(first, _behind(nbytes)) ^ second


@lru_cache
def _behind(nbytes: int) -> int:
    """x^(8 nbytes), the factor of a checksum that so many bytes of 0 follow."""
    power, square = 1 << 31, 1 << 23  # 1 and x^8: a polynomial's bits, the highest power lowest
    while nbytes:
        if nbytes & 1:
            power = _times(power, square)
        square = _times(square, square)
        nbytes >>= 1
    return power


def _times(a: int, b: int) -> int:
    """a b modulo CRC-32's polynomial."""
    product = 0
    for power in range(31, -1, -1):
        if a >> power & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def digest_of(arrays: Iterable[Array]) -> bytes:
    """A digest that arrays have alone which are equal to the bit, one after the other."""
    digest = blake2b()
    for array in arrays:
        for part in _slabs(array):
            digest.update(part)
    return digest.digest()


def _slabs(array: Array) -> Iterator[memoryview]:
    rows = array if array.ndim else array.reshape(1)
    step = max(1, _SLAB // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        part = np.ascontiguousarray(rows[start : start + step])
        yield part.reshape(-1).view(np.uint8).data
