"""A scheduler that is killed ends every call that waits for its cluster, in two seconds.

Products, schedules, trainings and claims that lose it, and go on elsewhere, are in tests/faults.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
from twins.by_hand import ByHand

import tiledask as td
from tiledask.errors import ClusterLostError
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.cluster

GRID = (td.Shard(0), td.Shard(1))
TEXT = load_text("tales")
GPT = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
SCHEDULE = td.schedule("1f1b", 2, 4)
SECONDS = 240.0
END = {"timeout": SECONDS}
"""Of every call; it ends long before, or with another error."""


def slow(*_):
    time.sleep(SECONDS)


def for_ever(rank):
    while True:
        rank.group().all_reduce(np.ones(3))


def of_files(cluster, folder):
    np.save(folder / "a.npy", np.ones((20, 20)))
    a = td.open_array(folder / "a.npy")
    return td.matmul(a, a, out=folder / "c.npy", cluster=cluster, **END)


CALLS = {
    "matmul": lambda c, f, A: td.matmul(A, A, panel=50, kernel="tiled", tile=16, **END),
    "run_ranks": lambda c, f, A: td.run_ranks(for_ever, A.mesh, **END),
    "run": lambda c, f, A: c.run(slow, **END),
    "gather": lambda c, f, A: c.gather([c.submit(0, slow)], "naps", SECONDS),
    "connect": lambda c, f, A: td.connect(c.client, workers=5, **END),
    # over too soon for somebody to kill a scheduler under them
    "files": lambda c, f, A: of_files(c, f),
    "train": lambda c, f, A: td.train(GPT, TEXT, td.Mesh(c, (1, 2, 1)), steps=1, batch=4, **END),
    "loop": lambda c, f, A: td.run_schedule(SCHEDULE, cluster=c, engine="loop", **END),
    "tasks": lambda c, f, A: td.run_schedule(SCHEDULE, cluster=c, engine="tasks", **END),
    "claim": lambda c, f, A: td.run_claim(10**6, td.Layout(dp=2), "1GB", c, **END),
    "distribute": lambda c, f, A: td.distribute(np.ones((8, 8)), A.mesh, GRID),
    "to_numpy": lambda c, f, A: td.to_numpy(A),
    "redistribute": lambda c, f, A: A.redistribute((td.Replicate(),) * 2),
    "explain": lambda c, f, A: td.explain(A, A),
    "connect again": lambda c, f, A: td.connect(c.client),
    "connect to the address": lambda c, f, A: td.connect(c.scheduler_address),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matmul", "run_ranks", "run", "gather", "connect"])
def test_a_call_ends_with_its_scheduler_and_so_does_every_call_after_it(tmp_path, name):
    with ByHand(tmp_path) as dask:
        dask.scheduler()
        for _ in range(2):
            dask.worker("--no-nanny", "--death-timeout", "10")
        with td.connect(dask.address, workers=2, timeout=240) as cluster:
            A = td.distribute(np.ones((2000, 2000)), td.Mesh(cluster, (1, 2)), GRID)
            td.matmul(A, A)  # rates are measured once
            killing = threading.Timer(1.0, dask.running[0].kill)
            killing.start()
            with pytest.raises(ClusterLostError):
                CALLS[name](cluster, tmp_path, A)
            killing.join()
            for other, call in CALLS.items():
                with pytest.raises(ClusterLostError) as lost:
                    call(cluster, tmp_path, A)
                goes_on = "td.matmul(a, b, out=, cluster=), or td.train("
                assert "connect" in other or goes_on in str(lost.value)


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
