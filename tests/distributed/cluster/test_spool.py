"""Spools end with their clients, and with no other process."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tiledask.distributed.cluster import spool
from tiledask.distributed.cluster.spool import open_spool, remove_spools_of_the_dead
from tiledask.errors import ClusterLostError

CLIENT = """
import os, signal, sys, time
from tiledask.distributed.cluster.spool import open_spool
class Owner: pass
owner = Owner()
folder, remove = open_spool(owner)
(folder / "array.npy").write_bytes(bytes(1000))
print(folder, flush=True)
{then}
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, here and in the clients."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def client():
    """Starts a process that has a spool: (the process, its spool)."""
    started = []

    def start(then):
        asked = [sys.executable, "-c", CLIENT.format(then=then)]
        process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_the_next_start_removes_the_spools_of_killed_clients_and_of_no_others(temporary, client):
    killed = [client("time.sleep(600)") for _ in range(2)]
    _, living = client("time.sleep(600)")
    for process, _ in killed:
        process.send_signal(signal.SIGKILL)
        process.wait()
    older = temporary / "tiledask-of-an-earlier-version"
    older.mkdir()
    before = {folder for _, folder in killed} | {living, older}
    assert {p for p in temporary.iterdir() if p.name.startswith("tiledask-")} == before
    owner = threading.Event()  # anything
    mine, remove = open_spool(owner)
    assert set(temporary.glob("tiledask-*")) == {living, older, mine}
    assert remove_spools_of_the_dead() == []  # this process's own lives as well
    assert (living / "array.npy").stat().st_size == 1000
    remove()
    assert set(temporary.glob("tiledask-*")) == {living, older}


def test_a_spool_stays_while_a_child_of_the_killed_client_may_use_it(temporary, client):
    forks = "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(600)"
    process, folder = client(forks)
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        assert remove_spools_of_the_dead() == []
        assert folder.is_dir()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("ends", ["sys.exit(0)", "pass"])
def test_a_forked_child_that_ends_leaves_the_spool_of_its_parent(temporary, client, ends):
    process, folder = client(
        f"child = os.fork()\nif not child:\n    {ends}\n    del owner\nelse:\n"
        f"    os.waitpid(child, 0); print(folder.is_dir(), flush=True); sys.stdin.read()"
    )
    assert process.stdout.readline().strip() == "True"
    process.wait()
    assert not folder.exists()  # the parent's own end removes it


@pytest.mark.parametrize("another", ["machine", "user"])
def test_what_is_not_known_to_be_dead_stays(temporary, client, monkeypatch, another):
    process, folder = client("time.sleep(600)")
    process.kill()
    process.wait()
    with monkeypatch.context() as patched:
        if another == "machine":
            patched.setattr(spool, "machine", lambda: "of another start")
        else:
            patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert remove_spools_of_the_dead() == []
    link = temporary / "tiledask-link"
    link.symlink_to(folder)
    assert remove_spools_of_the_dead() == [folder]
    assert link.is_symlink()


@pytest.mark.cluster
def test_a_forked_child_neither_uses_nor_closes_the_cluster_of_its_parent(cluster):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            cluster.close()
            cluster.submit(0, abs, -1)
        except ClusterLostError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as said:
        assert f"the cluster is process {os.getpid()}'s" in said.read()
    assert cluster.spool.is_dir()
    assert cluster.run(abs, -3) == [3] * cluster.slots
