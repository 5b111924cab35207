"""The user's cache folder: files kept from run to run, each written whole.

$TILEDASK_CACHE, or $XDG_CACHE_HOME/tiledask, or ~/.cache/tiledask
"""

import os
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "write_whole"]


def cache_folder() -> Path:
    """The folder; it need not exist."""
    own = os.environ.get("TILEDASK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "tiledask"


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
