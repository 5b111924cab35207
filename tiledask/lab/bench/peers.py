"""The others: one process with all cores, and dask.array on a cluster of its own.

dask.array gets what its users would give it: one process per core with one BLAS thread, operands
persisted, nothing else on the workers.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from tiledask.distributed.cluster import host_memory

__all__ = ["DaskArrays", "Ran", "count", "dask_client"]


@dataclass(frozen=True)
class Ran:
    """What one run took beside time."""

    moved: int = 0
    """Bytes between workers."""
    peak: int = 0
    """The most bytes that a worker took above the operands."""
    spent: tuple = ()
    """Where each rank's time went (ours)."""
    algorithm: str = ""
    seconds: float = 0.0
    """If the way was asked to look at the clock itself."""
    read: int = 0
    """Bytes from files."""


@contextmanager
def dask_client(workers: int) -> Iterator[Client]:
    """A client of ``workers`` processes of one thread each."""
    log = {"distributed.admin.low-level-log-length": 100_000}
    with (
        dask.config.set(log),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@dataclass(frozen=True)
class DaskArrays:
    """A product of arrays with given chunks, on the workers of ``client``."""

    client: Client
    arrays: tuple[da.Array, ...]
    multiply: Callable[..., da.Array]

    @classmethod
    def of(
        cls, client: Client, arrays: Sequence[np.ndarray], chunks: Any, multiply: Callable
    ) -> "DaskArrays":
        with warnings.catch_warnings():  # of a large graph: only here, before any clock runs
            warnings.simplefilter("ignore", UserWarning)
            held = client.persist([da.from_array(x, chunks=chunks) for x in arrays])
            wait(held)
        return cls(client, tuple(held), multiply)

    def run(self) -> da.Array:
        product = self.client.persist(self.multiply(*self.arrays))
        wait(product)
        return product


def count(client: Client) -> Callable[[], Ran]:
    """Counts from here; the function it returns says what has moved and how memory has grown."""
    marks = client.run(_mark)

    def finish() -> Ran:
        reports = client.run(_report, marks)
        return Ran(sum(moved for moved, _ in reports.values()), max(p for _, p in reports.values()))

    return finish


def _mark(dask_worker: Any) -> int:
    dask_worker.transfer_incoming_log.clear()  # a full log would forget its oldest entries
    return host_memory.reset_peak("numpy")


def _report(marks: dict[str, int], dask_worker: Any) -> tuple[int, int]:
    moved = sum(entry["total"] for entry in dask_worker.transfer_incoming_log)
    return moved, host_memory.peak_bytes("numpy") - marks[dask_worker.address]
