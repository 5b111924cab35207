"""What zarr opens for an array by URL: fsspec's store, with words for what goes wrong in it."""

from collections.abc import Callable, Mapping
from typing import Any

from zarr.storage import FsspecStore

from tiledask.distributed.out_of_core.folder import Folder, saying

__all__ = ["zarr_store"]


class _Store(FsspecStore):  # type: ignore[misc]
    """zarr's store, which says what it could not do, and what is missing."""

    absent: Callable[[str], Exception | None] = staticmethod(lambda key: None)

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        with saying(f"{self.path}/{key}", "read"):
            found = await super().get(key, *args, **options)
        if found is None and (error := self.absent(key)):
            raise error
        return found

    async def set(self, key: str, *args: Any, **options: Any) -> None:
        with saying(f"{self.path}/{key}", "written"):
            await super().set(key, *args, **options)


def zarr_store(
    url: str,
    options: Mapping[str, Any] | None,
    absent: Callable[[str], Exception | None],
    read_only: bool,
) -> FsspecStore:
    """What zarr opens for the array at ``url``; it raises ``absent(name)`` for an object that is
    not there, unless that is None."""
    Folder(url, options)  # or an error that says what is missing
    store = _Store.from_url(url, dict(options or {}), read_only=read_only)
    store.absent = absent
    return store
