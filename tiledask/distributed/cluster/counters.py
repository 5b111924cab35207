"""What is counted while a block runs: bytes between workers, and the most memory held."""

import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from tiledask.distributed.cluster import device_memory, host_memory
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.deadlines import seconds_of
from tiledask.errors import DeadlineError
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.traffic import Traffic

__all__ = ["MEMORIES", "Call", "Counted", "counting"]

MEMORIES: dict[str, Any] = {"numpy": host_memory, "cupy": device_memory}
"""What counts the memory of blocks, by their arrays."""
ANSWER = 20.0
"""Seconds that the workers have to say what they counted, once the work is done."""
Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, plain or async, and its arguments; as ``dask_worker`` it is given the worker."""


@dataclass
class Counted:
    """Filled when the ``counting`` block ends; where a worker did not say, there is nothing."""

    traffic: Traffic | None = None
    """None if it could not be counted."""
    held: tuple[int, ...] = ()
    """Per slot, the bytes that the process (on a GPU: its memory pool) held at the start."""
    growth: tuple[int, ...] = ()
    """Per slot, the most bytes the process (on a GPU: its memory pool) took beyond the start."""
    seconds: float = 0.0
    first: Sequence[list[Any]] = ()
    """By slot, what the calls returned that the workers were given before."""
    last: list[list[Any]] = field(default_factory=list)
    """By slot, what those returned which they were given at the end; empty if one is silent."""

    def moved(self, ranks: int, past_dask: list[tuple[int, int, int]]) -> Traffic | None:
        """All measured Traffic, with what went ``past_dask`` (source, destination, bytes)."""
        return self.traffic and self.traffic + Traffic.of(ranks, past_dask)

    def ledger(
        self, resident: dict[str, tuple[int, ...]], slots: Sequence[int] = ()
    ) -> Ledger | None:
        """The measured Ledger: ``resident`` bytes by tensor class, plus the growth, of the ranks in
        ``slots``; without, of every slot. None if that could not be measured.
        """
        if self.traffic is None:
            return None
        rows = [
            Row(place, tensor, ALWAYS, nbytes, source="bytes of the blocks on the worker")
            for tensor, per_place in resident.items()
            for place, nbytes in enumerate(per_place)
        ]
        for place, slot in enumerate(slots or range(len(self.growth))):
            grown, source = self.growth[slot], "peak resident set - at start"
            rows.append(Row(place, "process growth", "product", grown, source=source))
        return Ledger.of(rows)


@contextmanager
def counting(
    cluster: Cluster,
    timeout: float | None = None,
    first: Sequence[Call] = (),
    last: Sequence[Call] = (),
) -> Iterator[Counted]:
    """Counts what moves between workers, and how far their memory grows, inside the block.

    ``first`` and ``last`` are called on every worker along with that, before and at the end.

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
        token, backend = secrets.token_hex(8), cluster.backend
        held, made = zip(*cluster.run(_mark, token, backend, first, timeout=seconds), strict=True)
        counted, begun = Counted(held=held, first=made), time.perf_counter()
        yield counted
        counted.seconds = time.perf_counter() - begun
        try:
            reports = cluster.run(_report, token, backend, last, timeout=ANSWER)
        except DeadlineError as error:
            warnings.warn(
                f"the result is there, what moved and how memory grew is not known: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        slot_of = {address: slot for slot, (address, *_) in enumerate(reports)}
        # of a worker that died since: nobody's bytes
        moves = [
            (slot_of.get(who, slot), slot, size)
            for slot, (_, _, came, _) in enumerate(reports)
            for who, size in came
        ]
        counted.growth = tuple(max(0, r[1] - held) for r, held in zip(reports, held, strict=True))
        counted.last = [called for *_, called in reports]
        counted.traffic = Traffic.of(len(reports), moves).on(cluster.hosts)
    finally:
        cluster.counting.release()


# -- on a worker -----------------------------------------------------------------------------------

_marks: dict[str, int] = {}
"""Where the log of this worker's incoming transfers stood when each counting began."""


async def _mark(
    token: str, backend: str, first: Sequence[Call], dask_worker: Any
) -> tuple[int, list[Any]]:
    """The bytes that this worker holds, and what ``first`` returned; it remembers where its log of
    transfers stands."""
    log = dask_worker.transfer_incoming_log
    if len(log) > log.maxlen // 2:
        log.clear()  # a full log forgets its oldest entries, and then a mark means nothing
        _marks.clear()
    _marks[token] = len(log)
    return MEMORIES[backend].reset_peak(), await _called(first, dask_worker)


async def _report(
    token: str, backend: str, last: Sequence[Call], dask_worker: Any
) -> tuple[str, int, list[tuple[str, int]], list[Any]]:
    """(this worker's address, its peak, the sender and bytes of each that came in since the mark,
    what ``last`` returned). A restarted worker has a new log and no mark."""
    peak, log = MEMORIES[backend].peak_bytes(), list(dask_worker.transfer_incoming_log)
    came = [
        (entry["who"], nbytes)
        for entry in log[_marks.pop(token, 0) :]
        for key, nbytes in entry["keys"].items()
    ]
    return dask_worker.address, peak, came, await _called(last, dask_worker)


async def _called(calls: Sequence[Call], dask_worker: Any) -> list[Any]:
    made = [function(*args, dask_worker=dask_worker) for function, args in calls]
    return [await each if isawaitable(each) else each for each in made]
