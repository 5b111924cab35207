"""What other processes took of the cores: counted, theirs and ours told apart."""

import subprocess
import sys
import threading
import time

import pytest
from oracles.waiting import wait_until

from tiledask.distributed.cluster import load
from tiledask.distributed.cluster.load import CpuSeconds, Load, measuring_load

BURN = "import time\nwhile time.process_time() < {}: pass\n"
"""A process that takes so many seconds of a core, however long that takes."""
DETACHED = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}])"
"""One that starts it and is gone, so that it is nobody's child any more."""


@pytest.mark.parametrize(
    ("wanted", "others", "high"),
    [
        (12.0, 1.9, True),  # ten others on two cores, and workers that mostly sleep
        (4.5, 0.6, True),  # both want more than there is
        (4.5, 0.1, False),  # the run itself fills the machine
        (1.4, 1.0, False),  # somebody has a core, and there is another
        (0.0, 0.0, False),
    ],
)
def test_load_is_high_if_more_want_cores_than_there_are_and_others_have_them(wanted, others, high):
    assert Load(wanted, others, 2).is_high is high
    assert Load(4 * wanted, 4 * others, 8).is_high is high


def test_load_is_what_was_counted_while_the_block_ran(monkeypatch):
    counts = iter(
        [
            CpuSeconds(10.0, 2, 100.0, 30.0),
            CpuSeconds(14.0, 2, 107.0, 31.0),
            CpuSeconds(15.0, 2, 100.5, 31.0),  # of coarse counters, ours ahead of all
        ]
    )
    looked = threading.Event()
    want = iter([3.0, 5.0])

    def wanted() -> float:
        if (number := next(want, 4.0)) != 3.0:
            looked.set()
        return number

    monkeypatch.setattr(load, "cpu_seconds", lambda: next(counts))
    monkeypatch.setattr(load, "_wanted", wanted)
    with measuring_load() as so_far:
        assert looked.wait(240)  # not at the beginning alone
        assert so_far() == Load(wanted=4.0, others=1.5, cores=2)
        assert so_far().others == 0
    assert "load" not in {thread.name for thread in threading.enumerate()}


def test_the_system_says_who_wants_a_core():
    burning = subprocess.Popen([sys.executable, "-c", BURN.format(60)])
    try:
        wait_until(lambda: load._wanted() >= 1, "somebody who wants a core")
    finally:
        burning.kill()
        burning.wait()


def test_what_this_process_has_started_is_ours_and_what_left_it_is_not():
    before = load.cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN.format(0.7)], check=True)
    assert load.cpu_seconds().ours - before.ours >= 0.6  # it has ended, and still counts

    before, mine = load.cpu_seconds(), time.process_time()
    subprocess.run([sys.executable, "-c", DETACHED.format(BURN.format(2.0))], check=True)

    def theirs() -> float:
        now = load.cpu_seconds()
        return now.busy - before.busy - (now.ours - before.ours)

    wait_until(lambda: theirs() >= 1.9, "somebody else's work")
    # to start two processes is ours, but not what the second does
    assert load.cpu_seconds().ours - before.ours - (time.process_time() - mine) < 1.8
