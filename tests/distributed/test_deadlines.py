"""Every public call that waits for a cluster ends with its timeout, and says for whom it waited."""

import os
import signal
import sys
import time
import weakref

import numpy as np
import pytest
from distributed import Reschedule
from oracles.waiting import wait_until

import tiledask as td
from tiledask.distributed.arrays import recompute
from tiledask.distributed.deadlines import GRACE, LAST, bounded, keep_interrupts, left_of, until
from tiledask.errors import DeadlineError

GRID = (td.Shard(0), td.Shard(1))
SECONDS = 2.0
INNER = 40.0
"""Less than what the waits within a call may take that know nothing of its timeout: 60 s."""


def test_calls_within_a_call_only_shorten_it():
    with until(1.0, GRACE), until(5.0):
        for given, seconds, said in ((300.0, 1.0 + GRACE, 1.0), (0.3, 0.3, 0.3)):
            left = left_of(given)
            assert (left.seconds, left.said) == (pytest.approx(seconds, abs=0.1), said)
        with until(0.05):
            assert LAST - 0.1 < left_of(300.0).seconds <= LAST
            assert (left_of(300.0).said, left_of(0.01).said) == (0.05, 0.01)
    assert left_of(300.0).said == 300.0


def test_a_timeout_is_found_wherever_it_stands():
    @bounded
    def call(what, timeout=None, *, more=1):
        """Words."""
        return left_of(300.0).said

    assert call("x") == 300.0
    assert call("x", 4) == call("x", timeout=4, more=2) == 4
    assert call.__doc__ == "Words."
    with pytest.raises(ValueError, match="a timeout is a number of seconds above 0, got -1"):
        call("x", -1)


def test_an_interrupt_that_falls_into_a_destructor_comes_again(monkeypatch):
    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    keep_interrupts()
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


CALLS = {
    "run": lambda A, end: A.mesh.cluster.run(os.getpid, timeout=end),
    "distribute": lambda A, end: td.distribute(np.ones((8, 4)), A.mesh, GRID, timeout=end),
    "to_numpy": lambda A, end: td.to_numpy(A, timeout=end),
    "redistribute": lambda A, end: A.redistribute((td.Replicate(),) * 2, timeout=end),
    "run_ranks": lambda A, end: td.run_ranks(summed, A.mesh, timeout=end),
}


def summed(rank):
    return rank.group().all_reduce(np.ones(3))


@pytest.mark.cluster
@pytest.mark.few(2)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_finds_a_slot_frozen_ends_in_time_and_names_it(cluster, name):
    """Products, schedules, trainings and claims are tried in tests/faults."""
    A = td.distribute(np.ones((64, 64)), td.Mesh(cluster, (1, 2)), GRID)
    frozen, begun = cluster.run(os.getpid)[1], time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match=r"slot 1 \(its worker was last heard") as caught:
            CALLS[name](A, SECONDS)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert f" {SECONDS:g} s" in str(caught.value)
    assert time.monotonic() - begun - SECONDS < INNER  # 0.3 on a quiet machine
    CALLS[name](A, 240)  # nothing of it is left


def stands_aside(key, slot):
    """Asks for a part of a block, as a task that is cancelled right after; the worker keeps what
    it raised."""
    step, recompute._STEP = recompute._STEP, 0.0
    try:
        recompute.recovered("cancelled", [(key, slot, ((0, 2), (0, 2)))])
    except Reschedule as error:
        sys.kept_by_a_test = error
        time.sleep(0.5)  # until the scheduler has heard of it
        return "stood aside"
    finally:
        recompute._STEP = step


@pytest.mark.cluster
def test_what_a_cancelled_task_asked_for_is_let_go(cluster):
    def asked(dask_scheduler):
        return [key for key in dask_scheduler.tasks if str(key).startswith("lost_part")]

    array = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (2,)), [td.Shard(0)])
    task = cluster.submit(1, stands_aside, array.blocks[0].key, 0)
    assert cluster.wait([task], "a task") is None
    assert task.result() == "stood aside"
    wait_until(lambda: not cluster.client.run_on_scheduler(asked), "what it asked for to go")
