"""Sums from GPU to GPU: who takes them, how ranks meet, what one GPU can show, and what two can.

Holds `tiledask.distributed.ranks.nccl` and `tiledask.tile.nccl`.
"""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.ranks import nccl, run
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError, ConfigError, KernelError
from tiledask.tile import backend
from tiledask.tile import nccl as tile_nccl
from tiledask.tile.backend import as_dtype, probe, to_numpy
from tiledask.tile.nccl import Place, why_not


def sums(rank, algorithm, dtype="float32"):
    """Sums by an algorithm, and something that NCCL does not carry."""
    g, n = rank.group(), rank.ranks
    whole = np.random.default_rng(rank.index).integers(-9, 9, (2 * n, 3, n))
    x = rank.on_device(whole.astype(as_dtype(dtype)))
    made = [g.all_reduce(x, op, algorithm=algorithm) for op in ("sum", "max", "min")]
    return [to_numpy(each) for each in (*made, g.all_gather(x))]


def bits(results):
    return [[(a.dtype, a.shape, a.tobytes()) for a in mine] for mine in results]


# -- where it is used ----------------------------------------------------------------------------


def test_nccls_own_need_a_run_over_nccl():
    with pytest.raises(ConfigError, match="needs a run over NCCL, and this is none"):
        run_threads(lambda rank: rank.group().all_reduce(1.0, algorithm="nccl"), 2)


def test_places():
    good = Place("a", "0000:01:00.0", "")
    assert why_not([good, good._replace(device="0000:02:00.0"), good._replace(machine="b")]) == ""
    assert "ranks 0 and 2 share GPU 0000:01:00.0 of a" in why_not(
        [good, good._replace(machine="b"), good]
    )
    assert why_not([good, good._replace(reason="no NCCL")]) == "rank 1: no NCCL"
    assert "there are 1" in why_not([good])
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


# -- how ranks meet ------------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch):
    """What makes a program's rank sum arrays in host memory where NCCL would those of GPUs."""
    monkeypatch.setattr(tile_nccl, "on_gpu", lambda x: True)
    monkeypatch.setattr(tile_nccl, "empty", np.empty)
    there, all_came = {}, threading.Barrier(3)

    class StandIn:
        def open(self, exchange):
            assert nccl.meet(exchange, lambda: b"an id") == b"an id"

        def all_reduce(self, exchange, x, out, op):
            there[exchange.me] = x
            all_came.wait(60)
            out[...] = sum(there.values())
            all_came.wait(60)

    return lambda rank: setattr(rank.transport, "devices", StandIn())


@pytest.mark.parametrize("checked", [True, False])
def test_a_sum_by_nccl_has_the_bytes_of_a_ring_and_the_messages_of_a_meeting(stand_in, checked):
    def program(rank):
        stand_in(rank)
        g = rank.group() if checked else Group(rank, (0,), (0, 1, 2), stream="")
        x = np.arange(7.0) + rank.index
        made = g.all_reduce(x, algorithm="nccl"), g.all_reduce(x, algorithm="ring")
        return [each.tolist() for each in made]

    done = run_threads(program, 3, timeout=240)
    assert done.results == [[[3.0 * k + 3 for k in range(7)]] * 2] * 3
    by_nccl, by_ring = (done.records.where(algorithm=name) for name in ("nccl", "ring"))
    moved = [[(r.sent, r.received) for r in each] for each in (by_nccl, by_ring)]
    assert moved[0] == moved[1]
    assert [r.messages for r in by_nccl] == [r.predicted.messages for r in by_nccl] == [2, 1, 1]
    assert [r.counted for r in by_nccl] == [None] * 3
    assert len(done.records.mismatches) == 0
    assert "computed, not counted" in repr(done.records)
    assert done.traffic.count == sum(r.messages for r in done.records)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (lambda g, x: g.all_gather(x), "another kind of collective"),
        (lambda g, x: g.all_reduce(x[:2], algorithm="nccl"), "shape"),
        (lambda g, x: g.all_reduce(x, algorithm="ring"), "algorithm"),
    ],
)
def test_ranks_that_disagree_do_so_before_nccl(stand_in, other, word):
    def program(rank):
        stand_in(rank)
        g, x = rank.group(), np.ones(8)
        other(g, x) if rank.index == 1 else g.all_reduce(x, algorithm="nccl")

    with pytest.raises(CollectiveError, match=word):
        run_threads(program, 3, timeout=240)


def meets(rank, calls):
    """What number 0 brings, at each of ``calls``."""
    told = []
    for call in range(calls):
        with rank.group().call("barrier", None, {}) as exchange:
            told.append(nccl.meet(exchange, lambda call=call: b"id %d" % call))
            exchange.terms = (0,) * rank.ranks, 1
    return told


@pytest.mark.cluster
@pytest.mark.parametrize("way", run.TRANSPORTS)
def test_ranks_meet_by_the_messages_of_a_real_run(cluster, way):
    done = td.run_ranks(meets, td.Mesh(cluster, (4,)), 5, transport=way, timeout=240)
    assert done.results == [[b"id %d" % call for call in range(5)]] * 4
    assert done.traffic.count == 5 * 2 * 3


@pytest.mark.cluster
def test_workers_without_gpus_say_so(cluster):
    with pytest.raises(ConfigError, match="NCCL needs GPU workers, and these compute on CPUs"):
        td.run_ranks(sums, td.Mesh(cluster, (2,)), None, transport="nccl")


# -- one GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_real_gpu_talks_to_itself():
    """NCCL through CuPy as we call it: pointers, types, streams, events, abort."""
    try:
        backend.nccl_bindings()
    except KernelError as error:
        pytest.skip(f"needs a GPU with NCCL: {error}")
    xp = backend.namespace("cupy")
    alone = tile_nccl.Communicator(1, tile_nccl.unique_id(), 0)
    deadline = time.monotonic() + 240.0

    def finish(pending):
        while not pending.done:
            assert time.monotonic() < deadline, "NCCL is not done after 240 s"

    try:
        for dtype in tile_nccl.REDUCES:
            given = xp.arange(5).astype(as_dtype(dtype))
            out = xp.zeros_like(given)
            finish(alone.all_reduce(tile_nccl.now(), given, out, "max"))
            assert to_numpy(out).tobytes() == to_numpy(given).tobytes(), dtype
    finally:
        alone.abort()
    assert tile_nccl.place().reason == ""


# -- on several ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu_cluster():
    found = probe()
    try:
        backend.nccl_bindings()
        reason = "" if len(found.devices) > 1 else "one GPU has nobody to send to"
    except KernelError as error:
        reason = str(error)
    if reason:
        count = len(found.devices) if found.usable else 0
        pytest.skip(f"needs 2 GPUs with NCCL; this machine has {count}: {reason}")
    with td.start_cluster(device="cuda", quiet=True) as started:
        yield started


@pytest.mark.gpu
@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
@pytest.mark.parametrize("algorithm", ["nccl", "ring", None])
def test_real_gpus_as_in_host_memory(gpu_cluster, algorithm, dtype):
    """Small integers, whose sums are the same in any order."""
    mesh = td.Mesh(gpu_cluster, (gpu_cluster.slots,))
    done = td.run_ranks(sums, mesh, algorithm, dtype, transport="nccl", timeout=240)
    assert bits(done.results) == bits(run_threads(sums, mesh.ranks, "ring", dtype).results)
    assert len(done.records.mismatches) == 0


@pytest.mark.gpu
@pytest.mark.cluster
def test_real_gpus_that_disagree(gpu_cluster):
    def program(rank):
        x = rank.on_device(np.ones(8))
        (rank.group().all_gather if rank.index == 1 else rank.group().all_reduce)(x)

    mesh = td.Mesh(gpu_cluster, (gpu_cluster.slots,))
    with pytest.raises(CollectiveError, match="another kind of collective"):
        td.run_ranks(program, mesh, transport="nccl", timeout=240)
    done = td.run_ranks(sums, mesh, None, transport="nccl", timeout=240)
    assert bits(done.results) == bits(run_threads(sums, mesh.ranks, "ring").results)
