"""Files that a reader sees whole or not at all; and the versions that decide what is in them."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

__all__ = ["atomic_write", "library_versions"]

_PACKAGES = ("tiledask", "dask", "distributed", "numpy", "cupy-cuda13x", "dask-cuda", "matplotlib")


def atomic_write(path: Path, content: bytes) -> Path:
    """``path``, holding ``content``; on an error it holds what it held before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries installed that decide the results."""
    found = {"Python": python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
