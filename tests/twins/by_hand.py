"""Dask by hand and hosts on one machine, for tests: they are skipped where there are no hosts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tiledask.errors import ConfigError
from tiledask.lab.faults.by_hand import ByHand, HostsOnOne, dask_by_hand, hosts_on_one

__all__ = ["ByHand", "dask_by_hand", "two_hosts"]


@contextmanager
def two_hosts(folder: Path, count: int = 2) -> Iterator[HostsOnOne]:
    """Hosts with a scheduler on A; skips the test where they cannot be made."""
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(hosts_on_one(folder, count))
        except ConfigError as error:
            pytest.skip(str(error))
        yield hosts
