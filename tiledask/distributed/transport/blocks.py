"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, lent while it lives               Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       memory     of one host: process_vm_readv(2)
    token: still lent?     <-------------      a GPU      to another's (tile/ipc.py)
                                               a message  by Dask: all others

A task that makes a block sends its ticket, and what it counted, ahead of the news that it is done:
nobody is asked for them. A read from memory takes the token along, after the data, and a copy from
GPU to GPU looks at it when it is done: if the block is gone, the token differs, and what was read
is thrown away. Then Dask is asked, for it may have moved the block to a disk; if it is not there
either, whoever has asked for the work asks again. A task closes what it has open of other GPUs
before it ends, and so before the owners let go: memory that another process has open must not go
back to the driver.

Messages between ranks lend arrays too, until their exchange ends. What was read is counted by the
borrower, from what the call, the copy or the message brought.
"""

import asyncio
import contextlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pickle import dumps, loads
from time import time
from typing import Any, NamedTuple

import numpy as np
from dask.context import thread_state
from distributed import Future, get_worker
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import MEMORIES
from tiledask.distributed.cluster.progress import log_last
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import slot_on
from tiledask.distributed.transport.tickets import (
    CancelledError,
    LoanLostError,
    MovedError,
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
    *("Loans", "Made", "Reader", "Span", "end_exchange", "exchanges", "lent", "made_of"),
    *("read_part", "server", "submit_blocks", "ticket_of"),
]

NEWS = "tiledask-blocks"
"""Dask's topic of blocks that were made."""
PATIENCE = 30.0
"""Seconds that a borrower waits for an owner's answer."""
Span = tuple[str, int, float, float]
"""What a rank did, "multiply", "read", "wait" (for a panel) or "sum"; of which panel; and when it
began and ended, on its worker's clock."""


class Made(NamedTuple):
    """What the client hears of a block together with the news that it is there."""

    ticket: Ticket
    reads: Sequence[tuple[int, int]] = ()
    """(source slot, bytes) of every piece that its task read."""
    tiles: Sequence[TileCount | None] = ()
    """What the kernel loaded, if the task multiplied; None where that is not counted."""
    held: int = 0
    """Bytes that the process (on a GPU: its memory pool) held as the task began."""
    peak: int = 0
    """The most that it held until the task was done."""


@dataclass
class Loans:
    """What this worker lends in an exchange of messages, and has of others."""

    lent: dict[Any, tuple[Any, np.ndarray]] = field(default_factory=dict)
    """key -> the array and its token."""
    opened: ipc.Opened = field(default_factory=ipc.Opened)
    """What this worker has open of the others' GPU memory."""


exchanges: dict[str, Loans] = {}
"""The exchanges under way in this worker, by name."""
_refused: set[int] = set()
"""Processes of this host whose memory cannot be read: the kernel or CUDA forbids it."""


# -- the client ----------------------------------------------------------------------------------


def submit_blocks(
    cluster: Cluster, function: Callable[..., Any], args: Mapping[int, Sequence[Any]], name: str
) -> list[Future[Any]]:
    """A Future for every slot of ``args``, of a block that ``function`` makes and has `lent`."""
    client: Any = cluster.client
    if NEWS not in vars(client):
        news = vars(client)[NEWS] = dict[str, bytes]()

        def hear(event: tuple[float, dict[str, Any]]) -> None:
            if (key := event[1]["key"]) in client.futures:  # others have clients of their own
                news[key] = event[1]["made"]

        client.subscribe_topic(NEWS, hear)
    for key in [key for key in [*vars(client)[NEWS]] if key not in client.futures]:
        vars(client)[NEWS].pop(key, None)  # nobody will ask of these
    return cluster.submit_all(function, args, name=name)


def made_of(blocks: Iterable[Future[Any]]) -> list[Made]:
    """What is known of blocks that are there; of one that was lost, since it was made again."""
    found = list[Made]()
    for block in blocks:
        if (news := vars(block.client)[NEWS].pop(block.key, None)) is not None:
            vars(block)["made"] = loads(news)
        found.append(vars(block)["made"])
    return found


# -- the owner -----------------------------------------------------------------------------------


def lent(block: Any, **counted: Any) -> Any:
    """``block``, which the running task returns: lent as long as it lives, with what was
    ``counted`` (fields of `Made`)."""
    worker, token = get_worker(), _token()
    weakref.finalize(block, token.fill, 0).atexit = False
    ticket = _ticket(block, token, thread_state.key, worker, slot_on(worker))
    made = dumps(Made(ticket, **counted))
    log_last(worker, NEWS, {"key": thread_state.key, "made": made})
    return block


def ticket_of(loans: Loans, array: Any, key: Any, worker: Any) -> Ticket:
    """A Ticket for what ``loans`` keep until they are dropped or the array taken back."""
    if key not in loans.lent:
        loans.lent[key] = (array, _token())
    return _ticket(*loans.lent[key], key, worker)


def _token() -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(16), np.uint8).copy()


def _ticket(block: Any, token: np.ndarray, key: Any, worker: Any, slot: int = -1) -> Ticket:
    host, shared = isinstance(block, np.ndarray), None
    if not host:
        with contextlib.suppress(KernelError):  # it goes as a message
            shared = ipc.share(block)
    where = worker.address, this_host(), os.getpid(), block.ctypes.data if host else 0, shared
    name = block.dtype.name if block.dtype.isnative else block.dtype.str
    here = token.ctypes.data, token.tobytes()
    return Ticket(key, slot, *where, block.shape, block.strides, name, *here)


def end_exchange(name: str) -> None:
    """Let go what is lent in the exchange, the tokens first."""
    loans = exchanges.pop(name, None) or Loans()
    loans.opened.close(0.0)
    for _, token in loans.lent.values():
        token[:] = 0
    loans.lent.clear()


def server(data: Mapping[str, Any]) -> Callable[..., Any]:
    """What a borrower asks for through Dask, a handler of the worker with this ``data``: a part of
    a block, or of what is lent in an exchange; of one on a GPU its bytes in host memory, in the
    order of `part_of`."""

    async def serve(exchange: str, key: str, ends: Region) -> dict[str, Any]:
        block = data.get(key)
        if exchange:
            block, _ = exchanges.get(exchange, Loans()).lent.get(key, (None, None))
        if block is None:
            return {"status": "OK", "part": None}
        if isinstance(block, np.ndarray):
            # not ascontiguousarray: what has no dimensions would get one
            part = np.asarray(block[slices(ends)], order="C")
        else:  # by neither's event loop
            lies = part_of(ends, block.strides, block.dtype.itemsize)
            part = await asyncio.to_thread(ipc.to_host, block, lies)
        return {"status": "OK", "part": to_serialize(part)}

    return serve


# -- the borrower --------------------------------------------------------------------------------


class Reader:
    """Reads parts of other workers' blocks for the running task, and counts what it does."""

    def __init__(self, own: Iterable[Ticket], backend: str) -> None:
        """``own``: of the blocks that the task was given."""
        self.worker, self.task = get_worker(), thread_state.key
        if any(ticket.address != self.worker.address for ticket in own):
            raise LoanLostError(
                f"{self.task} was lost with its worker, and what it read of others may be gone: "
                f"make its array again"
            )
        self.opened, self.memory = ipc.Opened(), MEMORIES[backend]
        self.held, self.spans = self.memory.reset_peak(), list[Span]()
        self.reads, self.tiles = list[tuple[int, int]](), list[TileCount | None]()

    def lent(self, block: Any) -> Any:
        """The ``block`` that the task returns, with what was counted meanwhile."""
        peak, counted = self.memory.peak_bytes(), {"reads": self.reads, "tiles": self.tiles}
        return lent(block, held=self.held, peak=peak, **counted)

    def check(self) -> None:
        """Raise CancelledError if nobody waits for the task any more."""
        task = self.worker.state.tasks.get(self.task)
        if task is None or task.state == "cancelled":
            raise CancelledError("the product was cancelled or has failed elsewhere")

    def read(self, ticket: Ticket, ends: Region, buffer: Any) -> Any:
        """A part of a block, laid into the bytes of ``buffer`` in the order its owner has it.

        ``ends``: (start, stop) per dimension. ``buffer`` is uint8, on the GPU if the block is on
        one, and nothing that was begun there still uses it; what comes as a message to host memory
        leaves it alone. Raises LoanLostError if the block is gone.
        """
        ((_, part),) = self.read_by_rows(ticket, ends, buffer, rows=None)
        return part

    def read_by_rows(
        self, ticket: Ticket, ends: Region, buffer: Any, rows: int | None
    ) -> Iterator[tuple[int, Any]]:
        """(first row, some rows of the part), at most ``rows`` at a time (None: all).

        Counted as one piece. ``buffer`` is used again for every part.
        """
        (start, stop), total = ends[0] if ends else (0, 1), 0
        for first in range(start, stop, rows or max(1, stop - start)):
            self.check()
            begun, some = time(), ends
            if rows and ends:
                some = ((first, min(first + rows, stop)), *ends[1:])
            part = read_part(self.worker, "", ticket, some, buffer, self.opened)
            total += part.nbytes
            self.spans.append(("read", 0, begun, time()))
            yield first - start, part
        self.reads.append((ticket.slot, total))


def read_part(
    worker: Any, exchange: str, ticket: Ticket, ends: Region, buffer: Any, opened: ipc.Opened
) -> Any:
    """A part of a block, or of what is lent in an ``exchange``: from its owner's memory or GPU
    (``opened``: what is open of others') into ``buffer``, else by Dask."""
    if ticket.host == this_host() and ticket.pid not in _refused:
        try:
            if ticket.pointer:
                return read_memory(ticket, ends, buffer)
            if ticket.shared:
                return _read_gpu(opened, ticket, ends, buffer)
        except (PermissionError, ipc.Unreachable):
            _refused.add(ticket.pid)
        except MovedError:
            if exchange:
                raise

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
