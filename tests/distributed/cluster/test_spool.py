"""Spools end with their clients, and with no other process."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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
