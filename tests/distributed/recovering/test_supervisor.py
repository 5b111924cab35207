"""A slot has a worker again, whatever ended or was stopped; and who is busy is left alone."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from distributed import Status
from oracles.waiting import wait_until

import tiledask as td
from tiledask.distributed.cluster.forkserver import ForkingNanny
from tiledask.distributed.recovering import supervisor
from tiledask.distributed.recovering.frozen import process_state

SHARDS = (td.Shard(0), td.Shard(1))


def test_the_kernel_says_who_is_stopped():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = process_state(child.pid).started
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(child.pid).status == "stopped")
        child.send_signal(signal.SIGCONT)
        wait_until(lambda: process_state(child.pid).status in ("running", "sleeping"))
        assert process_state(child.pid).started == started
    finally:
        child.kill()
        child.wait()
    assert process_state(child.pid) is None


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(workers=2, device="cpu", quiet=True) as running:
        yield running


def pids(cluster):
    return {slot: worker["pid"] for slot, worker in enumerate(cluster.run(process))}


def process():
    return {"pid": os.getpid()}


def wait_until_back(cluster, slot, before):
    """Until the slot has another worker that answers."""
    wait_until(lambda: pids_now(cluster).get(slot, before) != before)
    cluster.wait_for_slots([0, 1], 240)


def pids_now(cluster):
    found = {}
    for slot, nanny in list(cluster.dask_cluster.workers.items()):
        process = getattr(getattr(nanny, "process", None), "process", None)
        if getattr(process, "pid", None):
            found[slot] = process.pid
    return found


@pytest.mark.cluster
def test_a_slot_without_a_nanny_is_filled_again(cluster):
    before = pids(cluster)[1]
    cluster.client.retire_workers([cluster.address(1)])
    wait_until_back(cluster, 1, before)
    assert pids(cluster)[1] != before


@pytest.mark.cluster
def test_no_work_begins_on_a_worker_that_goes_with_its_nanny(cluster):
    dask_cluster = cluster.dask_cluster
    nanny = dask_cluster.workers[1]
    dask_cluster.loop.add_callback(nanny.close_gracefully)
    wait_until(lambda: nanny.status in supervisor.ENDED)
    assert cluster.wait_for_slots([1], 240)[1]["nanny"] != nanny.address_safe


@pytest.mark.cluster
def test_a_nanny_that_does_not_close_leaves_no_connection(cluster, monkeypatch):
    """As one whose worker ended while it started, and says nothing any more."""

    async def in_vain(*_, **__):
        raise TimeoutError("the worker does not end")

    dask_cluster = cluster.dask_cluster
    nanny, before = dask_cluster.workers[1], pids(cluster)[1]
    monkeypatch.setattr(nanny, "kill", in_vain)
    assert nanny.rpc.open > 0
    dask_cluster.sync(supervisor.close_quietly, nanny)
    assert (nanny.rpc.open, nanny.process, nanny.status) == (0, None, Status.closed)
    wait_until_back(cluster, 1, before)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_starts_does_not_outlive_its_nanny(cluster):
    first = pids(cluster)[1]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: pids_now(cluster).get(1, first) != first)
    stopped = pids_now(cluster)[1]
    os.kill(stopped, signal.SIGSTOP)
    closing = threading.Thread(
        target=cluster.dask_cluster.sync, args=(cluster.dask_cluster.workers[1].close,)
    )
    closing.start()
    wait_until_back(cluster, 1, stopped)
    closing.join(240)
    assert not closing.is_alive()
    assert process_state(stopped) is None


@pytest.mark.cluster
def test_a_product_goes_on_when_its_worker_is_frozen(cluster, caplog):
    mesh = td.Mesh(cluster, (1, 2))
    a, b = (np.random.default_rng(n).standard_normal((300, 200)) for n in range(2))
    b = b.T.copy()
    A, B = (td.distribute(x, mesh, SHARDS) for x in (a, b))
    right = td.to_numpy(A @ B)
    frozen = pids(cluster)[1]
    begun = time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    with caplog.at_level(logging.WARNING):
        again = td.to_numpy(td.matmul(A, B, timeout=240))
    took = time.monotonic() - begun
    assert (again == right).all()
    assert took > 3  # 3.5 on a quiet machine
    assert f"slot 1 (process {frozen}) was stopped" in caplog.text


@pytest.mark.slow
@pytest.mark.cluster
def test_who_keeps_the_interpreter_or_is_stopped_for_a_moment_is_left_alone(cluster):
    before = pids(cluster)
    busy = cluster.submit(0, keep_the_lock, 4.5)
    os.kill(before[1], signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(before[1], signal.SIGCONT)
    cluster.gather([busy], "a long call")
    assert pids(cluster) == before


def keep_the_lock(seconds):
    """Calls that let no other thread of the process run, for about so long."""
    end, n = time.monotonic() + seconds, 200_000
    while time.monotonic() < end:
        3**n


@pytest.mark.slow
@pytest.mark.cluster
def test_a_watcher_that_was_away_forgets_what_it_saw(cluster, monkeypatch):
    """As after Ctrl-Z, which stops the client and its workers alike."""
    watcher, before = cluster._supervisor, pids(cluster)
    looked = []
    monkeypatch.setattr(supervisor, "monotonic", lambda: time.monotonic() + 100 * len(looked))
    os.kill(before[1], signal.SIGSTOP)
    time.sleep(2.0)
    looked.append(1)  # 100 s later: the first look after being away
    time.sleep(1.0)
    os.kill(before[1], signal.SIGCONT)
    assert watcher._cluster() is cluster.dask_cluster
    assert pids(cluster) == before


@pytest.mark.cluster
def test_a_worker_that_dies_while_it_starts_is_started_again(monkeypatch):
    started = []
    instantiate = ForkingNanny.instantiate

    async def dying(nanny):
        started.append(nanny.name)
        if started.count(nanny.name) == 1 and nanny.name == 1:
            raise RuntimeError("it ended while it started")
        return await instantiate(nanny)

    monkeypatch.setattr(ForkingNanny, "instantiate", dying)
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        assert started.count(1) == 2
        assert len(pids(cluster)) == 2
