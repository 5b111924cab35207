"""Files that a reader sees whole or not at all."""

import os
import threading
from pathlib import Path

__all__ = ["atomic_write"]


def atomic_write(path: Path, content: bytes, mode: int = 0o666) -> Path:
    """``path``, holding ``content``; on an error it holds what it held before. ``mode``: of a file
    that is new, before the process' mask."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
