"""Blocks lent to other processes: read right, counted, and never read once they are taken back."""

import errno
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.dist import lending
from tiledask.dist.lending import Exchange, LoanLostError, Ticket, _read_memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is Linux's")


def ticket_of(array, exchange=None, pid=None):
    """A ticket for an array of this very process, which may read its own memory."""

    class Worker:
        address = "tcp://127.0.0.1:1"

    made = lending._ticket(exchange or KEPT, array, f"block {id(array)}", Worker)
    return replace(made, pid=pid) if pid else made


KEPT = Exchange()  # keeps arrays and tokens alive, as a worker does


def arrays():
    """(name, array): every memory order that a block can have."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 9, 5))
    yield "row-major", x
    yield "column-major", np.asfortranarray(x)
    yield "transposed", x.transpose(2, 0, 1)
    yield "every second row", x[::2]
    yield "upside down", x[::-1]
    yield "a slice of columns", x[:, 2:8, 1:4]
    yield "one extent of 1", x[:, :1]
    yield "a matrix", x[0].astype("f4")
    yield "a vector", x[0, 0]
    yield "half", x.astype("f2")
    yield "bfloat16", x.astype(td.tile.as_dtype("bfloat16"))
    yield "bytes", rng.integers(0, 255, (50, 3), dtype="u1")


@linux
@pytest.mark.parametrize("name", dict(arrays()))
def test_parts_are_read_as_they_are(name):
    array = dict(arrays())[name]
    rng = np.random.default_rng(1)
    ticket = ticket_of(array)
    for _ in range(20):
        ends = tuple(tuple(sorted(rng.choice(n + 1, 2, replace=False))) for n in array.shape)
        expected = array[tuple(slice(*e) for e in ends)]
        buffer = np.full(expected.nbytes + 8, 0xA5, np.uint8)
        part = _read_memory(ticket, ends, buffer)
        np.testing.assert_array_equal(part, expected)
        assert part.dtype == array.dtype
        assert (buffer[expected.nbytes :] == 0xA5).all()  # nothing beyond its end


@linux
def test_an_array_without_dimensions():
    part = _read_memory(ticket_of(np.array(2.5)), (), np.empty(8, np.uint8))
    assert part.shape == ()
    assert part == 2.5


@linux
def test_more_stretches_than_one_call_takes(monkeypatch):
    x = np.arange(5000 * 6, dtype="i4").reshape(5000, 6)
    ends = (0, 5000), (1, 3)
    expected = x[:, 1:3]
    part = _read_memory(ticket_of(x), ends, np.empty(expected.nbytes, np.uint8))
    np.testing.assert_array_equal(part, expected)
    # and stretches longer than one call takes
    monkeypatch.setattr(lending, "_MOST_BYTES", 1000)
    part = _read_memory(ticket_of(x), ((10, 4000), (0, 6)), np.empty(3990 * 24, np.uint8))
    np.testing.assert_array_equal(part, x[10:4000])
    monkeypatch.setattr(lending, "_MOST_BYTES", 13)
    np.testing.assert_array_equal(
        _read_memory(ticket_of(x), ((3, 7), (1, 6)), np.empty(80, np.uint8)), x[3:7, 1:6]
    )


@linux
def test_what_was_taken_back_is_not_read():
    exchange = Exchange()
    lending._exchanges["ending"] = exchange
    x = np.arange(8.0)
    ticket = ticket_of(x, exchange)
    _read_memory(ticket, ((0, 8),), np.empty(64, np.uint8))
    lending._end("ending")
    with pytest.raises(LoanLostError, match="does not lend"):
        _read_memory(ticket, ((0, 8),), np.empty(64, np.uint8))
    assert exchange.cancelled.is_set()
    assert not exchange.lent


@linux
def test_a_process_that_is_gone_or_another():
    gone = subprocess.Popen(["true"])
    gone.wait()
    ticket = ticket_of(np.arange(8.0), pid=gone.pid)
    with pytest.raises(LoanLostError, match="No such process"):
        _read_memory(ticket, ((0, 8),), np.empty(64, np.uint8))
    # a process with this number that has other things there: its token differs
    other = replace(ticket_of(np.arange(8.0)), token=bytes(16))
    with pytest.raises(LoanLostError, match="another's memory"):
        _read_memory(other, ((0, 8),), np.empty(64, np.uint8))


@linux
def test_a_kernel_that_forbids_it_is_reported(monkeypatch):
    def forbidden(*_):
        import ctypes

        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(lending, "_readv", lambda: forbidden)
    assert "not permitted" in lending._read_probes("probe", [ticket_of(np.arange(8))])


def test_a_probe_that_reads_nonsense_is_reported():
    if sys.platform == "linux":
        assert "instead of 0..7" in lending._read_probes("probe", [ticket_of(np.ones(8, int))])


@pytest.mark.cluster
def test_the_way_is_found_out_once(cluster):
    way = lending.transport_of(cluster)
    assert way in ("memory", "comm")
    assert cluster.transport_why
    before, cluster.transport = cluster.transport, "asked already"
    assert lending.transport_of(cluster) == "asked already"
    cluster.transport = before


@pytest.mark.cluster
def test_gpu_blocks_and_other_systems_travel_as_messages(monkeypatch):
    class Pretended:
        transport = ""
        backend = "cupy"

    assert lending.transport_of(Pretended()) == "comm"
    monkeypatch.setattr(lending.sys, "platform", "darwin")
    Pretended.backend = "numpy"
    assert lending._find_transport(Pretended()) == (
        "comm", "process_vm_readv is Linux's, this is darwin",
    )  # fmt: skip


@pytest.mark.cluster
def test_a_failed_operation_lends_nothing_on(cluster):
    x = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (4,)), [td.Shard(0)])

    def lent(dask_worker):
        return len(lending._exchanges)

    def fail():
        with lending.lending(cluster) as lender:
            tickets = lender.lend([[block] for block in x.blocks], 10)
            assert all(isinstance(mine[0], Ticket) for mine in tickets)
            assert cluster.run(lent) == [1] * 4
            raise KeyError("something else")

    with pytest.raises(KeyError, match="something else"):
        fail()
    assert cluster.run(lent) == [0] * 4


@pytest.mark.cluster
def test_a_block_that_is_not_in_memory_has_no_ticket(cluster):
    x = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (4,)), [td.Shard(0)])
    elsewhere = [[x.blocks[(slot + 1) % 4]] for slot in range(4)]
    with lending.lending(cluster) as lender:
        assert lender.lend(elsewhere, 10) == [[None]] * 4
        lender.end()
