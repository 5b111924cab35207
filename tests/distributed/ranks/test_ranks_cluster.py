"""Rank functions on real workers: both transports, the same bytes, and workers that die.

Holds `tiledask.distributed.ranks.rank_function`, `tiledask.distributed.ranks.run`
and `tiledask.distributed.transport.messages`.
"""

import ctypes
import os
import signal
import time

import numpy as np
import pytest
from oracles.waiting import raised_late

import tiledask as td
from tiledask.distributed.ranks import run
from tiledask.distributed.ranks.run import TRANSPORTS
from tiledask.errors import ClusterLostError, CollectiveError, ConfigError, DeadlineError

pytestmark = pytest.mark.cluster
WAYS = pytest.mark.parametrize("way", TRANSPORTS)


@WAYS
def test_arrays_that_fill_every_buffer(cluster, way):
    """Everybody sends more to everybody at once than any socket holds."""

    def program(rank):
        g = rank.group()
        x = np.full((4, 300_000), float(rank.index))
        told = x + 7
        came = g.broadcast(told, 2, algorithm="direct")
        told[:] = -1  # what was passed is the caller's again
        g.barrier()
        assert (came == 9).all()
        made = [g.all_to_all(x), g.sendrecv(x, (rank.index + 1) % 4, (rank.index - 1) % 4)]
        made += [g.all_reduce(x[0], algorithm=name) for name in ("ring", "tree", "direct")]
        return [float(part.sum()) for part in made]

    done = td.run_ranks(program, td.Mesh(cluster, (4,)), transport=way, timeout=240)
    for r, sums in enumerate(done.results):
        assert sums == [6 * 3e5, (r - 1) % 4 * 1.2e6, *[6 * 3e5] * 3]
    assert len(done.records.mismatches) == 0


def test_arguments_may_lie_on_the_workers(cluster):
    mesh = td.Mesh(cluster, (2,))
    x = td.distribute(np.arange(10.0), mesh, (td.Shard(0),))

    def program(rank, power, mine):
        return rank.group().all_reduce((mine**power).sum()).item()

    done = td.run_ranks(program, mesh, 2, per_rank=list(x.blocks), timeout=240)
    assert done.results == [285.0, 285.0]
    with pytest.raises(ConfigError, match="no transport 'nccl'; there are sockets, posts"):
        td.run_ranks(program, mesh, 2, 1.0, transport="nccl")


@WAYS
def test_ranks_that_disagree(cluster, way):
    def program(rank):
        g = rank.group()
        with rank.label("odd" if rank.index == 3 else "even"):
            (g.all_gather if rank.index == 3 else g.all_reduce)(np.ones(8))

    with pytest.raises(CollectiveError) as caught:
        td.run_ranks(program, td.Mesh(cluster, (4,)), transport=way, timeout=240)
    for word in ("rank 3", "all_gather number 1", "all_reduce number 1", "'odd'", "'even'"):
        assert word in str(caught.value)
    _works(cluster, way)


@WAYS
def test_a_rank_that_raises_or_returns(cluster, way):
    def program(rank, what):
        rank.group().barrier()
        if rank.index == 1:
            if what == "raises":
                raise KeyError("weights of layer 3")
            return
        rank.group().all_reduce(np.ones(200_000))

    mesh = td.Mesh(cluster, (3,))
    with pytest.raises(KeyError, match="weights of layer 3") as caught:
        td.run_ranks(program, mesh, "raises", transport=way, timeout=240)
    assert "raised by rank 1" in "".join(caught.value.__notes__)
    with pytest.raises(CollectiveError, match=r"but rank 1 has returned"):
        td.run_ranks(program, mesh, "returns", transport=way, timeout=240)
    _works(cluster, way)


@pytest.mark.few(1)
@WAYS
def test_a_rank_that_never_calls(cluster, way):
    def program(rank, seconds):
        with rank.label("loss"):
            if rank.index == 1:
                time.sleep(1.5 * seconds)
            rank.group().all_reduce(1.0)

    raised_late(
        DeadlineError,
        r"rank 0 waited for rank 1 .*'loss'",
        lambda s: td.run_ranks(program, td.Mesh(cluster, (2,)), s, transport=way, timeout=s),
    )
    _works(cluster, way)


@pytest.mark.few(1)
@WAYS
def test_a_worker_that_is_killed(cluster, way):
    def program(rank):
        rank.group().barrier()
        if rank.index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            rank.group().all_reduce(1.0)

    with pytest.raises(ClusterLostError, match="Run"):
        td.run_ranks(program, td.Mesh(cluster, (4,)), transport=way, timeout=240)
    _works(cluster, way)


def test_nothing_is_left_behind(cluster, monkeypatch):
    _works(cluster, "sockets")
    for name in ("set_clocks", "opened"):  # whatever it is that a run fails of
        with monkeypatch.context() as patched:
            patched.setattr(run, name, raises_late)
            with pytest.raises(DeadlineError):
                _works(cluster, "sockets")
    assert not [p for p in cluster.spool.iterdir() if p.is_dir()]


def raises_late(*_args, **_options):
    raise DeadlineError("waited until the end")


def _sum(rank):
    return rank.group().all_reduce(1.0).item()


def _works(cluster, way):
    """After whatever happened, the next program runs."""
    done = td.run_ranks(_sum, td.Mesh(cluster, (4,)), transport=way, timeout=240)
    assert done.results == [4.0] * 4


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="malloc is not glibc's")
def test_no_array_of_a_program_is_a_mapping_of_its_own(cluster):
    """Where it was one, the kernel would clear its pages anew: see host_memory.py."""

    def program(rank):
        class Info(ctypes.Structure):
            _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

        def mappings():
            info = ctypes.CDLL(None).mallinfo2
            info.restype = Info
            return info().d  # hblks: mallinfo(3)

        before = mappings()
        arrays = [np.ones(2**20, np.uint8) for _ in range(20)]
        return mappings() - before, len(arrays)

    done = td.run_ranks(program, td.Mesh(cluster, (4,))).results
    assert all(more <= 0 for more, _ in done)  # others may have given one back meanwhile
