"""Collectives from GPU to GPU: as in host memory to the bit and the byte, and nothing can hang.

The GPUs and NCCL are those of nccl_twin.py, which refuses what would be wrong or never end on real
ones: test_ranks_nccl_faults.py has what it catches, test_ranks_nccl_gpu.py the real ones.

Holds `tiledask.distributed.ranks.nccl`, `tiledask.distributed.transport.meeting` and
`tiledask.tile.nccl`.
"""

import os
import threading
import time
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.device_programs import (
    ALGORITHMS,
    add_ones,
    another_order,
    assert_same,
    everything,
    own,
    own_by_ring,
)
from twins import cupy_twin, nccl_twin
from twins.nccl_twin import twin_gpus

import tiledask as td
from tiledask.distributed.ranks import collectives, run
from tiledask.distributed.ranks import nccl as ranks_nccl
from tiledask.distributed.ranks.threads import Threads, run_threads
from tiledask.distributed.transport import transport
from tiledask.distributed.transport.meeting import Meeting
from tiledask.errors import CollectiveError, ConfigError, DeadlineError, KernelError
from tiledask.plan.collectives.formulas import factor
from tiledask.tile import backend
from tiledask.tile import nccl as tile_nccl
from tiledask.tile.backend import probe, to_numpy
from tiledask.tile.nccl import Place, why_not

# -- what they bring -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(2, "float64"), (3, "float32"), (3, "float16"), (3, "bfloat16"), (2, "int32"), (5, "float64")],
)
def test_as_in_host_memory_to_the_bit_and_the_byte(gpus, n, dtype):
    done, reference = gpus.run(everything, n, dtype), run_threads(everything, n, dtype)
    assert_same(done.results, reference.results)
    assert all(x is None or isinstance(x, cupy_twin.ndarray) for x in done.results[0])
    assert len(done.records.mismatches) == 0
    assert [r.counted for r in done.records] == [r.counted for r in reference.records]
    assert done.traffic == reference.traffic
    by_letters = sum(r.received for r in done.records if r.kind == "recv")
    assert gpus.moved == done.traffic.total - by_letters  # all else went from GPU to GPU
    assert len(gpus.communicators) == 1


def test_groups_each_have_a_communicator(gpus):
    def program(rank):
        x = rank.on_device(np.full(5, 10.0**rank.index))
        groups = [rank.group(axis) for axis in (0, 1, None, 0)]
        sums = [to_numpy(g.all_reduce(x))[0] for g in groups]
        pair = rank.group().among([rank.index % 2, rank.index % 2 + 2])
        return [*sums, to_numpy(pair.all_reduce(x))[0]]

    done = gpus.run(program, (2, 2))
    assert done.results[3] == [1010.0, 1100.0, 1111.0, 1010.0, 1010.0]
    assert len(gpus.communicators) == 5  # 2 rows, 2 columns, all; the pairs are columns


def test_what_is_passed_may_be_changed_and_what_comes_is_the_callers(gpus):
    def program(rank):
        x, g = rank.on_device(np.ones((3, 4))), rank.group()
        came = [g.all_reduce(x), g.broadcast(x if rank.index == 0 else None), g.all_gather(x)]
        came += [
            g.all_reduce(x, algorithm="nccl"),
            g.broadcast(x if rank.index == 1 else None, 1, algorithm="nccl"),
        ]
        np.add(x, 99.0, out=x)
        for y in came:
            np.add(y, 1.0, out=y)
        g.barrier()
        return [float(to_numpy(y)[0, 0]) for y in (x, *came)]

    assert gpus.run(program, 2).results == [[100.0, 3.0, 2.0, 2.0, 3.0, 2.0]] * 2


def test_numbers_and_arrays_of_the_host_stay_there(gpus):
    def program(rank):
        g = rank.group()
        told = g.broadcast(np.arange(3) if rank.index == 1 else None, 1)
        return g.all_reduce(1.0), g.all_reduce(np.ones(2)), to_numpy(told)

    for total, pair, told in gpus.run(program, 3).results:
        assert isinstance(total, np.ndarray)
        assert (total, pair.tolist(), told.tolist()) == (3.0, [3.0, 3.0], [0, 1, 2])
    assert gpus.moved == 0


def test_a_rank_alone_and_arrays_without_elements(gpus):
    def program(rank):
        x = rank.on_device(np.ones((0, 3)))
        g, alone = rank.group(), rank.group().among([rank.index])
        made = [g.all_gather(x, 1, algorithm=name) for name in (*ALGORITHMS, "nccl")]
        one = rank.on_device(np.ones(2))
        return [
            *made,
            g.all_reduce(x),
            alone.all_reduce(one),
            alone.all_gather(one, algorithm="nccl"),
        ]

    for *empty, alone, also in gpus.run(program, 2).results:
        assert [x.shape for x in empty] == [(0, 6)] * 4 + [(0, 3)]
        assert to_numpy(alone).tolist() == to_numpy(also).tolist() == [1.0, 1.0]


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_uneven_parts_and_thin_halos(extents, before, after):
    def program(rank):
        g, rows = rank.group(), extents[rank.index]
        x = rank.on_device(np.random.default_rng(rank.index).standard_normal((rows, 2)))
        whole = g.all_gather(x)
        wide = g.halo_exchange(x, 0, before, after, extents=extents)
        back = g.halo_reduce(wide, 0, before, after, extents=extents)
        return [whole, wide, back, g.reduce_scatter(whole, extents=extents)]

    n = len(extents)
    with twin_gpus(n) as machine:
        done, reference = machine.run(program, n), run_threads(program, n)
    assert_same(done.results, reference.results)
    assert len(done.records.mismatches) == 0
    assert done.traffic == reference.traffic


def test_a_send_does_not_wait_for_its_recv(gpus):
    """Both send twice before they receive; NCCL alone would keep both waiting."""

    def program(rank):
        g, other = rank.group(), 1 - rank.index
        if rank.index == 2:
            return g.all_reduce(rank.on_device(np.ones(2))).size
        for k in (1.0, 2.0):
            g.send(rank.on_device(np.full(3, k)), other)
        total = g.all_reduce(rank.on_device(np.ones(2)))
        came = [g.recv(other), g.recv(other), total]
        return [float(to_numpy(x)[0]) for x in came]

    assert gpus.run(program, 3).results == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 2]


# -- NCCL's own algorithms -----------------------------------------------------------------------


@pytest.mark.long
def test_nccls_own_bring_the_same(gpus):
    for dtype in ("float32", "float16", "int64"):
        reference = run_threads(own_by_ring, 4, dtype)  # whole numbers, so exact
        assert_same(gpus.run(own, 4, dtype).results, reference.results)


def test_records_of_nccls_own_are_computed_and_say_so(gpus):
    def program(rank):
        x = rank.on_device(np.ones((4, 3)))
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            getattr(rank.group(), kind)(x, algorithm="nccl")

    done = gpus.run(program, 4)
    for r in done.records:
        payload = 4 * r.payload if r.kind == "all_gather" else r.payload
        assert r.sent == r.received == factor(r.kind, 4) * payload
        assert (r.counted, r.messages, r.algorithm) == (None, 0, "nccl")
    assert len(done.records.mismatches) == 0
    assert done.traffic.total == 0  # nobody saw any
    assert "2,016 bytes sent by 4 ranks, 2,016 of them computed, not counted" in repr(done.records)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda g, x: g.reduce_scatter(x, algorithm="nccl"),
            ConfigError,
            r"gives every rank as much, and here they get \(3, 2\)",
        ),
        (
            lambda g, x: g.all_gather(x[: 1 + g.rank], algorithm="nccl"),
            CollectiveError,
            r"differ in shape: \([12], 2\) and \([12], 2\)",
        ),
        (
            lambda g, x: g.all_to_all(x, algorithm="nccl"),
            ConfigError,
            "has no all_to_all, only all_reduce, .* ring, tree, direct",
        ),
        (
            lambda g, x: g.all_reduce(np.ones(3), algorithm="nccl"),
            ConfigError,
            "takes arrays of GPUs, got one in host memory",
        ),
        (
            lambda g, x: g.all_reduce(x.astype("complex64"), algorithm="nccl"),
            ConfigError,
            "sums are of float16, .* got complex64",
        ),
    ],
    ids=["uneven parts", "uneven shapes", "all_to_all", "host memory", "complex"],
)
def test_what_nccl_itself_does_not_do(gpus, call, error, words):
    with pytest.raises(error, match=words):
        gpus.run(lambda rank: call(rank.group(), rank.on_device(np.ones((5, 2)))), 2)


def test_nccls_own_need_a_run_over_nccl():
    with pytest.raises(ConfigError, match="needs a run over NCCL, and this is none"):
        run_threads(lambda rank: rank.group().all_reduce(1.0, algorithm="nccl"), 2)


# -- ranks that disagree, and what fails ---------------------------------------------------------


@pytest.mark.long
def test_ranks_that_disagree(gpus):
    def program(rank, what):
        g, odd = rank.group(), rank.index == 1
        x = rank.on_device(np.ones((4, 3)))
        g.all_reduce(x)
        with rank.label("odd" if odd else "even"):
            if what == "kind":
                (g.all_gather if odd else g.all_reduce)(x)
            elif what == "place":
                g.all_reduce(np.ones((4, 3)) if odd else x)
            elif what == "algorithm":
                g.all_reduce(x, algorithm="nccl" if odd else "direct")
            elif what == "returns" and not odd:
                g.broadcast(x if rank.index == 0 else None)
            elif what == "raises":
                if odd:
                    raise KeyError("weights of layer 3")
                g.all_reduce(x)

    for what, error, words in (
        ("kind", CollectiveError, "another kind of collective"),
        ("place", CollectiveError, "differ in place: (GPU and host|host and GPU)"),
        ("algorithm", CollectiveError, "differ in algorithm: (nccl and direct|direct and nccl)"),
        ("returns", CollectiveError, r"rank \d waits for rank \d in broadcast .* 1 has returned"),
        ("raises", KeyError, "weights of layer 3"),
    ):
        with pytest.raises(error, match=words):
            gpus.run(program, 3, what)


@pytest.mark.long
def test_a_circle_is_found(gpus, monkeypatch):
    monkeypatch.setattr(transport, "LOOK", 0.1)
    with pytest.raises(CollectiveError, match="they wait for each other, for ever"):
        gpus.run(another_order, (2, 2))


@pytest.mark.long
def test_a_gpu_that_never_gets_done(gpus):
    late = r"waited for NCCL until the run's deadline, in all_reduce number 1 .*NCCL_DEBUG"
    with (
        patch.object(nccl_twin.Event, "done", False),
        pytest.raises(DeadlineError, match=late),
    ):
        gpus.run(add_ones, 2, timeout=0.7)
    assert all(end.aborted for end in gpus.made)


@pytest.mark.long
def test_a_call_of_nccl_that_never_returns():
    over = threading.Event()
    with twin_gpus(2) as machine:
        with (
            patch.object(nccl_twin.nccl, "groupEnd", lambda: over.wait(200)),
            pytest.raises(DeadlineError, match="waited for NCCL until the run's deadline"),
        ):
            machine.run(add_ones, 2, timeout=0.7)
        over.set()  # only now


def test_an_error_of_nccl_is_everybodys(gpus):
    gpus.broken = "unhandled system error"
    with pytest.raises(CollectiveError, match=r"NCCL could not carry arrays: unhandled .*sockets"):
        gpus.run(add_ones, 3)
    gpus.broken = ""

    def fails(self, *_args):
        raise nccl_twin.NcclError("invalid usage")

    with (
        patch.object(nccl_twin.NcclCommunicator, "__init__", fails),
        pytest.raises(CollectiveError, match="could not set up a communicator of 2 ranks: invalid"),
    ):
        gpus.run(add_ones, 2)


def test_a_rank_that_dies_while_nccl_carries(gpus):
    move = tile_nccl.Communicator.move

    def dies(self, *args):
        if self._comm.rank == 1:
            raise OSError("the GPU has fallen off the bus")
        return move(self, *args)

    with (
        patch.object(tile_nccl.Communicator, "move", dies),
        pytest.raises(OSError, match="fallen off the bus") as caught,
    ):
        gpus.run(add_ones, 3)
    assert "raised by rank 1 in all_reduce number 1" in "".join(caught.value.__notes__)


# -- where it is used ----------------------------------------------------------------------------


def test_places():
    good = Place("a", "0000:01:00.0", "")
    assert why_not([good, good._replace(device="0000:02:00.0"), good._replace(machine="b")]) == ""
    assert "ranks 0 and 2 share GPU 0000:01:00.0 of a" in why_not(
        [good, good._replace(machine="b"), good]
    )
    assert why_not([good, good._replace(reason="no NCCL")]) == "rank 1: no NCCL"
    assert "there are 1" in why_not([good])
    with twin_gpus(2) as machine:
        machine.use(1)
        assert tile_nccl.place()[1:] == ("0000:01:00.0", "")
        with (
            patch.object(nccl_twin.nccl, "available", False),
            pytest.raises(KernelError, match="finds no NCCL library; install"),
        ):
            backend.nccl_bindings()
    if not probe().usable:
        assert probe().reason in tile_nccl.place().reason


def machine_of(places, backend="cupy"):
    """A cluster with workers at ``places``."""
    return SimpleNamespace(backend=backend, run=lambda function, timeout: places)


def test_who_takes_nccl():
    there = [Place("a", f"0000:0{i}:00.0", "") for i in range(3)]
    shared = [there[0], there[1], there[0]]
    assert run._places(machine_of(there), range(3), None, 1.0) == tuple(there)
    assert run._places(machine_of(there), range(3), "nccl", 1.0) == tuple(there)
    assert not run._places(machine_of(there), range(3), "posts", 1.0)
    assert not run._places(machine_of(shared), range(3), None, 1.0)
    first = run._places(machine_of(shared), range(2), None, 1.0)
    assert len(first) == 2  # they have one each
    assert run._places(machine_of(there), (2, 0), None, 1.0) == (there[2], there[0])
    assert not run._places(machine_of(there, "numpy"), range(3), None, 1.0)
    with pytest.raises(ConfigError, match=r"ranks 0 and 2 share GPU .* leave transport= out"):
        run._places(machine_of(shared), range(3), "nccl", 1.0)


def test_the_task_of_a_worker_opens_the_way_and_leaves_it_to_be_closed(gpus, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    places = Place("a", "0000:00:00.0", ""), Place("a", "0000:01:00.0", "")
    meetings = [Meeting("run", r, ("a", "b"), start=0.0) for r in range(2)]
    deadline, parts = time.monotonic() + 240.0, [None, None]
    ways = {"threads": lambda r, _here, _deadline, _worker: Threads(r, meetings, deadline)}

    def work(r):
        gpus.use(r)
        plan = run._Plan("run", r, (2,), "cupy", "threads", places, 240.0)
        parts[r] = run._work(plan, add_ones)

    with (
        patch.object(run, "of_run", lambda _run, r: meetings[r]),
        patch.object(run, "get_worker", lambda: None),
        patch.object(run, "TRANSPORTS", ways),
        patch.object(Meeting, "wait_for_start", lambda *_: None),
    ):
        tasks = [threading.Thread(target=work, args=(r,)) for r in range(2)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join(240)
    assert [part.result for part in parts] == [[2.0, 2.0, 2.0]] * 2
    assert gpus.moved > 0
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
    assert not any(end.aborted for end in gpus.made)
    for meeting in meetings:
        for end in meeting.at_end:
            end()
    assert all(end.aborted for end in gpus.made)


def meets(rank, calls):
    """All ranks meet as before NCCL, by the messages of a real run; how long that takes."""
    devices, g = object.__new__(ranks_nccl.Devices), rank.group()
    begun = time.perf_counter()
    for call in range(calls):
        with g.calling("barrier", None, algorithm="direct") as exchange:
            told = devices.meet(exchange, lambda call=call: ("id", call))
            exchange.carry(collectives.through(exchange.rounds(), {}))
            exchange.terms = (0,) * g.size, 1
        assert told == ("id", call)
    return (time.perf_counter() - begun) / calls


@pytest.mark.cluster
@pytest.mark.parametrize("way", run.TRANSPORTS)
def test_signals_go_the_way_of_letters_and_are_not_counted(cluster, way):
    done = td.run_ranks(meets, td.Mesh(cluster, (4,)), 5, transport=way, timeout=240)
    assert len(done.records.mismatches) == 0
    assert done.traffic.count == 5 * 4 * 3  # the barrier's messages


@pytest.mark.cluster
def test_workers_without_gpus_say_so(cluster):
    with pytest.raises(ConfigError, match="NCCL needs GPU workers, and these compute on CPUs"):
        td.run_ranks(add_ones, td.Mesh(cluster, (2,)), transport="nccl")
