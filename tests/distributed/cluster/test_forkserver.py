"""Forked workers are what spawned ones would be, sooner, and nothing outlives its client."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
from oracles.waiting import wait_until
from threadpoolctl import threadpool_info

import tiledask as td
from tiledask.distributed.cluster.spool import open_spool

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
print(*cluster.run(os.getpid), *set(cluster.run(os.getppid)), cluster.spool, flush=True)
time.sleep(600)
"""


def test_nothing_outlives_a_client_that_is_killed(tmp_path, monkeypatch):
    """Started without a file or a main guard: its workers, the server that forks them, and once
    somebody needs a folder there its own."""
    env = {"TILEDASK_DASHBOARD_PORT": "none", "TMPDIR": str(tmp_path)}
    asked = [sys.executable, "-c", STARTS]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, env=os.environ | env) as client:
        *pids, dead = client.stdout.readline().split()
        processes = [psutil.Process(int(pid)) for pid in pids]
        assert os.listdir(Path(dead).parent)
        client.kill()
    assert len(processes) == 3
    wait_until(lambda: all(map(has_ended, processes)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, remove = open_spool(owner := mock.Mock())
    assert (folder.parent, folder.stat().st_mode & 0o777) == (Path(dead).parent, 0o700)
    assert not Path(dead).exists()
    if not (child := os.fork()):  # which has the owner, too, and removes nothing
        del owner
        os._exit(0)
    os.waitpid(child, 0)
    (folder / "array.npy").touch()
    remove()
    assert not folder.exists()
