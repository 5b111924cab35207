"""Workers that somebody else started are watched by a process beside each: who is frozen is ended.

Holds `tiledask.distributed.recovering.frozen`.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.recovering import frozen
from tiledask.errors import DeadlineError


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with dask_by_hand(tmp_path_factory.mktemp("dask"), 2, "--nanny") as started:
        yield started


@pytest.fixture(scope="module")
def cluster(dask):
    with td.connect(dask.address, workers=2, timeout=240) as running:
        yield running
        mine = {each for pid in pids(running) for each in watching(pid)}
        assert len(mine) == 2
    wait_until(lambda: not mine & watchers(), "the watchers' end")


def pids(cluster):
    return [said["pid"] for said in cluster.run(on_worker.machine, timeout=240)]


def watchers():
    """Processes that watch workers, of any cluster on this machine."""
    found = set()
    for process in psutil.process_iter():
        try:
            if any("frozen.py" in word for word in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            pass
    return found


class Freezing:
    """Stops a process at once or later, and knows after how long it was ended."""

    def __init__(self, pid, after=0.0):
        self.took = None
        self._thread = threading.Thread(target=self._run, args=(pid, after))
        self._thread.start()

    def _run(self, pid, after):
        time.sleep(after)
        begun = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: ended(pid), "its end")
        self.took = time.monotonic() - begun

    def seconds(self):
        self._thread.join()
        return self.took


def ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


@pytest.mark.cluster
def test_a_product_goes_on_when_its_worker_is_frozen(cluster):
    mesh = td.Mesh(cluster, (1, 2))
    a, b = (np.random.default_rng(n).standard_normal((300, 300)) for n in range(2))
    A, B = (td.distribute(x, mesh, (td.Shard(0), td.Shard(1))) for x in (a, b))
    right = td.to_numpy(A @ B)
    freezing = Freezing(pids(cluster)[1])
    again = td.to_numpy(td.matmul(A, B, timeout=240))
    assert freezing.seconds() >= 3  # 3.3 on a quiet machine
    assert (again == right).all()


@pytest.mark.cluster
@pytest.mark.slow
def test_ctrl_z_of_who_runs_the_workers_is_no_freeze(cluster):
    pid = pids(cluster)[1]
    both = psutil.Process(pid).ppid(), pid
    try:
        for each in both:
            os.kill(each, signal.SIGSTOP)
        time.sleep(6)
    finally:
        for each in both:
            os.kill(each, signal.SIGCONT)
    time.sleep(1)
    assert pids(cluster)[1] == pid


@pytest.mark.cluster
def test_nobody_is_asked_where_a_worker_was(cluster):
    """Dask would try to connect there for half a minute."""
    pid = pids(cluster)[1]
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    begun = time.monotonic()
    assert pids(cluster)[1] != pid
    assert time.monotonic() - begun < 25  # 1 on a quiet machine


@pytest.mark.cluster
@pytest.mark.slow
def test_nobody_watches_a_worker_without_a_nanny_and_the_error_says_so(tmp_path):
    with (
        dask_by_hand(tmp_path, 1, "--no-nanny") as dask,
        td.connect(dask.address, workers=1, timeout=240) as cluster,
    ):
        (pid,) = pids(cluster)
        assert not watching(pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineError, match=r"slot 0 .* it has no nanny: if it is frozen"):
                cluster.run(on_worker.machine, timeout=4.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert pids(cluster) == [pid]


def watching(pid):
    """Processes that watch the worker ``pid``."""
    return [each for each in watchers() if str(pid) in psutil.Process(each).cmdline()]


@pytest.mark.cluster
@pytest.mark.slow
def test_each_thread_is_watched_and_nobody_after_the_end(tmp_path):
    with dask_by_hand(tmp_path, 1, "--nanny", "--nthreads", "2") as dask:
        with td.connect(dask.address, workers=2, slots="thread", timeout=240) as cluster:
            mine = [watching(pid) for pid in pids(cluster)]
            assert [len(each) for each in mine] == [1, 1]
            beside = next(p for p in pids(cluster) if len(psutil.Process(p).children()) < 2)
            assert Freezing(beside).seconds() >= 3
            cluster.wait_for_slots([0, 1], 240)
            before = {watcher for pid in pids(cluster) for watcher in watching(pid)}
            assert len(before) == 2
        wait_until(lambda: not before & watchers(), "their end")


@pytest.fixture
def sleeper():
    """A process that sleeps, and a process that watches it."""
    code = (
        "from tiledask.distributed.recovering.frozen import watcher; import os, time; "
        "print(watcher(os.getpid(), '').pid, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    watcher = int(child.stdout.readline())
    yield child, watcher
    child.kill()
    child.communicate()
    wait_until(lambda: ended(watcher), "the watcher's end")


def test_a_watcher_ends_with_who_it_watches(sleeper):
    child, watcher = sleeper
    assert os.getsid(watcher) == watcher != os.getsid(child.pid)
    child.kill()
    wait_until(lambda: ended(watcher), "its end")


@pytest.mark.parametrize("stopped", ["for a moment", "for good"])
def test_who_is_stopped_for_a_moment_is_left_alone(sleeper, stopped):
    child, watcher = sleeper
    os.kill(child.pid, signal.SIGSTOP)
    if stopped == "for good":
        child.wait(240)
        assert child.returncode == -signal.SIGKILL
        return
    time.sleep(1.5)
    os.kill(child.pid, signal.SIGCONT)
    time.sleep(frozen.PATIENCE)
    assert child.poll() is None
    assert not ended(watcher)


def test_who_looks_late_forgets():
    """As after Ctrl-Z, which stops who looks as well."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watching, now = frozen.Frozen(), 1000.0
    try:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: frozen.process_state(child.pid).status == "stopped")
        for look in range(11):
            watching.late(now + look * frozen.LOOK)
            assert not watching.among([child.pid], now + look * frozen.LOOK)
        now += 100
        assert watching.late(now)
        for look in range(12):
            watching.late(now + look * frozen.LOOK)
            assert not watching.among([child.pid], now + look * frozen.LOOK)
        assert watching.among([child.pid], now + 3.0) == {child.pid: 3.0}
    finally:
        child.kill()
        child.wait()
