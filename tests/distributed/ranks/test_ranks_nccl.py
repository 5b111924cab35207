"""Collectives from GPU to GPU: who takes them, what one real GPU can show, and what two can."""

import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from oracles.device_programs import add_ones, assert_same, everything, host, own, own_by_ring

import tiledask as td
from tiledask.distributed.ranks import rounds, run, threads
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError, ConfigError, KernelError
from tiledask.tile import backend
from tiledask.tile import nccl as tile_nccl
from tiledask.tile.backend import as_dtype, probe, to_numpy
from tiledask.tile.nccl import Place, why_not

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


def meets(rank, calls):
    """All ranks meet as before NCCL, by the messages of a real run; how long that takes."""
    g = rank.group()
    begun = time.perf_counter()
    for call in range(calls):
        with g.call("barrier", None, {"algorithm": "direct"}) as exchange:
            told = exchange.port.meet(exchange.call, lambda call=call: ("id", call))
            exchange.carry(rounds.through(exchange.rounds(), {}))
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


# -- one GPU -------------------------------------------------------------------------------------


@contextmanager
def ranks_on_one_gpu():
    """Ranks on threads have arrays of the GPU."""
    ran = threads.ran

    def on_gpu(program, shape, transport, _backend, args):
        return ran(program, shape, transport, "cupy", args)

    with patch.object(threads, "ran", on_gpu):
        yield


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_arrays_of_one_gpu_give_the_same_bits(dtype):
    """Through host memory and back."""
    if not probe().usable:
        pytest.skip(f"no usable GPU: {probe().reason}")
    with ranks_on_one_gpu():
        done = run_threads(everything, 3, dtype, timeout=240)
    reference = run_threads(everything, 3, dtype)
    assert_same(done.results, reference.results)
    assert len(done.records.mismatches) == 0
    assert done.traffic == reference.traffic


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


def _to_host(rank, program, *args):
    return host(program(rank, *args))


@pytest.mark.gpu
@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_real_gpus_as_in_host_memory(gpu_cluster, dtype):
    mesh = td.Mesh(gpu_cluster, (gpu_cluster.slots,))
    done = td.run_ranks(_to_host, mesh, everything, dtype, transport="nccl", timeout=240)
    reference = run_threads(everything, mesh.ranks, dtype)
    assert_same(done.results, reference.results)
    assert len(done.records.mismatches) == 0
    assert done.traffic == reference.traffic


@pytest.mark.gpu
@pytest.mark.cluster
def test_real_gpus_by_nccls_own(gpu_cluster):
    mesh = td.Mesh(gpu_cluster, (gpu_cluster.slots,))
    done = td.run_ranks(_to_host, mesh, own, transport="nccl", timeout=240)
    assert_same(done.results, run_threads(own_by_ring, mesh.ranks).results)


@pytest.mark.gpu
@pytest.mark.cluster
def test_real_gpus_that_disagree(gpu_cluster):
    def program(rank):
        x = rank.on_device(np.ones(8))
        (rank.group().all_gather if rank.index == 1 else rank.group().all_reduce)(x)

    mesh = td.Mesh(gpu_cluster, (gpu_cluster.slots,))
    with pytest.raises(CollectiveError, match="another kind of collective"):
        td.run_ranks(program, mesh, transport="nccl", timeout=240)
    done = td.run_ranks(add_ones, mesh, transport="nccl", timeout=240)
    assert done.results == [[float(mesh.ranks)] * 3] * mesh.ranks
