"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       memory     of one host: process_vm_readv(2)
    token: still lent?     <-------------      a GPU      to another's (tile/ipc.py)
                                               a message  by Dask: all others

A read from memory takes the token along, after the data, and a copy from GPU to GPU looks at it
when it is done: if the owner took the block back or died, the token differs, and what was read is
thrown away, and whoever has asked for the work asks again. When an exchange ends, all borrowers
close what they have open of GPUs, and then the owners let go: memory that another process has open
must not go back to the driver.

What was read is counted by the borrower, from what the call, the copy or the message brought.
"""

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

import numpy as np
from dask.context import thread_state
from distributed import Future, get_worker
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import keys_of, slot_on
from tiledask.distributed.transport.tickets import (
    CancelledError,
    LoanLostError,
    Ticket,
    check_lent,
    laid_out,
    part_of,
    read_memory,
)
from tiledask.errors import DeadlineError, KernelError
from tiledask.plan.products.regions import Region, slices
from tiledask.tile import TileCount, ipc
from tiledask.tile.backend import as_dtype

__all__ = [
    *("Facts", "Lender", "Loans", "Reader", "Span", "end_exchange", "exchanges", "lend_array"),
    *("lending", "read_part", "serve", "ticket_of"),
]

PATIENCE = 30.0
"""Seconds that a borrower waits for an owner's answer."""
Span = tuple[str, int, float, float]
"""What a rank did, "multiply", "read", "wait" (for a panel) or "sum"; of which panel; and when it
began and ended, on its worker's clock."""


@dataclass
class Facts:
    """What one slot did in an exchange."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    """(source slot, bytes) of every piece that was read."""
    tiles: list[TileCount | None] = field(default_factory=list)
    """What the kernel of every task that multiplied loaded; None where that is not counted."""


@dataclass
class Loans:
    """What this worker lends for one operation, and has of others."""

    lent: dict[Any, tuple[Any, np.ndarray]] = field(default_factory=dict)
    """key -> the block and its token."""
    facts: Facts = field(default_factory=Facts)
    opened: ipc.Opened = field(default_factory=ipc.Opened)
    """What this worker has open of the others' GPU memory."""
    cancelled: threading.Event = field(default_factory=threading.Event)


exchanges: dict[str, Loans] = {}
"""The operations under way in this worker, by name."""
_refused: set[int] = set()
"""Processes of this host whose memory cannot be read: the kernel or CUDA forbids it."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.name = cluster, f"exchange-{secrets.token_hex(8)}"
        self.ends: Call = end_exchange, (self.name,)
        """What `end` has every worker do, once all are closed."""

    def lends(self, arrays: Sequence[Sequence[Future[Any]]]) -> Call:
        """What gives, run on every worker, a Ticket for its block of each of ``arrays``."""
        return _lend, (self.name, [keys_of(blocks) for blocks in arrays])

    def end(self) -> None:
        """Nothing is lent any more, and tasks that go on stop."""
        self.close()
        self.cluster.run(end_exchange, self.name, timeout=20.0)

    def close(self) -> None:
        """Return when no slot has memory of another's GPU open."""
        if self.cluster.backend == "cupy":
            with contextlib.suppress(DeadlineError):  # of one that is frozen: it is asked again
                self.cluster.run(_close, self.name, timeout=20.0)


@contextlib.contextmanager
def lending(cluster: Cluster) -> Iterator[Lender]:
    """An exchange that is over when the block fails; else its `ends` were called in it."""
    lender = Lender(cluster)
    try:
        yield lender
    except BaseException:
        with contextlib.suppress(Exception):  # of a cluster that is gone: nothing is lent there
            lender.end()
        raise


# -- the owner -----------------------------------------------------------------------------------


async def _lend(name: str, keys: list[dict[int, str]], dask_worker: Any) -> list[Ticket]:
    """Tickets of this worker's blocks; of those that are gone they say no more than which."""
    loans, slot, data = exchanges.setdefault(name, Loans()), slot_on(dask_worker), dask_worker.data
    mine = [each.get(slot, "") for each in keys]
    blocks = [(data.get(key), key) for key in mine]

    def tickets() -> list[Ticket]:
        return [ticket_of(loans, *each, dask_worker, slot) for each in blocks]

    return await asyncio.to_thread(tickets)  # a GPU may have much to finish first


def ticket_of(loans: Loans, block: Any, key: Any, worker: Any, slot: int = -1) -> Ticket:
    """A Ticket for what ``loans`` keep until they are dropped or the block taken back."""
    if block is None:
        return Ticket(key, slot)
    if key not in loans.lent:
        loans.lent[key] = (block, np.frombuffer(secrets.token_bytes(16), np.uint8).copy())
    block, token = loans.lent[key]
    host, shared = isinstance(block, np.ndarray), None
    if not host:
        with contextlib.suppress(KernelError):  # it goes as a message
            shared = ipc.share(block)
    where = worker.address, this_host(), os.getpid(), block.ctypes.data if host else 0, shared
    name = block.dtype.name if block.dtype.isnative else block.dtype.str
    lent = token.ctypes.data, token.tobytes()
    return Ticket(key, slot, *where, block.shape, block.strides, name, *lent)


def lend_array(name: str, array: Any, worker: Any) -> Ticket:
    """The Ticket of an array that is no block of Dask's; called on the worker that has it."""
    return ticket_of(exchanges.setdefault(name, Loans()), array, "array", worker)


async def _close(name: str) -> None:
    """Return when this worker reads nothing more in the exchange, and has nothing of others
    open."""
    if name in exchanges:
        exchanges[name].cancelled.set()
        await asyncio.to_thread(exchanges[name].opened.close)


def end_exchange(name: str, dask_worker: Any = None) -> Facts:
    """The facts of the exchange; its blocks are let go, the tokens first."""
    loans = exchanges.pop(name, None) or Loans()
    loans.cancelled.set()
    loans.opened.close(0.0)
    for _, token in loans.lent.values():
        token[:] = 0
    loans.lent.clear()
    return loans.facts


async def serve(exchange: str, key: str, ends: Region) -> dict[str, Any]:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block; of
    one on a GPU its bytes in host memory, in the order of `part_of`."""
    if exchange not in exchanges or key not in exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = exchanges[exchange].lent[key]
    if isinstance(block, np.ndarray):  # not ascontiguousarray: what has no dimensions would get one
        part = np.asarray(block[slices(ends)], order="C")
    else:  # by neither's event loop
        lies = part_of(ends, block.strides, block.dtype.itemsize)
        part = await asyncio.to_thread(ipc.to_host, block, lies)
    return {"status": "OK", "part": to_serialize(part)}


# -- the borrower --------------------------------------------------------------------------------


class Reader:
    """Reads parts of other workers' blocks for the running task, and counts them."""

    def __init__(self, exchange: str) -> None:
        self.exchange, self.worker, self.task = exchange, get_worker(), thread_state.key
        self.loans = exchanges.get(exchange) or Loans()
        self.facts, self.spans = self.loans.facts, list[Span]()

    def check(self) -> None:
        """Raise CancelledError if the exchange is over."""
        if self.loans.cancelled.is_set():
            raise CancelledError("the product was cancelled or has failed elsewhere")

    def read(self, ticket: Ticket, ends: Region, buffer: Any) -> Any:
        """A part of a block, laid into the bytes of ``buffer`` in the order its owner has it.

        ``ends``: (start, stop) per dimension. ``buffer`` is uint8, on the GPU if the block is on
        one, and nothing that was begun there still uses it; what comes as a message to host memory
        leaves it alone. Raises LoanLostError if the block is not lent any more, or this task runs
        again because its worker died: what it reads would not be counted.
        """
        ((_, part),) = self.read_by_rows(ticket, ends, buffer, rows=None)
        return part

    def read_by_rows(
        self, ticket: Ticket, ends: Region, buffer: Any, rows: int | None
    ) -> Iterator[tuple[int, Any]]:
        """(first row, some rows of the part), at most ``rows`` at a time (None: all).

        Counted as one piece. ``buffer`` is used again for every part.
        """
        if self.exchange not in exchanges:
            raise LoanLostError(
                f"{self.task} was lost with its worker, and what other workers lent it is "
                f"not lent any more: make its array again"
            )
        if not ticket.token:
            raise LoanLostError(f"slot {ticket.slot} had lost {ticket.key} before it could lend it")
        (start, stop), total = ends[0] if ends else (0, 1), 0
        for first in range(start, stop, rows or max(1, stop - start)):
            self.check()
            begun, some = time(), ends
            if rows and ends:
                some = ((first, min(first + rows, stop)), *ends[1:])
            part = read_part(self.worker, self.exchange, ticket, some, buffer, self.loans.opened)
            total += part.nbytes
            self.spans.append(("read", 0, begun, time()))
            yield first - start, part
        self.facts.reads.append((ticket.slot, total))


def read_part(
    worker: Any, exchange: str, ticket: Ticket, ends: Region, buffer: Any, opened: ipc.Opened
) -> Any:
    """A part of a block: from its owner's memory or GPU (``opened``: what is open of others') into
    ``buffer``, else by Dask."""
    if ticket.host == this_host() and ticket.pid not in _refused:
        try:
            if ticket.pointer:
                return read_memory(ticket, ends, buffer)
            if ticket.shared:
                return _read_gpu(opened, ticket, ends, buffer)
        except (PermissionError, ipc.Unreachable):
            _refused.add(ticket.pid)

    async def ask() -> Any:
        owner = worker.rpc(ticket.address)
        call = owner.tiledask_read(exchange=exchange, key=ticket.key, ends=ends)
        return (await asyncio.wait_for(call, PATIENCE))["part"]  # which ends it, too

    lost = ""
    try:
        part = asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result()
    except TimeoutError:
        raise DeadlineError(
            f"the worker at {ticket.address} did not send a block's part within {PATIENCE:g} s; "
            f"it is frozen or gone. Start a new cluster"
        ) from None
    except (OSError, RuntimeError) as error:  # Dask's comm errors; of a worker that is being closed
        part, lost = None, f": {error}"
    if part is None:
        raise LoanLostError(
            f"the worker at {ticket.address} does not lend {ticket.key} any more{lost}"
        )
    part = np.require(part, requirements=["C", "A"])  # unaligned, sums would round otherwise
    if ticket.pointer:
        return part
    ipc.from_host(part, buffer)
    return laid_out(ticket, ends, buffer)


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
