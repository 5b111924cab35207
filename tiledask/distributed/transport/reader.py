"""The borrower's side of lent blocks: a task reads parts of them, and they are counted."""

import asyncio
import os
from collections.abc import Awaitable, Iterable, Iterator
from time import time
from typing import Any, TypeVar

import numpy as np
from dask.context import thread_state
from distributed import Reschedule, get_worker

from tiledask.distributed.arrays.recompute import Wanted, recovered
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.transport.blocks import Loans, Span, exchanges
from tiledask.distributed.transport.tickets import (
    CancelledError,
    LoanLostError,
    Ticket,
    check_lent,
    laid_out,
    part_of,
    read_memory,
)
from tiledask.errors import DeadlineError
from tiledask.plan.products.regions import Region
from tiledask.tile import as_dtype, ipc

__all__ = ["Reader", "answered", "call_worker", "read_part"]

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds that a borrower waits for an owner's answer."""
_failed: set[str] = set()
"""Tasks of this worker that could not read what they were lent, and will run again."""
_refused: set[int] = set()
"""Processes of this host whose memory cannot be read: the kernel or CUDA forbids it."""


class Reader:
    """Reads parts of other workers' blocks for the running task, and counts them.

    ``parts``: all that it will read. If this task runs again because a worker died, they come
    from Dask, and making a Reader may raise Reschedule (see recompute.py).
    """

    def __init__(self, exchange: str, transport: str, parts: Iterable[Wanted]) -> None:
        self.exchange, self.transport = exchange, transport
        self.worker, self.task = get_worker(), thread_state.key
        self.loans = exchanges.get(exchange) or Loans()
        self.facts = self.loans.facts
        self.recovered: dict[Wanted, Any] = {}
        if exchange not in exchanges or self.task in _failed:
            self.recovered = recovered(self.task, parts)
            _failed.discard(self.task)

    def check(self) -> None:
        """Raise CancelledError if the exchange is over."""
        if self.loans.cancelled.is_set():
            raise CancelledError("the product was cancelled or has failed elsewhere")

    def step_aside(self) -> Reschedule:
        """What to raise after a LoanLostError: the task will run again, with parts from Dask."""
        _failed.add(self.task)
        return Reschedule()

    def read(self, ticket: Ticket, ends: Region, buffer: Any) -> Any:
        """A part of a block, laid into the bytes of ``buffer`` in the order its owner has it.

        ``ends``: (start, stop) per dimension. ``buffer`` is uint8, on the GPU if the block is on
        one, and nothing that was begun there still uses it. A message ("comm") in host memory
        brings its own, and ``buffer`` is left alone. Raises LoanLostError if the block is not
        lent any more.
        """
        ((_, part),) = self.read_by_rows(ticket, ends, buffer, rows=None)
        return part

    def read_by_rows(
        self, ticket: Ticket, ends: Region, buffer: Any, rows: int | None
    ) -> Iterator[tuple[int, Any]]:
        """(first row, some rows of the part), at most ``rows`` at a time (None: all).

        Counted as one piece. ``buffer`` is used again for every part.
        """
        if self.recovered:
            yield 0, self.recovered[ticket.key, ticket.slot, ends]
            return
        if not ticket.token:
            raise LoanLostError(f"slot {ticket.slot} had lost {ticket.key} before it could lend it")
        opened = None if self.transport == "comm" else self.loans.opened
        (start, stop), total = ends[0] if ends else (0, 1), 0
        for first in range(start, stop, rows or max(1, stop - start)):
            self.check()
            begun, some = time(), ends
            if rows and ends:
                some = ((first, min(first + rows, stop)), *ends[1:])
            part = read_part(self.worker, self.exchange, ticket, some, buffer, opened)
            total += part.nbytes
            self.facts.spans.append(Span("read", begun, time()))
            yield first - start, part
        self.facts.reads.append((ticket.slot, total))


def read_part(
    worker: Any, exchange: str, ticket: Ticket, ends: Region, buffer: Any, opened: ipc.Opened | None
) -> Any:
    """A part of a block: from its owner's memory or GPU into ``buffer``, else by Dask.

    ``opened``: what is open of others' GPU memory; None takes nothing but messages.
    """
    if opened is not None and ticket.host == this_host() and ticket.pid not in _refused:
        try:
            if ticket.pointer:
                return read_memory(ticket, ends, buffer)
            if ticket.shared:
                return _read_gpu(opened, ticket, ends, buffer)
        except (PermissionError, ipc.Unreachable):
            _refused.add(ticket.pid)
    to_host = not ticket.pointer  # of a GPU the bytes go, moved by neither's event loop
    given = {"exchange": exchange, "key": ticket.key, "ends": ends, "to_host": to_host}
    try:
        answer = call_worker(worker, ticket.address, "tiledask_read", PATIENCE, **given)
    except TimeoutError:
        raise DeadlineError(
            f"the worker at {ticket.address} did not send a block's part within {PATIENCE:g} s; "
            f"it is frozen or gone. Start a new cluster"
        ) from None
    except OSError as error:  # Dask's comm errors are
        raise LoanLostError(
            f"the worker at {ticket.address} cannot be asked any more: {error}"
        ) from None
    if (part := answer["part"]) is None:
        raise LoanLostError(f"the worker at {ticket.address} does not lend {ticket.key} any more")
    if to_host:
        ipc.from_host(np.require(part, requirements="C"), buffer)
        return laid_out(ticket, ends, buffer)
    if isinstance(part, np.ndarray):  # messages arrive unaligned, and then sums round otherwise
        part = np.require(part, requirements=["C", "A"])
    return part


def _read_gpu(opened: ipc.Opened, ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part, from the owner's GPU into the start of ``buffer`` (uint8, on this one)."""
    assert ticket.shared is not None  # of what is not shared no part is read this way
    try:
        part = part_of(ends, ticket.strides, as_dtype(ticket.dtype).itemsize)
        opened.copy(ticket.pid, ticket.shared, part, buffer)
    except InterruptedError as error:
        raise LoanLostError(f"the exchange is over: {error}") from None
    except ipc.failures():
        try:
            check_lent(ticket)
        except LoanLostError:
            if ipc.lost():  # went down with the owner: Dask starts this worker again
                os._exit(1)
            raise
        raise
    check_lent(ticket)
    return laid_out(ticket, ends, buffer)


# -- other workers ---------------------------------------------------------------------------------


async def answered(call: Awaitable[T]) -> T:
    """What another worker answers; OSError if this one is being closed, as if the other one were:
    Dask's pool of connections then raises a RuntimeError."""
    try:
        return await call
    except RuntimeError as error:
        if "ConnectionPool is closed" not in str(error):
            raise
        raise OSError("this worker is being closed") from None


def call_worker(worker: Any, address: str, operation: str, seconds: float, **given: Any) -> Any:
    """What the worker at ``address`` answers to one of its handlers, asked from a task of
    ``worker``; raises TimeoutError after ``seconds``, and OSError if one of both is gone."""

    async def ask() -> Any:
        call = getattr(worker.rpc(address), operation)(**given)
        return await asyncio.wait_for(answered(call), seconds)

    return asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result(2 * seconds)
