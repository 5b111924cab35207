"""Folders of the arrays that clusters were given: they end with their client, however it ends.

    /tmp/tiledask-x1y2z3/owner    locked by the client that lives, and by nobody once it is dead
                         *.npy    from which workers make lost blocks again

A lock (flock(2)) is the kernel's own knowledge of who lives: it ends with the process, whatever
ended that, no other process comes to it by chance, as one comes to a number, and it is seen from
other containers that share the folder.
"""

import fcntl
import os
import platform
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from tiledask.plan.digests import crc_of
from tiledask.plan.products.regions import Region, slices

__all__ = ["AS_HOST", "MEMORY", "KeptArray", "machine", "open_spool", "remove_spools_of_the_dead"]

PREFIX = "tiledask-"
MEMORY = Path("/dev/shm")
"""Where some of them are, on Linux."""
OWNER = "owner"
AS_HOST = "TILEDASK_HOST"
"""In a worker's environment, the host that it is taken to be on (`start_cluster`)."""


class KeptArray(NamedTuple):
    """An array of which workers make blocks, and lost ones again."""

    path: str
    """Of a copy in the spool; empty if nobody reads it there."""
    array: np.ndarray
    near: frozenset[int]
    """The slots whose workers see the spool."""

    def part(self, slot: int, region: Region) -> str | np.ndarray:
        """What a task in ``slot`` makes the block of ``region`` from: the path, or the block."""
        return self.path if slot in self.near else self.array[slices(region)].copy()

    def check(self, region: Region) -> int:
        """CRC-32 of the block of ``region``, which the task compares."""
        return crc_of(self.array[slices(region)])

    def remove(self) -> None:
        """None; no block is made of it any more."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)


def open_spool(of: Any, where: Path | None = None) -> tuple[Path, Callable[[], None]]:
    """(a new folder in ``where``, or the system's folder for temporary files; what removes it).

    It is removed with the object ``of``, at the latest when this process ends; a forked child has
    that object too, and removes nothing. What killed clients have left there is removed first.
    """
    for each in {where, None, MEMORY}:
        remove_spools_of_the_dead(each)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    return folder, weakref.finalize(of, _remove, folder, _claim(folder), os.getpid())


def remove_spools_of_the_dead(folder: Path | None = None) -> list[Path]:
    """The spools in ``folder`` whose clients had died, now removed.

    Only this user's, and only where it is sure: folders that nobody ever claimed, those of other
    machines that share ``folder`` and those from before the machine's last start stay.
    """
    found = []
    for spool in sorted(Path(folder or tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with suppress(OSError):  # no such file, another's, or locked: its client lives
            its = spool.lstat()
            if not stat.S_ISDIR(its.st_mode) or its.st_uid != os.geteuid():
                continue
            with open(os.open(spool / OWNER, os.O_RDWR | os.O_NOFOLLOW)) as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if owner.read() == machine():
                    shutil.rmtree(spool)
                    found.append(spool)
    return found


def _claim(folder: Path) -> IO[str] | None:
    """The open file whose lock says that this process lives; None where nothing can be locked."""
    # open as long as this process lives
    claiming = open(folder / f"{OWNER}.new", "x")  # noqa: SIM115
    try:
        fcntl.flock(claiming, fcntl.LOCK_EX | fcntl.LOCK_NB)
        claiming.write(machine())
        claiming.flush()
        os.rename(claiming.name, folder / OWNER)  # nobody sees it unlocked
    except OSError:
        return None
    return claiming


def _remove(folder: Path, claim: IO[str] | None, pid: int) -> None:
    if os.getpid() != pid:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if claim is not None:
        claim.close()


def machine() -> str:
    """This machine since its last start: where it differs, locks may not be seen."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()
