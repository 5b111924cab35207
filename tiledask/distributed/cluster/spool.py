"""Folders of the arrays that clusters were given: they end with their client, however it ends.

    /tmp/tiledask-1000/x1y2z3.dirlock    locked by the client that lives, by nobody once it is dead
                       x1y2z3/*.npy      from which workers make lost blocks again

The locks are those of Dask's own workspaces.
"""

import hashlib
import os
import platform
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from distributed.diskutils import WorkSpace

__all__ = ["AS_HOST", "open_spool", "this_host"]

AS_HOST = "TILEDASK_HOST"
"""In a worker's environment, the host that it is taken to be on (`start_cluster`)."""


def open_spool(of: Any) -> tuple[Path, Callable[[], None]]:
    """(a new folder among the system's temporary ones; what removes it).

    It is removed with the object ``of``, at the latest when this process ends; a forked child has
    that object too, and removes nothing. What killed clients have left there is removed first.
    """
    space = WorkSpace(str(Path(tempfile.gettempdir()) / f"tiledask-{os.getuid()}"))
    made = space.new_work_dir(prefix="")
    os.register_at_fork(after_in_child=made._finalizer.detach)
    return Path(made.dir_path), weakref.finalize(of, made.release)


@cache
def this_host() -> str:
    """The machine since its last start, and the numbers that its processes have: of containers on
    one machine, those that share them are one host; so are workers that are told to be."""
    machine, numbers = platform.node(), os.environ.get(AS_HOST, "")
    with suppress(OSError):
        machine += Path("/proc/sys/kernel/random/boot_id").read_text()
        numbers += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{machine} {numbers}".encode()).hexdigest()[:12]
