"""Memory is used again only when nobody sees it any more, and is counted when it is used."""

import sys

import numpy as np
import pytest

from tiledask.distributed.cluster import host_memory

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="memory is kept, and measured, on Linux"
)

MIB = 2**20
FLOAT = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def keeps_64_mib(monkeypatch):
    monkeypatch.setattr(host_memory, "_room", 64 * MIB)
    yield
    host_memory._returned.clear()
    host_memory._kept.clear()
    host_memory._peak = None


def block(mib, dtype=FLOAT):
    return host_memory.empty((mib, MIB // dtype.itemsize), dtype)


def touched(mib):
    array = block(mib)
    array[:] = 1
    return array


def address(array):
    return array.__array_interface__["data"][0]


def test_the_next_block_takes_the_memory_of_one_that_is_gone():
    first = block(8)
    first[:] = 1
    where = address(first)
    del first
    assert address(block(7)) != where  # of another size
    again = block(8, np.dtype(np.float64))
    assert address(again) == where
    assert again.shape == (8, MIB // 8)
    assert again.flags.c_contiguous
    assert again.flags.writeable


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:3, ::7],
        lambda x: x.T[5:],
        lambda x: x.view(np.uint8).reshape(-1)[9:][3:],
        lambda x: np.frombuffer(x, np.int16),
    ],
)
def test_a_view_keeps_the_memory_from_others(view):
    first = block(8)
    first[:] = 3
    where, seen = address(first), view(first)
    before = bytes(np.ascontiguousarray(seen))
    del first
    other = block(8)
    other[:] = 5
    assert address(other) != where
    assert bytes(np.ascontiguousarray(seen)) == before
    del seen
    assert address(block(8)) == where


def test_what_nobody_wants_for_a_while_goes_back_to_the_system(monkeypatch):
    touched(24)
    host_memory._settle()
    assert host_memory._kept_bytes() == 24 * MIB
    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 0.0)
    host_memory._settle()
    assert host_memory._kept_bytes() == 0


NOISE = 5
"""MiB that other parts of a test process may take meanwhile; blocks differ by 12 and more."""


def grown(work):
    held = host_memory.reset_peak()
    work()
    return (host_memory.peak_bytes() - held) / MIB


def test_memory_used_again_is_counted_and_kept_memory_is_not(monkeypatch):
    def fill(*sizes):
        for size in sizes:
            touched(size)

    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 1e6)  # however slow the machine is
    for _ in range(2):  # the second time it is the same memory
        assert grown(lambda: fill(24)) == pytest.approx(24, abs=NOISE)
    assert grown(lambda: fill(24, 12, 24)) == pytest.approx(24, abs=NOISE)  # one after the other
    assert grown(lambda: None) == pytest.approx(0, abs=NOISE)
    held = [touched(24), touched(12)]
    assert grown(lambda: fill(12)) == pytest.approx(12, abs=NOISE)  # beside what is held before
    assert grown(lambda: np.ones(40 * MIB, np.uint8)) == pytest.approx(40, abs=NOISE)
    del held
    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 0.0)
    assert grown(host_memory._settle) == pytest.approx(0, abs=NOISE)
