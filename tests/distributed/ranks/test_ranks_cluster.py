"""Rank functions on real workers: both transports, the same bytes, and workers that die."""

import os
import signal
import time
from contextlib import nullcontext

import numpy as np
import pytest
from oracles.apart import apart
from oracles.waiting import raised_late

import tiledask as td
from tiledask.distributed.ranks import run
from tiledask.errors import ClusterLostError, CollectiveError, DeadlineError

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[1, 4])
def hosts(request, cluster):
    """Messages go by sockets, or by Dask."""
    with apart(cluster, request.param) if request.param > 1 else nullcontext():
        yield request.param


def test_arrays_that_fill_every_buffer(cluster, hosts):
    """Everybody sends more to everybody at once than any socket holds."""

    def program(rank):
        g = rank.group()
        x = np.full((4, 300_000), float(rank.index))
        given = x + 7
        came = g.broadcast(given, 2, algorithm="direct")
        given[:] = -1  # what was passed is the caller's again
        g.barrier()
        assert (came == 9).all()
        made = [g.all_to_all(x), g.sendrecv(x, (rank.index + 1) % 4, (rank.index - 1) % 4)]
        made += [g.all_reduce(x[0], algorithm=name) for name in ("ring", "tree", "direct")]
        return [float(part.sum()) for part in made]

    done = td.run_ranks(program, td.Mesh(cluster, (4,)), timeout=240)
    for r, sums in enumerate(done.results):
        assert sums == [6 * 3e5, (r - 1) % 4 * 1.2e6, *[6 * 3e5] * 3]
    assert len(done.records.mismatches) == 0


def test_arguments_may_lie_on_the_workers(cluster):
    mesh = td.Mesh(cluster, (2,))
    x = td.distribute(np.arange(10.0), mesh, (td.Shard(0),))
    summed = lambda rank, power, mine: rank.group().all_reduce((mine**power).sum()).item()  # noqa: E731
    done = td.run_ranks(summed, mesh, 2, per_rank=list(x.blocks), timeout=240)
    assert done.results == [285.0, 285.0]


def odd_one(rank, what, seconds=0.0):
    """Rank 1 does not do what the others do."""
    g = rank.group()
    g.barrier()
    with rank.label("odd" if rank.index == 1 else "even"):
        if rank.index != 1:
            g.all_reduce(np.ones(200_000))
        elif what == "differs":
            g.all_gather(np.ones(200_000))
        elif what == "raises":
            raise KeyError("weights of layer 3")
        elif what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)


def works(cluster):
    """After whatever happened, the next program runs."""
    mesh = td.Mesh(cluster, (4,))
    done = td.run_ranks(lambda rank: rank.group().all_reduce(1.0), mesh, timeout=240)
    assert done.results == [4.0] * 4


DIFFERS = "rank 1 .*all_gather number 2 .*'odd'.*rank [02] .*all_reduce number 2 .*'even'"
FAILS = [
    ("differs", CollectiveError, f"{DIFFERS}|all_reduce number 2 .*'even'.*all_gather number 2"),
    ("raises", KeyError, "weights of layer 3"),
    ("returns", CollectiveError, "waits for rank 1 .*but rank 1 has returned"),
    ("is killed", ClusterLostError, "Run"),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("what", "error", "words"), FAILS)
def test_a_rank_that_does_not_do_as_the_others(cluster, hosts, what, error, words):
    with pytest.raises(error, match=words) as caught:
        td.run_ranks(odd_one, td.Mesh(cluster, (3,)), what, timeout=240)
    if what == "raises":
        assert "raised by rank 1" in "".join(caught.value.__notes__)
    works(cluster)


@pytest.mark.few(1)
def test_a_rank_that_is_late(cluster, hosts):
    def late(seconds):
        td.run_ranks(odd_one, td.Mesh(cluster, (2,)), "late", 1.5 * seconds, timeout=seconds)

    raised_late(DeadlineError, r"rank 0 waited for rank 1 .*'even'", late)
    works(cluster)


def test_nothing_is_left_behind(cluster, monkeypatch):
    for name in ("set_clocks", "opened"):  # whatever it is that a run fails of
        with monkeypatch.context() as patched:
            patched.delattr(run, name)
            with pytest.raises(NameError):
                works(cluster)
    assert not [p for p in cluster.spool.iterdir() if p.is_dir()]
