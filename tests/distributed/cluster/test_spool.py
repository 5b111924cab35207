"""Spools end with their clients, and with no other process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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


def test_the_next_start_removes_the_spools_of_killed_clients_and_of_no_others(temporary, client):
    killed, dead = client("time.sleep(600)")
    _, living = client("time.sleep(600)")
    killed.kill()
    killed.wait()
    _, folder = client("pass")
    assert not dead.exists()
    assert living.is_dir()
    assert living.stat().st_mode & 0o777 == 0o700
    assert folder.parent == living.parent


@pytest.mark.parametrize("ends", ["sys.exit(0)", "pass"])
def test_a_forked_child_that_ends_leaves_the_spool_of_its_parent(temporary, client, ends):
    process, folder = client(
        f"child = os.fork()\nif not child:\n    {ends}\n    del owner\nelse:\n"
        f"    os.waitpid(child, 0); print(folder.is_dir(), flush=True); sys.stdin.read()"
    )
    assert process.stdout.readline().strip() == "True"
    process.wait()
    assert not folder.exists()  # the parent's own end removes it


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
