"""Blocks lent to other processes: read right, counted, and never read once they are taken back."""

import ctypes
import errno
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.memory_orders import arrays

import tiledask as td
from tiledask.distributed.transport import blocks, tickets
from tiledask.distributed.transport.blocks import Loans
from tiledask.distributed.transport.tickets import LoanLostError, read_memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is Linux's")


KEPT = Loans()  # keeps arrays and tokens alive, as a worker does
WORKER = SimpleNamespace(address="tcp://127.0.0.1:1")


def ticket_of(array, exchange=KEPT):
    """A ticket for an array of this very process, which may read its own memory."""
    return blocks.ticket_of(exchange, array, f"block {id(array)}", WORKER)


ARRAYS = dict(arrays()) | {"more stretches than one call takes": np.arange(10_000).reshape(5000, 2)}


@linux
@pytest.mark.parametrize("piece", [13, 2**20])
@pytest.mark.parametrize("name", ARRAYS)
def test_parts_are_read_as_they_are(monkeypatch, name, piece):
    monkeypatch.setattr(tickets, "_PIECE", piece)
    array, rng = ARRAYS[name], np.random.default_rng(1)
    ticket = ticket_of(array)
    for _ in range(20):
        ends = tuple(tuple(sorted(rng.choice(n + 1, 2, replace=False))) for n in array.shape)
        expected = array[tuple(slice(*e) for e in ends)]
        buffer = np.full(expected.nbytes + 8, 0xA5, np.uint8)
        part = read_memory(ticket, ends, buffer)
        np.testing.assert_array_equal(part, expected)
        assert part.dtype == array.dtype
        assert (buffer[expected.nbytes :] == 0xA5).all()  # nothing beyond its end


@linux
def test_what_was_taken_back_is_gone_or_anothers_is_not_read():
    x, exchange, all_of_x = np.arange(8.0), Loans(), (((0, 8),), np.empty(64, np.uint8))
    blocks.exchanges["ending"] = exchange
    ticket = ticket_of(x, exchange)
    read_memory(ticket, *all_of_x)
    blocks.end_exchange("ending")
    assert not exchange.lent
    gone = subprocess.Popen(["true"])
    gone.wait()
    for lost, words in (
        (ticket, "does not lend"),
        (ticket_of(x)._replace(pid=gone.pid), "No such process"),
        # a process with this number that has other things there: its token differs
        (ticket_of(x)._replace(token=bytes(16)), "another's memory"),
    ):
        with pytest.raises(LoanLostError, match=words):
            read_memory(lost, *all_of_x)


@linux
@pytest.mark.cluster
def test_where_the_kernel_forbids_it_blocks_come_as_messages(cluster):
    def forbid(forbidden):
        from tiledask.distributed.transport import blocks, tickets

        def denied(*_):
            ctypes.set_errno(errno.EPERM)
            return -1

        refused = len(blocks._refused)
        blocks._refused.clear()
        if forbidden:
            tickets._allowed, tickets._readv = tickets._readv, lambda: denied
        else:
            tickets._readv = tickets._allowed
        return refused

    x = td.distribute(np.eye(8), td.Mesh(cluster, (4,)), [td.Shard(0)])
    cluster.run(forbid, True)
    try:
        y = x @ x
        assert y.traffic.measured == y.traffic.predicted
        assert (td.to_numpy(y) == np.eye(8)).all()
        total = td.run_ranks(lambda rank: rank.group().all_reduce(np.ones(99_999)).sum(), x.mesh)
        assert total.results == [4 * 99_999] * 4
    finally:
        assert cluster.run(forbid, False) == [3] * 4
