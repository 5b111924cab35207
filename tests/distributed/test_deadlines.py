"""Every public call that waits for a cluster ends: with its timeout, saying for whom it waited, and
in two seconds with its scheduler.

Products, schedules, trainings and claims that go on elsewhere are in tests/faults.
"""

import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from oracles.waiting import wait_until
from twins.by_hand import ByHand

import tiledask as td
from tiledask.distributed.deadlines import GRACE, bounded, end_of, keep_interrupts, until
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.tile.datasets import load_text

GRID = (td.Shard(0), td.Shard(1))
SECONDS, LONG = 2.0, 240.0
INNER = 40.0
"""Less than what the waits within a call may take that know nothing of its timeout: 60 s."""


def left_of(seconds):
    return pytest.approx(end_of(seconds) - time.monotonic(), abs=0.1)


def test_calls_within_a_call_only_shorten_it():
    with until(1.0, GRACE), until(5.0):
        assert (left_of(300.0), left_of(0.3)) == (1.0 + GRACE, 0.3)
        with until(0.05):
            assert left_of(300.0) == GRACE
    assert left_of(300.0) == 300.0


def test_a_timeout_is_found_wherever_it_stands():
    @bounded
    def call(what, timeout=None, *, more=1):
        """Words."""
        return left_of(300.0)

    assert call("x") == 300.0
    assert [call("x", 4), call("x", timeout=4, more=2)] == [4 + GRACE] * 2
    assert call.__doc__ == "Words."
    with pytest.raises(ValueError, match="a timeout is a number of seconds above 0, got -1"):
        call("x", -1)


def test_an_interrupt_that_falls_into_a_destructor_comes_again(monkeypatch):
    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    keep_interrupts.cache_clear()
    keep_interrupts()
    dropped = [Dropped()]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_until(dropped.clear)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_call_keeps_nothing_though_its_traceback_is_kept():
    class Block:
        """What a product leaves."""

    @bounded
    def call(array, timeout=None):
        made = Block()
        blocks.append(weakref.ref(made))
        raise KeyboardInterrupt

    for timeout in (None, 5.0):
        array = Block()
        blocks = [weakref.ref(array)]
        with pytest.raises(KeyboardInterrupt) as kept:
            call(array, timeout)
        del array
        assert [block() for block in blocks] == [None, None], kept.tb


def slow(*_):
    time.sleep(LONG)


def summed(rank):
    return rank.group().all_reduce(np.ones(3))


def of_files(cluster, folder, end):
    np.save(folder / "a.npy", np.ones((20, 20)))
    a = td.open_array(folder / "a.npy")
    return td.matmul(a, a, out=folder / "c.npy", cluster=cluster, timeout=end)


TEXT = load_text("tales")
GPT = td.GPT(TEXT.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
SCHEDULE, WHOLE = td.schedule("1f1b", 2, 4), (td.Replicate(),) * 2
SLOWLY = {"kernel": "tiled", "tile": 16, "panel": 50}
TRAINING = {"steps": 1, "batch": 4, "progress": False}
CALLS = {
    "run": lambda c, A, f, end: c.run(os.getpid, timeout=end),
    "distribute": lambda c, A, f, end: td.distribute(np.ones((8, 4)), A.mesh, GRID, timeout=end),
    "to_numpy": lambda c, A, f, end: td.to_numpy(A, timeout=end),
    "redistribute": lambda c, A, f, end: td.redistribute(A, WHOLE, timeout=end),
    "run_ranks": lambda c, A, f, end: td.run_ranks(summed, A.mesh, timeout=end),
    "matmul": lambda c, A, f, end: td.matmul(A, A, timeout=end, **SLOWLY),
    "slow": lambda c, A, f, end: c.run(slow, timeout=end),
    "gather": lambda c, A, f, end: c.gather([c.submit(0, slow)], "naps", end),
    "connect": lambda c, A, f, end: td.connect(c.client, workers=5, timeout=end),
    "files": lambda c, A, f, end: of_files(c, f, end),
    "train": lambda c, A, f, end: td.train(
        GPT, TEXT, td.Mesh(c, (1, 2, 1)), timeout=end, **TRAINING
    ),
    "loop": lambda c, A, f, end: td.run_schedule(SCHEDULE, cluster=c, engine="loop", timeout=end),
    "tasks": lambda c, A, f, end: td.run_schedule(SCHEDULE, cluster=c, engine="tasks", timeout=end),
    "claim": lambda c, A, f, end: td.run_claim(10**6, td.Layout(dp=2), "1GB", c, timeout=end),
    "explain": lambda c, A, f, end: td.explain(A, A),
    "connect again": lambda c, A, f, end: td.connect(c.client),
    "connect to the address": lambda c, A, f, end: td.connect(c.scheduler_address),
}


@pytest.mark.cluster
@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*CALLS][:5])
def test_a_call_that_finds_a_slot_frozen_ends_in_time_and_names_it(cluster, name, tmp_path):
    """Others are tried in tests/faults."""
    A = td.distribute(np.ones((64, 64)), td.Mesh(cluster, (1, 2)), GRID)
    frozen, begun = cluster.run(os.getpid)[1], time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match=r"slot 1 \(its worker was last heard"):
            CALLS[name](cluster, A, tmp_path, SECONDS)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert time.monotonic() - begun - SECONDS < INNER  # 0.3 on a quiet machine
    CALLS[name](cluster, A, tmp_path, LONG)  # nothing of it is left


@pytest.mark.cluster
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["matmul", "slow", "gather"])
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
                CALLS[name](cluster, A, tmp_path, LONG)
            killing.join()
            for other, call in CALLS.items():
                with pytest.raises(ClusterLostError) as lost:
                    call(cluster, A, tmp_path, LONG)
                goes_on = "td.matmul(a, b, out=, cluster=), or td.train("
                assert other == "connect to the address" or goes_on in str(lost.value)
