"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       "memory": process_vm_readv(2), one copy, no socket
    token: still lent?     <-------------      "comm":   a message through Dask, for other machines,
                                                         GPUs, and where the kernel says no

A read from memory takes the token along, after the data: if the owner took the block back or died
and another process has its number now, the token differs, and what was read is thrown away.
Then, and when a task runs again long after its exchange, because its result was on a worker that
died, the parts come from Dask (recovery.py).

What was read is counted by the borrower, from what the system call or the message brought.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import secrets
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import time
from typing import Any

import numpy as np
from distributed import Future, Reschedule, get_worker
from distributed.protocol import to_serialize
from distributed.worker import thread_state

from tiledask.dist.cluster import Cluster
from tiledask.dist.recovery import Wanted, recovered
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.plan.products.placement import Region
from tiledask.tile import TileCount
from tiledask.tile.backend import array_namespace

__all__ = [
    "Block",
    "CancelledError",
    "Exchange",
    "Facts",
    "Lender",
    "LoanLostError",
    "Reader",
    "Span",
    "Ticket",
    "lend_array",
    "lending",
    "let_siblings_read",
    "read_lent",
    "serve",
    "ticket_of",
    "transport_of",
]

PATIENCE = 30.0
"""Seconds that a borrower waits for one message of an owner."""

_MOST_PIECES = 1024  # IOV_MAX of Linux: pieces of memory in one call
_MOST_BYTES = 2**30  # in one call; Linux stops at 2 GiB - 4 KiB


class LoanLostError(ClusterLostError):
    """The owner of a block is gone or has taken it back."""


class CancelledError(RuntimeError):
    """The exchange was ended while a task still worked for it."""


@dataclass(frozen=True)
class Ticket:
    """Where a lent block lies."""

    address: str
    """Of the owner, as Dask knows it."""
    pid: int
    name: str
    """Of the block within the exchange."""
    pointer: int
    """Of its first element in the owner's memory; 0 if it does not lie in host memory."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    token_at: int
    token: bytes


@dataclass(frozen=True)
class Block:
    """A block on some worker, for a reader: Dask's name for it, and the way past Dask."""

    key: str
    slot: int
    ticket: Ticket | None
    """None if it could not be lent."""


@dataclass(frozen=True)
class Span:
    """Something that a rank did, on its worker's clock."""

    kind: str
    """"multiply", "read", "wait" (for a panel), or "sum"."""
    start: float
    stop: float


@dataclass(frozen=True)
class Facts:
    """What one slot did in an exchange."""

    reads: tuple[tuple[int, int], ...]
    """(source slot, bytes) of every piece that was read."""
    spans: tuple[Span, ...]
    tiles: tuple[TileCount | None, ...] = ()
    """Of every task that multiplied, what its kernel loaded; None where that is not counted."""


@dataclass
class Exchange:
    """What this worker lends and has read for one operation."""

    lent: dict[str, tuple[Any, np.ndarray]] = field(default_factory=dict)
    """name -> the block and its token."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(source slot, bytes) of every piece that was read."""
    spans: list[Span] = field(default_factory=list)
    tiles: list[TileCount | None] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)


_exchanges: dict[str, Exchange] = {}
"""In a worker: the operations under way, by name."""
_failed: set[str] = set()
"""In a worker: tasks that could not read what they were lent, and will run again."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.transport = transport_of(cluster)

    def lend(
        self, blocks: Sequence[Sequence[Future]], timeout: float | None
    ) -> list[list[Ticket | None]]:
        """A Ticket for every block of ``blocks[slot]``, by slot; None for one not in memory now."""
        keys = [[future.key for future in mine] for mine in blocks]
        keys += [[]] * (self.cluster.slots - len(keys))
        return self.cluster.run(_lend, self.name, keys, timeout=timeout)

    def end(self, timeout: float = 20.0) -> list[Facts]:
        """What every slot read and did; nothing is lent any more, and tasks that go on stop."""
        return self.cluster.run(_end, self.name, timeout=timeout)


@contextlib.contextmanager
def lending(cluster: Cluster) -> Iterator[Lender]:
    """An exchange that is over when the block ends, however it ends."""
    lender = Lender(cluster, f"exchange-{secrets.token_hex(8)}")
    try:
        yield lender
    except BaseException:
        with contextlib.suppress(Exception):  # of a cluster that is gone: nothing is lent there
            lender.end()
        raise


def transport_of(cluster: Cluster) -> str:
    """ "memory" if every worker may read the others', else "comm"; found out once per cluster."""
    if not cluster.transport:
        cluster.transport, cluster.transport_why = _find_transport(cluster)
    return cluster.transport


def _find_transport(cluster: Cluster) -> tuple[str, str]:
    if cluster.backend != "numpy":
        return "comm", "blocks lie in GPU memory"
    if sys.platform != "linux":
        return "comm", f"process_vm_readv is Linux's, this is {sys.platform}"
    name = f"probe-{secrets.token_hex(8)}"
    try:
        tickets = cluster.run(_lend_probe, name)
        reasons = [why for why in cluster.run(_read_probes, name, tickets) if why]
    finally:
        with contextlib.suppress(Exception):
            cluster.run(_end, name)
    if reasons:
        return "comm", reasons[0]
    return "memory", "workers may read each other's memory"


# -- the owner -----------------------------------------------------------------------------------


def _slot(worker: Any) -> int:
    names = worker.state.total_resources
    return next(int(name[4:]) for name in names if name.startswith("slot"))


def _lend(name: str, keys: list[list[str]], dask_worker: Any) -> list[Ticket | None]:
    """Tickets of this worker's blocks, None for one that it does not hold."""
    exchange = _exchanges.setdefault(name, Exchange())
    tickets = []
    for key in keys[_slot(dask_worker)]:
        block = dask_worker.data.get(key)
        tickets.append(None if block is None else _ticket(exchange, block, key, dask_worker))
    return tickets


def _ticket(exchange: Exchange, block: Any, name: str, worker: Any) -> Ticket:
    if name not in exchange.lent:
        exchange.lent[name] = (block, np.frombuffer(secrets.token_bytes(16), np.uint8).copy())
    block, token = exchange.lent[name]
    host = isinstance(block, np.ndarray)
    return Ticket(
        worker.address, os.getpid(), name, block.ctypes.data if host else 0, block.shape,
        block.strides, block.dtype.name, token.ctypes.data, token.tobytes(),
    )  # fmt: skip


def lend_array(name: str, array: Any, worker: Any) -> Ticket:
    """The Ticket of an array that is no block of Dask's; called on the worker that has it."""
    exchange = _exchanges.setdefault(name, Exchange())
    return _ticket(exchange, array, "array", worker)


def ticket_of(exchange: Exchange, array: np.ndarray, name: Any, worker: Any) -> Ticket:
    """A Ticket for an array that ``exchange`` keeps until it is dropped or the array taken back."""
    return _ticket(exchange, array, name, worker)


def _end(name: str) -> Facts:
    """The facts of the exchange; its blocks are let go, the tokens first."""
    exchange = _exchanges.pop(name, None) or Exchange()
    exchange.cancelled.set()
    for _, token in exchange.lent.values():
        token[:] = 0
    exchange.lent.clear()
    return Facts(tuple(exchange.reads), tuple(exchange.spans), tuple(exchange.tiles))


async def serve(exchange: str, name: str, ends: list[tuple[int, int]]) -> dict:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block."""
    if exchange not in _exchanges or name not in _exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = _exchanges[exchange].lent[name]
    part = block[tuple(slice(*e) for e in ends)]
    return {"status": "OK", "part": to_serialize(array_namespace(part).ascontiguousarray(part))}


# -- the borrower --------------------------------------------------------------------------------


class Reader:
    """Reads parts of other workers' blocks for the running task, and counts them.

    ``parts``: all that it will read. If this task runs again because a worker died, they come
    from Dask, and making a Reader may raise Reschedule (see recovery.py).
    """

    def __init__(self, exchange: str, transport: str, parts: Iterable[Wanted]) -> None:
        self.exchange, self.transport = exchange, transport
        self.worker, self.task = get_worker(), thread_state.key
        self.facts = _exchanges.get(exchange) or Exchange()
        self.recovered: dict[Wanted, Any] = {}
        if exchange not in _exchanges or self.task in _failed:
            self.recovered = recovered(self.task, parts)
            _failed.discard(self.task)

    def check(self) -> None:
        """Raise CancelledError if the exchange is over."""
        if self.facts.cancelled.is_set():
            raise CancelledError("the product was cancelled or has failed elsewhere")

    def step_aside(self) -> Reschedule:
        """What to raise after a LoanLostError: the task will run again, with parts from Dask."""
        _failed.add(self.task)
        return Reschedule()

    def read(self, block: Block, ends: Region, buffer: Any) -> Any:
        """The part of ``block``, laid into the bytes of ``buffer`` in the order its owner has it.

        ``ends``: (start, stop) per dimension. A message ("comm") brings memory of its own, and
        ``buffer`` is left alone. Raises LoanLostError if the block is not lent any more.
        """
        ((_, part),) = self.read_by_rows(block, ends, buffer, rows=None)
        return part

    def read_by_rows(
        self, block: Block, ends: Region, buffer: Any, rows: int | None
    ) -> Iterator[tuple[int, Any]]:
        """(first row, some rows of the part), at most ``rows`` at a time (None: all).

        Counted as one piece. ``buffer`` is used again for every part.
        """
        if self.recovered:
            yield 0, self.recovered[block.key, block.slot, ends]
            return
        if block.ticket is None:
            raise LoanLostError(f"slot {block.slot} had lost {block.key} before it could lend it")
        total = 0
        start, stop = ends[0] if ends else (0, 1)
        for first in range(start, stop, rows or max(1, stop - start)):
            self.check()
            begun, some = time(), ends
            if rows and ends:
                some = ((first, min(first + rows, stop)), *ends[1:])
            if self.transport == "memory":
                part = _read_memory(block.ticket, some, buffer)
            else:
                part = self._ask(block.ticket, some)
            total += part.nbytes
            self.facts.spans.append(Span("read", begun, time()))
            yield first - start, part
        self.facts.reads.append((block.slot, total))

    def _ask(self, ticket: Ticket, ends: Region) -> Any:
        async def ask() -> dict:
            call = self.worker.rpc(ticket.address).tiledask_read(
                exchange=self.exchange, name=ticket.name, ends=ends
            )
            return await asyncio.wait_for(call, PATIENCE)

        try:
            answer = asyncio.run_coroutine_threadsafe(ask(), self.worker.loop.asyncio_loop).result()
        except TimeoutError:
            raise DeadlineError(
                f"the worker at {ticket.address} did not send a block's part within "
                f"{PATIENCE:g} s; it is frozen or gone. Start a new cluster"
            ) from None
        except OSError as error:  # Dask's comm errors are
            raise LoanLostError(
                f"the worker at {ticket.address} cannot be asked any more: {error}"
            ) from None
        part = answer["part"]
        if part is None:
            raise LoanLostError(
                f"the worker at {ticket.address} does not lend {ticket.name} any more"
            )
        if isinstance(part, np.ndarray):  # messages arrive unaligned, and then sums round otherwise
            part = np.require(part, requirements="CA")
        return part


def _read_memory(ticket: Ticket, ends: Region, buffer: np.ndarray) -> np.ndarray:
    """The part, by process_vm_readv into the start of ``buffer`` (uint8)."""
    dtype = np.dtype(ticket.dtype)
    shape = [stop - start for start, stop in ends]
    base = ticket.pointer
    base += sum(start * step for (start, _), step in zip(ends, ticket.strides, strict=True))
    order = sorted(range(len(shape)), key=lambda d: -ticket.strides[d])  # stable: C order stays
    length, rest = dtype.itemsize, list(order)
    while rest and (ticket.strides[rest[-1]] == length or shape[rest[-1]] == 1):
        length *= shape[rest.pop()]
    starts = np.array([base], np.uint64)
    for d in rest:
        steps = np.arange(shape[d], dtype=np.int64) * ticket.strides[d]
        starts = (starts[:, None] + steps.astype(np.uint64)).ravel()
    nbytes = length * len(starts)
    _copy(ticket, starts, length, buffer.ctypes.data)
    part = buffer[:nbytes].view(dtype).reshape([shape[d] for d in order])
    return part.transpose(np.argsort(order))


def read_lent(ticket: Ticket, flat: np.ndarray) -> None:
    """Fill ``flat`` (uint8) with the array of ``ticket``, which has that shape and type too.

    Raises LoanLostError if it is not lent any more.
    """
    if flat.nbytes:
        _copy(ticket, np.array([ticket.pointer], np.uint64), flat.nbytes, flat.ctypes.data)


def _copy(ticket: Ticket, starts: np.ndarray, length: int, to: int) -> None:
    """Copy ``length`` bytes from each of ``starts`` in the owner's memory, one after the other."""
    if length > _MOST_BYTES:  # one long run: in parts
        parts = np.arange(0, length, _MOST_BYTES, dtype=np.uint64)
        for start in starts:
            for at in parts.tolist():
                one = np.array([start + np.uint64(at)], np.uint64)
                _copy(ticket, one, min(_MOST_BYTES, length - at), to + at)
            to += length
        return
    each = max(1, min(_MOST_PIECES - 1, _MOST_BYTES // length))
    token = np.empty(16, np.uint8)
    for first in range(0, len(starts), each):
        batch = starts[first : first + each]
        remote = np.empty((len(batch) + 1, 2), np.uint64)
        remote[:-1, 0], remote[:-1, 1] = batch, length
        remote[-1] = ticket.token_at, token.nbytes
        local = np.array([[to, length * len(batch)], [token.ctypes.data, token.nbytes]], np.uint64)
        wanted = length * len(batch) + token.nbytes
        got = _readv()(ticket.pid, local.ctypes.data, 2, remote.ctypes.data, len(remote), 0)
        if got != wanted or token.tobytes() != ticket.token:
            code = ctypes.get_errno() if got < 0 else 0
            if code in (errno.EPERM, errno.ENOSYS):
                raise PermissionError(code, os.strerror(code))
            why = os.strerror(code) if code else f"{got} of {wanted} bytes, or another's memory"
            raise LoanLostError(
                f"the worker at {ticket.address} does not lend {ticket.name} any more: {why}"
            )
        to += length * len(batch)


@cache
def _readv() -> Any:
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    call.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return call


def let_siblings_read() -> None:
    """Where the kernel lets only ancestors look into a process (Yama), the client's processes may.

    PR_SET_PTRACER of prctl(2) names the parent, which is the client, and so its other children.
    Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(os.getppid()), 0, 0, 0)


# -- may they read each other? -------------------------------------------------------------------


def _lend_probe(name: str, dask_worker: Any) -> Ticket:
    return lend_array(name, np.arange(8), dask_worker)


def _read_probes(name: str, tickets: list[Ticket]) -> str:
    """Why this worker cannot read all the others' memory; empty if it can."""
    try:
        for ticket in tickets:
            part = _read_memory(ticket, ((0, 8),), np.empty(64, np.uint8))
            if part.tolist() != list(range(8)):
                return f"the worker at {ticket.address}: read {part.tolist()} instead of 0..7"
    except (OSError, AttributeError, LoanLostError) as error:
        return f"process_vm_readv: {error}"
    return ""
