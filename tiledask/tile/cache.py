"""The user's cache folder: files kept from run to run.

$TILEDASK_CACHE, or $XDG_CACHE_HOME/tiledask, or ~/.cache/tiledask
"""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """The folder; it need not exist."""
    own = os.environ.get("TILEDASK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "tiledask"
