"""Whether the workers of a cluster see the files that they are to read, and write where we read.

Of td.start_cluster they do. Elsewhere it is looked at: each worker says what it finds under a path,
and reads a word that was just written into a folder.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError

__all__ = ["check_shared"]

_HEAD = 4096
"""Bytes at the start of a file by which it is known."""


def check_shared(cluster: Cluster, read: Iterable[str] = (), write: Iterable[str] = ()) -> None:
    """None if every worker finds the files ``read``, and the folders ``write``, as they are here;
    else ConfigError, which says who does not."""
    if cluster.started_here:
        return
    words, wanted = list[str](), dict[str, str]()
    try:
        for folder in write:
            word = os.path.join(folder, f".tiledask-{secrets.token_hex(8)}")
            with open(word, "x") as file:
                file.write(secrets.token_hex(8))
            words.append(word)
            wanted[word] = folder
        wanted |= {path: path for path in read}
        here = {path: _known_by(path) for path in wanted}
        there = cluster.run(_found, list(wanted))
    finally:
        for word in words:
            with suppress(OSError):
                os.unlink(word)
    for path, said in wanted.items():
        others = [slot for slot, found in enumerate(there) if found[path] != here[path]]
        if others:
            hosts = sorted({cluster.address(slot) for slot in others})
            raise ConfigError(
                f"{said} is not what the workers of slots {others} find there "
                f"({', '.join(hosts)}): they are on other hosts or in other containers. Put it on "
                f"a file system that all of them share, or connect to workers that see it"
            )


def _found(paths: list[str]) -> dict[str, str]:
    """How each of ``paths`` looks from this worker."""
    return {path: _known_by(path) for path in paths}


def _known_by(path: str) -> str:
    """What a file, or the description of a zarr array, is known by; empty if it is not there."""
    if os.path.isdir(path):
        inside = [os.path.join(path, name) for name in ("zarr.json", ".zarray")]
        return "".join(map(_known_by, filter(os.path.exists, inside)))
    try:
        with open(path, "rb") as file:
            return f"{os.path.getsize(path)} {hashlib.sha256(file.read(_HEAD)).hexdigest()}"
    except OSError:
        return ""
