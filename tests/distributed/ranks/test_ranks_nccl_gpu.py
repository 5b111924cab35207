"""Collectives from GPU to GPU on real ones: what one GPU can show, and what two can."""

import queue
import threading
import time
from contextlib import ExitStack
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from oracles.device_programs import add_ones, assert_same, everything, host, own, own_by_ring
from twins.nccl_twin import ranks_on_gpus, twin_gpus

import tiledask as td
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError, KernelError
from tiledask.tile import backend
from tiledask.tile import nccl as tile_nccl
from tiledask.tile.backend import as_dtype, probe, to_numpy

# -- one GPU -------------------------------------------------------------------------------------


class Copies:
    """In NCCL's place for ranks that share a GPU: copies from one's array into the other's."""

    done = True
    ways: ClassVar = {}

    def __init__(self, _size, unique, rank):
        self.unique, self.rank = unique, rank

    def way(self, source, destination):
        return self.ways.setdefault((self.unique, source, destination), queue.Queue())

    def move(self, _after, sends, receives):
        taken = []
        for peer, x in sends:
            taken.append(threading.Event())
            self.way(self.rank, peer).put((x, taken[-1]))
        for peer, y in receives:
            x, copied = self.way(peer, self.rank).get(timeout=240)
            y[...] = x
            copied.set()
        assert all(each.wait(240) for each in taken)
        return self

    def abort(self):
        pass


@pytest.fixture(params=["stand-in", pytest.param("GPU", marks=pytest.mark.gpu)])
def one_gpu(request):
    """What lets a thread use the one GPU."""
    with ExitStack() as stack:
        if request.param == "stand-in":
            machine = stack.enter_context(twin_gpus(1))
            yield lambda rank: machine.use(0)
        elif probe().usable:
            yield lambda rank: None
        else:
            pytest.skip(f"no usable GPU: {probe().reason}")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32"])
def test_arrays_of_one_gpu_give_the_same_bits(one_gpu, dtype):
    """All that is done with arrays between NCCL's calls: cut, summed, joined, cast."""

    with (
        patch.object(tile_nccl, "Communicator", Copies),
        patch.object(tile_nccl, "unique_id", time.monotonic_ns),
        ranks_on_gpus(one_gpu),
    ):
        done = run_threads(everything, 3, dtype, timeout=240)
    reference = run_threads(everything, 3, dtype)
    assert_same(done.results, reference.results)
    assert len(done.records.mismatches) == 0
    assert done.traffic == reference.traffic


@pytest.mark.gpu
def test_a_real_gpu_talks_to_itself():
    """NCCL through CuPy as we call it: pointers, types, streams, events, groups, abort."""
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
        x = xp.arange(12, dtype="float32").reshape(3, 4)
        parts = [xp.empty_like(x), xp.empty_like(x)]
        finish(alone.move(tile_nccl.now(), [(0, x), (0, 2 * x)], [(0, part) for part in parts]))
        assert [float(part.sum()) for part in parts] == [66.0, 132.0]
        for dtype in tile_nccl.REDUCES:
            given = xp.arange(5).astype(as_dtype(dtype))
            for kind in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"):
                out = xp.zeros_like(given)
                finish(alone.collective(tile_nccl.now(), kind, given, out, "max"))
                assert to_numpy(out).tobytes() == to_numpy(given).tobytes(), (kind, dtype)
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
