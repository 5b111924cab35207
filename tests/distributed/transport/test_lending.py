"""Blocks lent to other processes: read right, counted, and never read once they are taken back.

Holds `tiledask.distributed.transport.mailbox`, `tiledask.distributed.transport.remote_read` and
`tiledask.tile.ipc`.
"""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.transport import remote_read
from tiledask.distributed.transport.remote_read import LoanLostError, Loans, Ticket, _read_memory
from tiledask.errors import DeadlineError

linux = pytest.mark.skipif(sys.platform != "linux", reason="process_vm_readv is Linux's")


def ticket_of(array, exchange=None, pid=None):
    """A ticket for an array of this very process, which may read its own memory."""

    class Worker:
        address = "tcp://127.0.0.1:1"

    made = remote_read._ticket(exchange or KEPT, array, f"block {id(array)}", Worker)
    return replace(made, pid=pid) if pid else made


KEPT = Loans()  # keeps arrays and tokens alive, as a worker does


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
    monkeypatch.setattr(remote_read, "_MOST_BYTES", 1000)
    part = _read_memory(ticket_of(x), ((10, 4000), (0, 6)), np.empty(3990 * 24, np.uint8))
    np.testing.assert_array_equal(part, x[10:4000])
    monkeypatch.setattr(remote_read, "_MOST_BYTES", 13)
    np.testing.assert_array_equal(
        _read_memory(ticket_of(x), ((3, 7), (1, 6)), np.empty(80, np.uint8)), x[3:7, 1:6]
    )


@linux
def test_what_was_taken_back_is_not_read():
    exchange = Loans()
    remote_read._exchanges["ending"] = exchange
    x = np.arange(8.0)
    ticket = ticket_of(x, exchange)
    _read_memory(ticket, ((0, 8),), np.empty(64, np.uint8))
    remote_read._end("ending")
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

    monkeypatch.setattr(remote_read, "_readv", lambda: forbidden)
    assert "not permitted" in remote_read._why_not("probe", "numpy", [ticket_of(np.arange(8))])


@linux
def test_a_probe_that_reads_nonsense_is_reported():
    told = remote_read._why_not("probe", "numpy", [ticket_of(np.ones(8, int))])
    assert "read [1, 1, 1, 1, 1, 1, 1, 1], which it does not have" in told
    ours = ticket_of(np.arange(8, 16) + os.getpid())
    assert remote_read._why_not("probe", "numpy", [ours]) == ""


@pytest.mark.cluster
def test_the_way_is_found_out_once(cluster):
    way = remote_read.transport_of(cluster)
    assert way in ("memory", "comm")
    assert cluster.transport_why
    before, cluster.transport = cluster.transport, "asked already"
    assert remote_read.transport_of(cluster) == "asked already"
    cluster.transport = before


@pytest.mark.parametrize("backend", ["numpy", "cupy"])
def test_on_other_systems_blocks_travel_as_messages(monkeypatch, backend):
    class Pretended:
        transport = ""

    Pretended.backend = backend
    monkeypatch.setattr(remote_read.sys, "platform", "darwin")
    assert remote_read._find_transport(Pretended()) == (
        "comm",
        "process_vm_readv is Linux's, this is darwin",
    )


@pytest.mark.cluster
def test_a_failed_operation_lends_nothing_on(cluster):
    x = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (4,)), [td.Shard(0)])

    def lent(dask_worker):
        return len(remote_read._exchanges)

    def fail():
        with remote_read.lending(cluster) as lender:
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
    with remote_read.lending(cluster) as lender:
        assert lender.lend(elsewhere, 10) == [[None]] * 4
        lender.end()


# -- from GPU to GPU, on the stand-in for CuPy ---------------------------------------------------

TESTS = Path(__file__).parents[2]
PROCESSES = (
    "parts_of_every_layout",
    "a_block_within_an_allocation",
    "ones_own_memory_is_not_opened",
    "what_was_begun_is_done_before_it_is_lent",
    "taken_back_before_the_copy",
    "taken_back_during_the_copy",
    "the_owner_dies",
    "an_error_of_a_copy",
    "an_address_that_is_used_again",
    "memory_without_a_handle",
    "few_are_open_at_a_time",
    "closing_waits_for_the_copy",
    "freed_while_it_is_open",
)
WORKERS = (
    "copied_from_gpu_to_gpu",
    "said_what_is_used",
    "as_messages",
    "blocks_without_handles",
    "handles_that_nobody_opens",
    "copies_wait_for_kernels",
    "a_worker_dies",
)


def neighbours(folder, *which):
    """{case: what went wrong} of gpu_neighbours.py, which runs where CuPy is the stand-in."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TESTS / 'twins' / 'standin'}:{TESTS.parent}",
        "STANDIN_GPUS": "2",
        "STANDIN_GPU_FOLDER": str(folder / "gpus"),
        "TILEDASK_CACHE": str(folder / "cache"),
        "DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC": "1",
        "DASK_CUDA_TEST_SINGLE_GPU": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, TESTS / "twins" / "gpu_neighbours.py", *which],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert told, done.stderr[-3000:]
    return json.loads(told[-1].removeprefix("TOLD "))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return neighbours(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    pytest.importorskip("dask_cuda", reason="dask-cuda is not installed: pip install -e .[test]")
    return neighbours(tmp_path_factory.mktemp("workers"), "cluster")


@pytest.mark.long
@linux
@pytest.mark.parametrize("case", PROCESSES)
def test_processes_that_copy_from_each_others_gpus(processes, case):
    assert sorted(processes) == sorted(PROCESSES)
    assert not processes[case], processes[case]


@linux
@pytest.mark.cluster
@pytest.mark.parametrize("case", WORKERS)
def test_workers_that_copy_from_each_others_gpus(workers, case):
    assert sorted(workers) == sorted(WORKERS)
    assert not workers[case], workers[case]


def test_borrowers_close_before_owners_let_go():
    class Pretended:
        transport, asked = "ipc", []

        def run(self, function, *_, **__):
            self.asked.append(function.__name__)

    remote_read.Lender(Pretended(), "exchange").end()
    assert Pretended.asked == ["_close", "_end"]


def test_a_probe_that_does_not_end_leaves_messages():
    class Pretended:
        backend = "numpy"

        def run(self, *_, **__):
            raise DeadlineError("one worker is frozen")

    way, why = remote_read._find_transport(Pretended())
    assert (way, "trying it did not end: one worker is frozen" in why) == ("comm", True)
