"""Spools end with their clients, and with no other process."""

import subprocess
import sys
from pathlib import Path

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


def started(then):
    """(a process that has a spool, the spool)."""
    asked = [sys.executable, "-c", CLIENT.format(then=then)]
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_the_next_start_removes_the_spools_of_killed_clients_and_of_no_others(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed, dead = started("time.sleep(600)")
    lives, living = started("time.sleep(600)")
    killed.kill()
    killed.communicate()
    _, folder = started("pass")
    assert not dead.exists()
    assert living.is_dir()
    assert living.stat().st_mode & 0o777 == 0o700
    assert folder.parent == living.parent
    lives.kill()
    lives.communicate()
