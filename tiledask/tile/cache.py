"""The user's cache folder: files kept from run to run, believed only if the user wrote them.

    $TILEDASK_CACHE, or $XDG_CACHE_HOME/tiledask, or ~/.cache/tiledask

Whoever could write there could choose what a later run computes. So a file counts only if it is a
plain one (no link), of this user or of root, and nobody else may write to it.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_folder", "closed_folder", "read_own", "write_whole"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """The folder; it need not exist."""
    own = os.environ.get("TILEDASK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "tiledask"


def closed_folder(path: Path) -> Path:
    """``path``, once it is a folder of this user's that nobody else can look into (mode 0700).

    OSError says what stands against it.
    """
    os.makedirs(path.parent, 0o700, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(0o700)
    above, found = path.parent.stat(), path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{path} is a link or a file")
    if found.st_uid != os.geteuid():
        raise OSError(f"{path} belongs to user {found.st_uid}, this is {os.geteuid()}")
    if above.st_mode & _OTHERS and not above.st_mode & stat.S_ISVTX:
        raise OSError(f"others may write to {path.parent}, mode {above.st_mode & 0o7777:04o}")
    if above.st_uid not in (0, os.geteuid()):
        raise OSError(f"{path.parent} belongs to user {above.st_uid}, this is {os.geteuid()}")
    path.chmod(0o700)
    return path


def read_own(path: Path, largest: int) -> bytes:
    """What is in a file that this user, or root, wrote; OSError if others could have.

    Links are not followed. OSError too for more than ``largest`` bytes.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & _OTHERS:
            raise OSError(
                f"{path} could be another's: it belongs to user {found.st_uid}, mode "
                f"{found.st_mode & 0o7777:04o}, this is {os.geteuid()}"
            )
        if found.st_size > largest:
            raise OSError(f"{path} has {found.st_size} bytes, at most {largest} can be")
        return opened.read()


def write_whole(path: Path, content: bytes) -> None:
    """None, once the file is there with all of ``content``; a reader never sees a part of it."""
    file, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(file, "wb") as opened:
            opened.write(content)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
