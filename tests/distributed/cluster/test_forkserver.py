"""Forked workers are what spawned ones would be, sooner, and none outlives its client."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from oracles.waiting import wait_until
from threadpoolctl import threadpool_info

import tiledask as td

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone"),
]

QUIET = {"device": "cpu", "quiet": True}


def has_ended(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def variables(*names):
    return [os.environ.get(name) for name in names]


def blas_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    return {library["num_threads"] for library in threadpool_info()}


def test_two_clusters_at_once_have_their_own_blas_threads_and_environments(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    with td.start_cluster(1, **QUIET) as one:
        monkeypatch.setenv("TILEDASK_OF_THIS_TEST", "new")
        with td.start_cluster(1, **QUIET, threads=2) as two:
            both = min(2, len(os.sched_getaffinity(0)))  # BLAS takes no more than there are cores
            assert (one.run(blas_threads), two.run(blas_threads)) == ([{1}], [{both}])
            names = "TILEDASK_OF_THIS_TEST", "OPENBLAS_NUM_THREADS"
            assert one.run(variables, *names) == [[None, "1"]]
            assert two.run(variables, *names) == [["new", "2"]]
            assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
            (pid,) = two.run(os.getpid)
            os.kill(pid, signal.SIGKILL)  # the one that replaces it has the same
            wait_until(lambda: two.run(os.getpid) != [pid])
            assert two.run(blas_threads) == [{both}]
            assert two.run(variables, *names) == [["new", "2"]]


def test_the_import_path_is_the_clients(tmp_path, monkeypatch):
    (tmp_path / "of_this_test.py").write_text("number = 7\n")
    with td.start_cluster(1, **QUIET):
        monkeypatch.syspath_prepend(tmp_path)
        with td.start_cluster(1, **QUIET) as second:
            path = second.run(lambda: __import__("sys").path)[0]
            assert str(tmp_path) in path
            assert second.run(lambda: __import__("of_this_test").number) == [7]


STARTS = """
import os, signal, time
import tiledask as td
signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background of a shell
cluster = td.start_cluster(2, device="cpu", quiet=True)
naps = [cluster.submit(i % 2, time.sleep, 0.5) for i in range(1000)]
try:
    print(*cluster.run(os.getpid), *set(cluster.run(os.getppid)), flush=True)
    cluster.wait(naps, "naps", cancel=True, timeout=500)
except KeyboardInterrupt:
    print(*cluster.run(os.getpid), *set(cluster.run(os.getppid)), flush=True)
    print(*cluster.gather([cluster.submit(i, abs, -i) for i in range(2)], "others", 240))
    cluster.close()
"""


@pytest.fixture
def client():
    """(a process that started a cluster without a file or a main guard, its workers and server)."""
    asked, pipe = [sys.executable, "-c", STARTS], subprocess.PIPE
    env = os.environ | {"TILEDASK_DASHBOARD_PORT": "none"}
    with subprocess.Popen(
        asked, stdout=pipe, text=True, start_new_session=True, env=env
    ) as process:
        yield process, [int(pid) for pid in process.stdout.readline().split()]
        process.kill()


@pytest.mark.slow
def test_nothing_outlives_a_client_that_is_killed(client):
    process, pids = client
    processes = [psutil.Process(pid) for pid in pids]
    process.kill()
    assert len(pids) == 3
    wait_until(lambda: all(map(has_ended, processes)))


def test_ctrl_c_reaches_the_whole_group_and_ends_the_clients_wait_alone(client):
    process, pids = client
    time.sleep(0.5)  # into the wait
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=240)
    assert [*map(int, said.split())] == [*pids, 0, 1]
    assert process.returncode == 0
    server = pids[-1]
    wait_until(lambda: not psutil.pid_exists(server) or has_ended(psutil.Process(server)))
