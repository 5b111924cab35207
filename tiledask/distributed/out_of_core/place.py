"""Where a matrix is: at a path on a disk, or at a URL in a store that fsspec knows."""

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from tiledask.distributed.out_of_core.folder import Folder
from tiledask.errors import ConfigError

__all__ = ["folder_of", "is_url", "located"]


def located(path: str | os.PathLike[str], options: Mapping[str, Any] | None) -> str:
    """``path``, absolute; or the URL that it is. What file:// names is a path."""
    name = os.fspath(path)
    if isinstance(path, PurePath) and re.match(r"[a-z][a-z0-9+.-]+:/", name):
        raise ConfigError(f"a URL is given as a string: pathlib has made {name} of it")
    if "://" not in name:
        place = os.path.abspath(name)
    elif "::" in name:
        raise ConfigError(
            f"{name} goes through several file systems, of which workers would have copies of "
            f"their own; give the URL of the array itself"
        )
    elif name.startswith(("file://", "local://")):
        place = os.path.abspath(name.partition("://")[2])
    else:
        place = name.rstrip("/")
        _check_url(place)
        return place
    if options:
        raise ConfigError(
            f"storage_options are what fsspec needs for a URL such as s3://bucket/a.zarr, and "
            f"{place} is a path; leave them out"
        )
    return place


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.password is not None:
        raise ConfigError(
            f"the URL on {parts.hostname} has a password in it, and URLs are printed and recorded; "
            f"give it in storage_options=, or in fsspec's own configuration"
        )
    if url.endswith(".npy"):
        raise ConfigError(
            f"{url}: .npy files are read and written in place, on a disk; copy it there (fsspec's "
            f"get_file), or store the matrix as zarr, whose chunks a URL can name: a.zarr"
        )
    if parts.scheme != "memory" and not parts.path.strip("/"):
        raise ConfigError(f"{url} is a whole bucket or host; give the URL of an array in it")


def is_url(place: str) -> bool:
    """Whether ``place``, which `located` returned, is a URL."""
    return "://" in place


def folder_of(place: str, options: Mapping[str, Any] | None = None) -> Folder:
    """The folder at ``place``, which `located` returned; ConfigError if fsspec cannot go there."""
    if not is_url(place):
        return Folder(place)
    from tiledask.distributed.out_of_core.by_url import UrlFolder

    return UrlFolder(place, options)
