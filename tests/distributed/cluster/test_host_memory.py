"""Memory is used again only when nobody sees it any more, and is counted when it is used."""

import ctypes
import os
import subprocess
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
    again = block(7, np.dtype(np.float64))
    assert address(again) == where
    assert again.shape == (7, MIB // 8)
    assert again.flags.c_contiguous
    assert again.flags.writeable
    assert address(block(7)) != where  # that one is in use


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:3, ::7],
        lambda x: x.T[5:],
        lambda x: x.view(np.uint8).reshape(-1)[9:][3:],
        lambda x: memoryview(x),
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


def test_only_memory_of_about_the_size_is_taken():
    first = block(8)
    where = address(first)
    del first
    assert address(block(9)) != where  # too small
    assert address(block(6)) != where  # 8 > 1.25 x 6
    assert address(block(8)) == where


def test_small_blocks_and_other_processes_are_not_kept(monkeypatch):
    small = host_memory.empty((1000,), FLOAT)
    assert small.base is None
    monkeypatch.setattr(host_memory, "_room", 0)
    assert block(8).base is None
    assert host_memory.empty((0, 5), FLOAT).shape == (0, 5)


@pytest.mark.long
def test_no_more_is_kept_than_there_is_room_for():
    blocks = [touched(24) for _ in range(4)]
    del blocks
    host_memory._forget()
    assert host_memory._kept_bytes() == 48 * MIB


def test_what_nobody_wants_for_a_while_goes_back_to_the_system(monkeypatch):
    touched(24)
    host_memory._forget()
    assert host_memory._kept_bytes() == 24 * MIB
    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 0.0)
    host_memory._forget()
    assert host_memory._kept_bytes() == 0


NOISE = 5
"""MiB that other parts of a test process may take meanwhile; blocks differ by 12 and more."""


def grown(work):
    held = host_memory.reset_peak("numpy")
    work()
    return (host_memory.peak_bytes("numpy") - held) / MIB


@pytest.mark.long
def test_memory_used_again_is_counted_and_kept_memory_is_not(monkeypatch):
    def fill(*sizes):
        for size in sizes:
            touched(size)

    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 1e6)  # however slow the machine is
    assert grown(lambda: fill(24)) == pytest.approx(24, abs=NOISE)
    assert grown(lambda: fill(24)) == pytest.approx(24, abs=NOISE)  # the same memory
    assert grown(lambda: fill(24, 12, 24)) == pytest.approx(24, abs=NOISE)  # one after the other
    assert grown(lambda: None) == pytest.approx(0, abs=NOISE)
    held = [touched(24), touched(12)]
    assert grown(lambda: fill(12)) == pytest.approx(12, abs=NOISE)  # beside what is held before
    assert grown(lambda: np.ones(40 * MIB, np.uint8)) == pytest.approx(40, abs=NOISE)
    del held
    block(48)[:10] = 1  # the rest is not there, and no growth when it goes
    monkeypatch.setattr(host_memory, "KEEP_SECONDS", 0.0)
    assert grown(host_memory._forget) == pytest.approx(0, abs=NOISE)


_FRESH = """
import ctypes, gc
import numpy as np
from tiledask.distributed.cluster import host_memory

host_memory._room = 64 * 2**20

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info

def mappings_of(mib):
    before = mallinfo().d  # hblks: mallinfo(3)
    array = np.ones(mib * 2**20, np.uint8)
    return mallinfo().d - before

gc.disable()
print(mappings_of(31))
with host_memory.kept_by_malloc():
    print(mappings_of(20), mappings_of(20))
print(mappings_of(31))
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="malloc is not glibc's")
def test_arrays_are_mappings_of_their_own_but_where_malloc_keeps_them():
    """In a process that has been through nothing: elsewhere malloc may have a hole of any size."""
    theirs = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    done = subprocess.run(
        [sys.executable, "-c", _FRESH],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(theirs)},
    )
    assert done.stdout.split() == ["1", "0", "0", "1"]


def test_an_array_in_a_hole_of_the_heap_is_counted():
    with host_memory.kept_by_malloc():
        first = np.ones(24 * MIB, np.uint8)
        fence = [np.ones(MIB // 16, np.uint8) for _ in range(200)]  # or the heap ends there
    del first  # after malloc's last look
    # NumPy asks for huge pages: one more is touched, perhaps
    assert grown(lambda: np.ones(20 * MIB, np.uint8)) == pytest.approx(20, abs=NOISE)
    del fence
