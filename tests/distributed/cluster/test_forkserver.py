"""Forked workers are what spawned ones would be, sooner, and none outlives its client."""

import contextlib
import os
import signal
import subprocess
import sys

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


STARTS = """
import os, time
import tiledask as td
cluster = td.start_cluster(2, device="cpu", quiet=True)
print(*cluster.run(os.getpid), *set(cluster.run(os.getppid)), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_outlives_a_client_that_is_killed():
    """Started without a file or a main guard: its workers, and the server that forks them."""
    asked, env = [sys.executable, "-c", STARTS], {"TILEDASK_DASHBOARD_PORT": "none"}
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, env=os.environ | env) as client:
        processes = [psutil.Process(int(pid)) for pid in client.stdout.readline().split()]
        client.kill()
    assert len(processes) == 3
    wait_until(lambda: all(map(has_ended, processes)))
