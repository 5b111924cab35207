"""A scheduler that is killed ends every call that waits for its cluster, in two seconds.

What a call had recorded in files, the same call on another cluster goes on from.
"""

import contextlib
import os
import signal
import threading
import time

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
END = {"timeout": SECONDS}
SLOWLY = {"kernel": "tiled", "tile": 16, **END}
LONG = td.Layout(pp=2, microbatches=512)


@contextlib.contextmanager
def connected(folder):
    """A cluster on a scheduler and two workers that were started by hand, and the scheduler."""
    with ByHand(folder) as dask:
        dask.scheduler()
        for _ in range(2):
            dask.worker("--no-nanny", "--death-timeout", "10")
        with td.connect(dask.address, workers=2, timeout=240) as cluster:
            yield cluster, dask.running[0]


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
    paced = {"forward": 1.0, "backward": 1.0, "engine": engine, **END}
    return td.run_schedule(td.schedule("1f1b", 2, 8), stages, x, cluster, target=x, **paced)


def of_files(cluster, folder):
    a = td.open_array(folder / "a.npy")
    return td.matmul(a, a, out=folder / "c.npy", cluster=cluster, **SLOWLY)


def trained(cluster):
    return td.train(GPT, Slow(), td.Mesh(cluster, (1, 2, 1)), steps=2000, batch=4, **END)


CALLS = {
    "matmul": lambda c, f, A: td.matmul(A, A, panel=50, **SLOWLY),
    "files": lambda c, f, A: of_files(c, f),
    "train": lambda c, f, A: trained(c),
    "loop": lambda c, f, A: scheduled(c, "loop"),
    "tasks": lambda c, f, A: scheduled(c, "tasks"),
    "run_ranks": lambda c, f, A: td.run_ranks(for_ever, A.mesh, **END),
    "claim": lambda c, f, A: td.run_claim(DECODER, LONG, "1GB", c, sequence=64, **END),
    "run": lambda c, f, A: c.run(slow, **END),
    "connect": lambda c, f, A: td.connect(c.client, workers=5, **END),
    "gather": lambda c, f, A: c.gather([c.submit(0, slow)], "naps", SECONDS),
    # over too soon for somebody to kill a scheduler under them
    "distribute": lambda c, f, A: td.distribute(np.ones((8, 8)), A.mesh, GRID),
    "to_numpy": lambda c, f, A: td.to_numpy(A),
    "redistribute": lambda c, f, A: A.redistribute((td.Replicate(),) * 2),
    "explain": lambda c, f, A: td.explain(A, A),
    "connect again": lambda c, f, A: td.connect(c.client),
    "connect to the address": lambda c, f, A: td.connect(c.scheduler_address),
}


def lost(call):
    """The words of the ClusterLostError that a call raises."""
    with pytest.raises(ClusterLostError) as error:
        call()
    return str(error.value)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matmul", "run_ranks", "loop", "train"])
def test_a_call_ends_with_its_scheduler(tmp_path, name):
    """And so does every call after it."""
    np.save(tmp_path / "a.npy", np.ones((2000, 2000)))
    with connected(tmp_path) as (cluster, scheduler):
        A = td.distribute(np.ones((2000, 2000)), td.Mesh(cluster, (1, 2)), GRID)
        td.matmul(A, A)  # rates are measured once
        killing = threading.Timer(1.0, scheduler.kill)
        killing.start()
        lost(lambda: CALLS[name](cluster, tmp_path, A))
        killing.join()
        words = lost(lambda: td.to_numpy(A))
        assert "td.matmul(a, b, out=, cluster=), or td.train(" in words
        for other, call in CALLS.items():
            again = lost(lambda call=call: call(cluster, tmp_path, A))
            assert "connect" in other or again == words


def in_a_child(call):
    """The words of what ``call`` raised in a forked child; empty if it came to its end."""
    read, write = os.pipe()
    if not (child := os.fork()):
        signal.alarm(int(SECONDS) - 20)
        try:
            call()
        except BaseException as error:
            os.write(write, f"{type(error).__name__} {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        words = said.read()
    os.waitpid(child, 0)
    return words


def test_a_forked_child_is_told_at_once_that_the_cluster_is_its_parents(cluster, tmp_path):
    A = td.distribute(np.ones((20, 20)), td.Mesh(cluster, (1, 2)), GRID)
    for name in ("matmul", "train", "loop", "run", "connect", "gather", "to_numpy", "explain"):
        words = in_a_child(lambda name=name: CALLS[name](cluster, tmp_path, A))
        assert words.startswith("ClusterLostError the cl"), words
        assert f"is process {os.getpid()}'s" in words or name == "connect"
        assert "forked from it" in words
    assert cluster.run(abs, -1) == [1] * 4
    assert in_a_child(lambda: td.connect(cluster.scheduler_address).run(abs, -1)) == ""
