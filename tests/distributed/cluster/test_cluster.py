"""Slots keep their work, waits end, caps hold, nothing listens off this machine.

Holds `tiledask.distributed.cluster.start` and `tiledask.distributed.cluster.slots`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import psutil
import pytest
from oracles.waiting import wait_until

import tiledask as td
from tiledask.distributed.cluster import host_memory, start
from tiledask.distributed.cluster.cluster import SCRIPT
from tiledask.errors import ClusterLostError, ConfigError, DeadlineError
from tiledask.tile import probe

pytestmark = pytest.mark.cluster


def where(dask_worker=None):
    from distributed import get_worker

    return (dask_worker or get_worker()).name


def fail():
    raise ZeroDivisionError("on purpose")


def fill_up():
    """Take all that there is, and keep it while the event loop sends and receives."""
    held = []
    with contextlib.suppress(MemoryError):
        while True:
            held.append(np.ones(host_memory.LARGE, np.uint8))
    time.sleep(1)
    return sum(block.nbytes for block in held)


def kill_worker(cluster, slot):
    """Kill the process of ``slot`` and wait until the slot has another."""
    pid = cluster.run(os.getpid)[slot]
    old = cluster.workers()[slot]["address"]
    os.kill(pid, signal.SIGKILL)

    def refilled():
        found = cluster.workers().get(slot)
        return found and found["address"] != old

    wait_until(refilled, f"another worker in slot {slot}")


def test_every_task_runs_in_its_slot(cluster):
    slots, seen = [i % cluster.slots for i in range(60)], []
    futures = [cluster.submit(slot, where, name="where") for slot in slots]
    cluster.wait(futures, "pins", progress=lambda done, of: seen.append((done, of)))
    assert seen == [(i, 60) for i in range(1, 61)]
    assert cluster.gather((future for future in futures), "pins") == slots
    assert cluster.run(where) == list(range(cluster.slots))


def test_slots_and_blocks_outlive_a_worker_that_was_killed(cluster):
    a = np.random.default_rng(1).standard_normal((37, 11))
    array = td.distribute(a, td.Mesh(cluster, (cluster.slots,)), (td.Shard(0),))
    kill_worker(cluster, 1)
    futures = [cluster.submit(slot, where) for slot in (1, 0, 1)]
    assert cluster.gather(futures, "after the kill", timeout=240) == [1, 0, 1]
    assert cluster.run(where) == list(range(cluster.slots))
    np.testing.assert_array_equal(td.to_numpy(array, timeout=240), a)


def test_a_deadline_says_what_it_waited_for_and_leaves_what_it_did_not_make(
    cluster, monkeypatch, tmp_path
):
    there = cluster.submit(1, wait_until, (tmp_path / "go on").exists, name="nap")
    answer = cluster.submit(1, abs, -7)
    words = r"the nap: 1 of 1 tasks not done .*slot 1"
    with pytest.raises(DeadlineError, match=words):
        cluster.wait([there], "the nap", timeout=0.3)
    for get in (cluster.wait, cluster.gather):
        with pytest.raises(DeadlineError):
            get([there, answer], "both", timeout=0.1)
    monkeypatch.setattr("tiledask.distributed.deadlines.DEADLINE", 0.2)
    with pytest.raises(DeadlineError, match="nap: 1 of 1 tasks not done"):
        cluster.wait([there], "nap")
    (tmp_path / "go on").touch()
    assert cluster.gather([answer], "the answer", timeout=240) == [7]


def late():
    raise TimeoutError("mine")


@pytest.mark.parametrize(
    ("task", "error", "words"),
    [
        ((fail,), ZeroDivisionError, "on purpose"),
        ((late,), TimeoutError, "mine"),
    ],
)
def test_an_error_comes_back_with_its_slot_and_the_cluster_goes_on(cluster, task, error, words):
    futures = [cluster.submit(1, *task), cluster.submit(0, time.sleep, 1)]
    with pytest.raises(error, match=words) as caught:
        cluster.wait(futures, "the failing one", 240)
    assert "slot 1 during the failing one" in caught.value.__notes__[0]
    futures[1].cancel(force=True)
    with pytest.raises(ClusterLostError, match=r"was cancelled.*the cluster runs on"):
        cluster.wait(futures[1:], "gone", timeout=240)
    assert cluster.gather([cluster.submit(1, where)], "after the error") == [1]


def listening(process):
    """{process: addresses at which it listens}, of ``process`` and all below it."""
    found = {}
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            for connection in each.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.setdefault(each.pid, set()).add(connection.laddr.ip)
    return found


def port_of(cluster):
    return int(cluster.client.dashboard_link.split(":")[2].split("/")[0])


def status_of_websocket(port, origin):
    """Status of a websocket handshake that claims to come from a page of ``origin``."""
    handshake = f"""GET /status/ws HTTP/1.1
        Host: 127.0.0.1:{port}
        Origin: {origin}
        Upgrade: websocket
        Connection: Upgrade
        Sec-WebSocket-Version: 13
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="""
    lines = [line.strip() for line in handshake.splitlines()]
    with socket.create_connection(("127.0.0.1", port), timeout=240) as stream:
        stream.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(stream.recv(64).split()[1])


def test_everything_listens_here_only_and_the_dashboard_takes_no_pages_of_other_hosts(cluster):
    found = listening(psutil.Process())
    assert {*cluster.run(os.getpid), os.getpid()} <= set(found)  # the scheduler is in this process
    assert set().union(*found.values()) == {"127.0.0.1"}
    port = port_of(cluster)
    assert status_of_websocket(port, "http://evil.example") == 403
    assert status_of_websocket(port, f"http://localhost:{port}") != 403
    assert status_of_websocket(port, "http://localhost:8888") != 403  # JupyterLab's extension


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of 1 or more, got 0"),
        ({"device": "cpu", "timeout": -1}, "a timeout is a number"),
        ({"workers": True}, "workers must be a whole number"),
        ({"workers": 2.5}, "workers must be a whole number"),
        ({"workers": 10**6}, r"at most \d+, got 1000000; take fewer"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"device": "tpu"}, "device is 'auto', 'cuda' or 'cpu', got 'tpu'"),
        pytest.param(
            {"device": "cuda"},
            "device='cuda' needs a usable GPU: .+",
            marks=pytest.mark.skipif(probe().usable, reason="there is a usable GPU"),
        ),
        ({"memory_cap": "lots"}, "cannot read 'lots' as a size"),
        ({"memory_limit": -1}, "0 to 1e[+]24 bytes, got -1"),
        ({"device": "cpu", "memory_cap": "1MB"}, "memory_cap must be .* 8000000 or more"),
        ({"device": "cpu", "hosts": 0}, "hosts must be a whole number of 1 or more, got 0"),
        ({"device": "cpu", "workers": 2, "hosts": 3}, "hosts must be at most 2, got 3"),
    ],
)
def test_impossible_requests_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        td.start_cluster(**arguments)


def test_slots_and_timeouts_that_do_not_exist(cluster):
    for slot in (99, -1, 1.0, "0"):
        with pytest.raises(ConfigError, match=r"slot .* does not exist.*slots 0\.\."):
            cluster.submit(slot, where)
    for timeout in (0, float("nan"), True, "1s"):
        with pytest.raises(ConfigError, match="a timeout is a number of seconds above 0"):
            cluster.wait([], "nothing", timeout=timeout)


def test_workers_as_if_on_two_hosts_read_no_memory_of_the_other_also_after_a_death():
    """And a product, a rank function and a training bring what they bring on one host."""
    text, a = td.load_text("tales"), np.random.default_rng(0).standard_normal((60, 60))
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    options = {"steps": 2, "batch": 4, "progress": False}
    alone = td.train(model, text, (1, 2, 2), **options)
    grid = td.Shard(0), td.Shard(1)
    with td.start_cluster(workers=4, device="cpu", hosts=2, quiet=True) as cluster:
        assert cluster.hosts == tuple("AABB")
        for killed in (False, True):
            if killed:
                kill_worker(cluster, 2)
            mesh = td.Mesh(cluster, (2, 2))
            A = td.distribute(a, mesh, grid)
            C = A @ A
            np.testing.assert_allclose(td.to_numpy(C), a @ a)
            assert C.traffic.predicted == C.traffic.measured
            between = C.traffic.measured.between_hosts
            assert C.traffic.measured.total > between == C.traffic.predicted.between_hosts > 0
        run = td.train(model, text, td.Mesh(cluster, (1, 2, 2)), **options)
        np.testing.assert_array_equal(run.losses, alone.losses)
        assert run.measured.total > run.measured.between_hosts > 0

        def summed(rank):
            return rank.group().all_reduce(np.full(10**5, float(rank.index)), algorithm="ring")

        done = td.run_ranks(summed, td.Mesh(cluster, (4,)))
        assert all((each == 6).all() for each in done.results)
        assert done.traffic.between_hosts == done.traffic.total // 2


def test_a_closed_cluster_says_so_and_leaves_no_process_or_file():
    pytest.importorskip("cryptography", reason="TLS needs the package cryptography")
    with td.start_cluster(workers=1, device="cpu", tls=True, quiet=True) as cluster:
        (pid,), spool = cluster.run(os.getpid), cluster.spool
        assert cluster.workers()[0]["address"].startswith("tls://")
        assert spool.is_dir()
    assert not psutil.pid_exists(pid)
    assert not spool.exists()
    with pytest.raises(ClusterLostError, match=r"closed.*td\.start_cluster"):
        cluster.submit(0, where)
    cluster.close()  # twice is fine


@pytest.mark.skipif(sys.platform != "linux", reason="memory caps need Linux")
def test_a_memory_cap_raises_and_outlives_a_restart():
    with td.start_cluster(workers=1, device="cpu", memory_cap="40MB", quiet=True) as cluster:
        assert cluster.memory_limit == 40_000_000

        def ask(nbytes):
            cluster.wait([cluster.submit(0, np.ones, nbytes // 8)], "allocation", 240)

        for _ in range(2):
            ask(30_000_000)
            with pytest.raises(MemoryError):
                ask(41_000_000)
            ask(30_000_000)  # the worker is none the worse for it
            (held,) = cluster.gather([cluster.submit(0, fill_up)], "allocation", 240)
            assert 25_000_000 < held <= 40_000_000  # in pieces of 4 MiB
            kill_worker(cluster, 0)


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import tiledask as td\n"
        "with td.start_cluster(workers=1, device='cpu', timeout=3) as c:\n"
        "    print(c)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TILEDASK_DASHBOARD_PORT": "none"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "if __name__ == '__main__':" in done.stderr
    assert done.returncode != 0


def test_the_start_says_which_devices_and_why_and_takes_another_port_for_one_that_is_taken(
    monkeypatch, capfd
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("TILEDASK_DASHBOARD_PORT", str(port))
        with td.start_cluster(1, device="cpu") as cluster:
            assert "1 CPU worker" in repr(cluster)
            at = f"http://127.0.0.1:{port_of(cluster)}"
            assert port_of(cluster) not in (port, 0)
    out = capfd.readouterr().out
    for said in ("1 CPU worker", "because device='cpu'", f"dashboard: {at}"):
        assert said in out
    monkeypatch.setenv("TILEDASK_DASHBOARD_ORIGINS", "hub:1 b:2")
    monkeypatch.setattr(start, "in_notebook", lambda: True)
    monkeypatch.setattr(start, "show", show := mock.Mock())
    with td.start_cluster(1, device="cpu") as newer:  # a notebook shows what a terminal prints
        show.assert_called_once_with(newer)
        shown, without = newer._repr_html_(), newer._repr_html_().replace(SCRIPT, "")
        assert newer.started > cluster.started
        assert status_of_websocket(port_of(newer), "http://b:2") != 403
        at = f"http://127.0.0.1:{port_of(newer)}"
        for said in (f"data-dashboard='{at}'", f"href='{at}/tiledask'", "<button hidden>"):
            assert said in without
        assert f"data-started='{newer.started!r}'" in without
        assert "<script" not in without
        assert shown.count("</script>") == 1
    assert "BLAS thread" not in capfd.readouterr().out
    assert "closed" in newer._repr_html_()
    assert SCRIPT not in newer._repr_html_()


def test_tasks_get_aligned_arrays_and_transposed_ones_are_not_copied(cluster):
    def layout(x):
        return x.flags.aligned, x.flags.c_contiguous, x.flags.f_contiguous

    raw = np.zeros(8 * 12 + 1, np.uint8)
    views = raw[1:].view("f8").reshape(3, 4), np.zeros((4, 8))[:, ::2], np.ones((4, 3)).T
    assert not views[0].flags.aligned
    futures = [cluster.submit(0, layout, view) for view in views]
    aligned = [(True, True, False)] * 2 + [(True, False, True)]
    assert cluster.gather(futures, "entry") == aligned


@pytest.mark.slow
def test_a_slot_survives_two_deaths_fifteen_seconds_apart():
    with td.start_cluster(2, device="cpu", quiet=True) as started:
        kill_worker(started, 1)
        time.sleep(13.5)  # Dask looks 15 s after a death whether the worker is there
        os.kill(started.run(os.getpid)[1], signal.SIGKILL)
        time.sleep(4)
        started.wait_for_slots([0, 1], 240)


def test_start_keeps_its_deadline():
    with pytest.raises(DeadlineError, match="the start of 4 workers did not"):
        td.start_cluster(4, device="cpu", timeout=0.05, quiet=True)


def times_asked(folder, dask_worker):
    """How often this worker was asked since it began, once it may say so."""
    dask_worker.times_asked = getattr(dask_worker, "times_asked", 0) + 1
    (folder / str(os.getpid())).touch()
    wait_until((folder / "go on").exists)
    return dask_worker.times_asked


def test_run_asks_again_when_a_worker_dies_meanwhile_and_only_that_one(cluster, tmp_path):
    """What the others said is kept."""
    pid = cluster.run(os.getpid)[2]

    def kill():
        wait_until((tmp_path / str(pid)).exists, "the worker to be asked")
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "go on").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    assert cluster.run(times_asked, tmp_path, timeout=240) == [1] * cluster.slots
    killer.join()
    assert cluster.run(os.getpid)[2] != pid
    assert cluster.run(times_asked, tmp_path) == [2] * cluster.slots
