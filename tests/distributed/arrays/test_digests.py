"""Checksums of arrays are those of their bytes in order."""

import zlib
from hashlib import blake2b

import ml_dtypes
import numpy as np
import pytest

from tiledask.distributed.arrays import digests
from tiledask.distributed.arrays.digests import crc_of, digest_of

X = np.random.default_rng(0).standard_normal((40, 30, 3))
VIEWS = [X, X[::3, 5:, ::-1], np.asfortranarray(X[0]), X.astype(ml_dtypes.bfloat16)]
VIEWS += [X[:, 0, 0] > 0, np.float32(7)[...], X[:0], X[:, :0]]


@pytest.mark.parametrize("slab", [1, 100, 2**18])
def test_they_are_of_all_bytes_in_order(monkeypatch, slab):
    monkeypatch.setattr(digests, "_SLAB", slab)
    for x in VIEWS:
        assert crc_of(x) == zlib.crc32(x.tobytes())
        assert digest_of([X, x]) == blake2b(X.tobytes() + x.tobytes()).digest()
