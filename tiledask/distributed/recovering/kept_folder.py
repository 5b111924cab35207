"""Where ranks keep their state: a folder on their own host, in memory where there is room for it.

    /dev/shm/tiledask-x1y2z3/    the client's host: gone with the client, as its spool is
    /dev/shm/tiledask-RUN/       another host: the client has it removed; if it was killed, workers
                                 do when they are given up
        copies/                  what ranks here keep of those on another host

Neither is on a disk that a power cut leaves as it was: for that there are checkpoints.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from tiledask.distributed.cluster.spool import MEMORY

__all__ = ["folder_here", "forget", "place_for"]

RESERVE = 256 * 2**20
"""Bytes that stay free beside what is kept."""
_here: set[str] = set()
"""The folders that this worker was told to use, and its client has not removed."""


def place_for(nbytes: int) -> Path | None:
    """The folder for ``nbytes``: memory, if that leaves three quarters of what is available; else
    that for temporary files; None if there is no room in either."""
    spare = psutil.virtual_memory().available // 4
    for folder, most in ((MEMORY, spare), (Path(tempfile.gettempdir()), nbytes)):
        with suppress(OSError):  # no such folder
            free = shutil.disk_usage(folder).free
            if nbytes <= most and nbytes + RESERVE <= free and os.access(folder, os.W_OK):
                return folder
    return None


def folder_here(given: str, run: str, nbytes: int) -> str:
    """The folder on this worker's host: the one that is ``given``, if it is there, or one of its
    own for so many bytes; "" if there is room for none."""
    if given and os.access(given, os.W_OK):
        return given
    places = (each / f"tiledask-{run}" for each in (MEMORY, Path(tempfile.gettempdir())))
    folder = next((each for each in places if each.is_dir()), None)  # by the first worker here
    if folder is None:
        if (place := place_for(nbytes)) is None:
            return ""
        folder = place / f"tiledask-{run}"
        folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        return ""
    _here.add(str(folder))
    return str(folder)


def forget(run: str = "") -> None:
    """None; what a run, or all, kept in folders of this worker's host's own is removed."""
    for folder in [each for each in _here if each.endswith(run)]:
        _here.discard(folder)
        shutil.rmtree(folder, ignore_errors=True)
