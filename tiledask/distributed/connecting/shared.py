"""Whether the workers of a cluster see the files that they are to read, and write where we read.

Of td.start_cluster they do. Elsewhere each worker says how large a file is, and how a file begins
that was just written into a folder.
"""

import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError

__all__ = ["check_shared"]

_HEAD = 4096
"""Bytes at the start of a file by which it is known."""


def check_shared(cluster: Cluster, read: Iterable[str] = (), write: Iterable[str] = ()) -> None:
    """Raise ConfigError where a worker does not find the files ``read``, or the folders ``write``,
    as they are here."""
    if cluster.started_here:
        return
    with ExitStack() as stack:
        wanted = {path: path for path in read}
        for folder in write:
            probe = tempfile.NamedTemporaryFile(dir=folder, prefix=".tiledask-")  # noqa: SIM115
            stack.enter_context(probe).write(os.urandom(16))
            probe.flush()
            wanted[probe.name] = folder
        here, there = _heads([*wanted]), cluster.run(_heads, [*wanted])
    for path, name in wanted.items():
        if others := [slot for slot, heads in enumerate(there) if heads[path] != here[path]]:
            hosts = sorted({cluster.address(slot) for slot in others})
            raise ConfigError(
                f"{name} is not what the workers of slots {others} find there "
                f"({', '.join(hosts)}): they are on other hosts or in other containers. Put it on "
                f"a file system that all of them share, or connect to workers that see it"
            )


def _heads(paths: list[str]) -> dict[str, tuple[int, bytes]]:
    """Size and head of each file, from this worker; of a zarr array those of its description."""
    found = {}
    for path in paths:
        inside = (os.path.join(path, name) for name in ("zarr.json", ".zarray"))
        try:
            with open(next(filter(os.path.exists, inside), path), "rb") as file:
                found[path] = os.fstat(file.fileno()).st_size, file.read(_HEAD)
        except OSError:
            found[path] = -1, b""
    return found
