"""A scheduler that is killed ends every call that waits for its cluster, in two seconds.

What a call had recorded in files, the same call on another cluster goes on from.
"""

import asyncio
import contextlib
import functools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracles.memory_claims import DECODER
from twins.by_hand import ByHand

import tiledask as td
from tiledask.errors import ClusterLostError
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.cluster

GRID = (td.Shard(0), td.Shard(1))
TEXT = load_text("tales")
GPT = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
SECONDS = 240.0
"""The timeout of every call; it ends long before, or with another error."""
SLOWLY = {"kernel": "tiled", "tile": 16}


@contextlib.contextmanager
def connected(folder, workers=2):
    """A cluster on a scheduler and workers that were started by hand, and the scheduler."""
    with ByHand(folder) as dask:
        dask.scheduler()
        for _ in range(workers):
            dask.worker("--no-nanny", "--death-timeout", "10")
        with td.connect(dask.address, workers=workers, timeout=240) as cluster:
            yield cluster, dask.running[0]


@contextlib.contextmanager
def started():
    """A cluster of this process's, whose scheduler is no process."""
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        yield cluster, None


class Slow:
    """Text whose batches take their time."""

    vocabulary = TEXT.vocabulary

    def batch(self, *which):
        time.sleep(0.05)
        return TEXT.batch(*which)


def slow(*_):
    time.sleep(SECONDS)


def for_ever(rank):
    while True:
        rank.group().all_reduce(np.ones(3))


def scheduled(cluster, engine):
    x = np.arange(32.0).reshape(8, 4)
    stages = [td.stages.FeedForward((i,), 4, 8) for i in range(2)]
    paced = {"forward": 1.0, "backward": 1.0, "engine": engine, "timeout": SECONDS}
    return td.run_schedule(td.schedule("1f1b", 2, 8), stages, x, cluster, target=x, **paced)


def of_files(cluster, folder, **options):
    a = td.open_array(folder / "a.npy")
    return td.matmul(a, a, out=folder / "c.npy", cluster=cluster, timeout=SECONDS, **options)


def trained(cluster):
    mesh = td.Mesh(cluster, (1, 2, 1))
    return td.train(GPT, Slow(), mesh, steps=2000, batch=4, timeout=SECONDS)


CALLS = {
    "matmul": lambda c, f, A: td.matmul(A, A, panel=50, timeout=SECONDS, **SLOWLY),
    "files": lambda c, f, A: of_files(c, f, **SLOWLY),
    "train": lambda c, f, A: trained(c),
    "loop": lambda c, f, A: scheduled(c, "loop"),
    "tasks": lambda c, f, A: scheduled(c, "tasks"),
    "run_ranks": lambda c, f, A: td.run_ranks(for_ever, A.mesh, timeout=SECONDS),
    "claim": lambda c, f, A: td.run_claim(
        DECODER, td.Layout(pp=2, microbatches=512), "1GB", c, sequence=64, timeout=SECONDS
    ),
    "run": lambda c, f, A: c.run(slow, timeout=SECONDS),
    "connect": lambda c, f, A: td.connect(c.client, workers=5, timeout=SECONDS),
    "gather": lambda c, f, A: c.gather([c.submit(0, slow)], "naps", SECONDS),
}
AFTER = {
    "distribute": lambda c, f, A: td.distribute(np.ones((8, 8)), A.mesh, GRID),
    "to_numpy": lambda c, f, A: td.to_numpy(A),
    "redistribute": lambda c, f, A: A.redistribute((td.Replicate(),) * 2),
    "explain": lambda c, f, A: td.explain(A, A),
    "connect again": lambda c, f, A: td.connect(c.client),
    "connect to the address": lambda c, f, A: td.connect(c.scheduler_address),
}
"""Calls that are over too soon for somebody to kill a scheduler under them."""


def lost(call):
    """The words of the ClusterLostError that a call raises."""
    with pytest.raises(ClusterLostError) as error:
        call()
    return str(error.value)


def kill(cluster, scheduler, seconds=0.0):
    """Ends the scheduler: kills it, or closes it where it is in this process."""
    time.sleep(seconds)
    if scheduler is not None:
        scheduler.kill()
    else:
        loop = cluster.given.loop.asyncio_loop
        asyncio.run_coroutine_threadsafe(cluster.given.scheduler.close(), loop)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "own"), [("matmul", False), ("run_ranks", False), ("loop", False), ("train", True)]
)
def test_a_call_ends_with_its_scheduler(tmp_path, name, own):
    """And so does every call after it."""
    np.save(tmp_path / "a.npy", np.ones((2000, 2000)))
    with started() if own else connected(tmp_path) as made, ThreadPoolExecutor() as pool:
        cluster, scheduler = made
        A = td.distribute(np.ones((2000, 2000)), td.Mesh(cluster, (1, 2)), GRID)
        td.matmul(A, A)  # rates are measured once
        killed = pool.submit(kill, cluster, scheduler, 1.0)
        lost(lambda: CALLS[name](cluster, tmp_path, A))
        killed.result()
        words = lost(lambda: td.to_numpy(A))
        assert "td.matmul(a, b, out=, cluster=), or td.train(" in words
        for other, call in (CALLS | AFTER).items():
            again = lost(lambda call=call: call(cluster, tmp_path, A))
            assert "connect" in other or again == words
        cluster.close()


def in_a_child(calls):
    """What these calls raised in a forked child, before one of them can have come to its end."""
    read, write = os.pipe()
    if not (child := os.fork()):
        signal.alarm(int(SECONDS) - 20)
        for name, call in calls.items():
            said = "nothing"
            with contextlib.suppress(BaseException):
                try:
                    call()
                except BaseException as error:
                    said = f"{type(error).__name__} {error}"
            os.write(write, f"{name}: {said}\n".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        lines = said.read().splitlines()
    os.waitpid(child, 0)
    return lines


def test_a_forked_child_is_told_at_once_that_the_cluster_is_its_parents(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((20, 20)))
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        A = td.distribute(np.ones((20, 20)), td.Mesh(cluster, (1, 2)), GRID)
        td.matmul(A, A)
        every = {n: c for n, c in (CALLS | AFTER).items() if n != "connect to the address"}
        for name, call in every.items():
            every[name] = functools.partial(call, cluster, tmp_path, A)
        lines = in_a_child(every)
        assert len(lines) == len(every)
        for line in lines:
            assert ": ClusterLostError the cl" in line
            assert f"is process {os.getpid()}'s" in line or "connect" in line
            assert "forked from it" in line
        assert cluster.run(abs, -1) == [1, 1]
        again = {"connect": lambda: print(td.connect(cluster.scheduler_address).run(abs, -1))}
        assert in_a_child(again) == ["connect: nothing"]
