"""The most memory that workers hold while a block runs."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import DeadlineError
from tiledask.plan.ledger import Ledger, Row

__all__ = ["MEMORIES", "Counted", "counting"]

MEMORIES: dict[str, Any] = {"numpy": host_memory, "cupy": device_memory}
"""What counts the memory of blocks, by their arrays."""
ANSWER = 20.0
"""Seconds that the workers have to say what they counted, once the work is done."""


@dataclass
class Counted:
    """Filled when the ``counting`` block ends; where a worker did not say, there is nothing."""

    growth: tuple[int, ...] | None = None
    """Per slot, the most bytes that the process (on a GPU: its memory pool) took beyond those it
    held at the start; None if that could not be measured."""
    seconds: float = 0.0

    def ledger(self) -> Ledger | None:
        """The measured Ledger, a place per slot; None if that could not be measured."""
        if self.growth is None:
            return None
        given = "process growth", "product"
        return Ledger.of(Row(slot, *given, grown) for slot, grown in enumerate(self.growth))


@contextmanager
def counting(cluster: Cluster, timeout: float | None = None) -> Iterator[Counted]:
    """Measures how far the workers' memory grows inside the block.

    One block at a time on a cluster; another thread's waits until ``timeout`` (seconds) is over.
    A worker that is silent when the block has ended costs the numbers, with a warning, and never
    the result.
    """
    seconds = min(60.0, seconds_of(timeout))
    if not cluster.counting.acquire(timeout=seconds):
        raise DeadlineError(
            f"waited {seconds:g} s for another operation on this cluster to end its counting; "
            f"run one at a time, or give each thread a cluster of its own"
        )
    try:
        memory = MEMORIES[cluster.backend]
        held = cluster.run(memory.reset_peak, timeout=seconds)
        counted, begun = Counted(), time.perf_counter()
        yield counted
        counted.seconds = time.perf_counter() - begun
        try:
            peaks = cluster.run(memory.peak_bytes, timeout=ANSWER)
        except DeadlineError as error:
            warnings.warn(
                f"the result is there, how memory grew is not known: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        counted.growth = tuple(max(0, p - at) for p, at in zip(peaks, held, strict=True))
    finally:
        cluster.counting.release()
