"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       memory     of one host: process_vm_readv(2)
    token: still lent?     <-------------      a socket   between hosts (streams.py)
                                               a message  by Dask, where neither can be
                                               a GPU      to another's (tile/ipc.py)

    "memory"   all by the first              "sockets"  by the first within a host, else the second
    "ipc"      from GPU to GPU               "mixed"    some pairs by messages
    "comm"     all by messages

A read from memory takes the token along, after the data, and a copy from GPU to GPU looks at it
when it is done: if the owner took the block back or died and another process has its number now,
the token differs, and what was read is thrown away. Then, and when a task runs again long after
its exchange, because its result was on a worker that died, the parts come from Dask (recompute.py).

An owner says where a block lies when the kernels that wrote it are done. Memory of its GPU may go
back to the driver only when no borrower has it open: when an exchange ends, all borrowers close
first, and then the owners let go.

What was read is counted by the borrower, from what the call, the copy or the message brought.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dask.context import thread_state
from distributed import Future, Reschedule, get_worker
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.arrays.recompute import Wanted, recovered
from tiledask.distributed.cluster.cluster import Cluster, slot_on
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.transport import listener
from tiledask.distributed.transport.listener import Unreachable
from tiledask.distributed.transport.mailbox import CancelledError
from tiledask.distributed.transport.process_memory import check_lent, read_memory, this_host
from tiledask.distributed.transport.streams import PATIENCE, Streams
from tiledask.distributed.transport.tickets import (
    LentBlock,
    LoanLostError,
    Ticket,
    laid_out,
    layout_of,
)
from tiledask.errors import DeadlineError, KernelError
from tiledask.plan.products.regions import Region
from tiledask.tile import TileCount, as_dtype, ipc
from tiledask.tile.backend import array_namespace, namespace

__all__ = [
    "Facts",
    "Lender",
    "LentBlock",
    "LoanLostError",
    "Loans",
    "Reader",
    "Span",
    "Ticket",
    "end_all",
    "lend_array",
    "lending",
    "reads_memory_of",
    "said_of",
    "serve",
    "ticket_of",
    "transport_of",
]

T = TypeVar("T")

HOSTS = 16
"""Of the other hosts, how many a worker tries to connect to before anything is read."""


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
    """What the kernel of every task that multiplied loaded; None where that is not counted."""


@dataclass
class Loans:
    """What this worker lends and has read for one operation."""

    lent: dict[str, tuple[Any, np.ndarray]] = field(default_factory=dict)
    """name -> the block and its token."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(source slot, bytes) of every piece that was read."""
    spans: list[Span] = field(default_factory=list)
    told: int = 0
    """Of the spans, how many the dashboard's page knows."""
    tiles: list[TileCount | None] = field(default_factory=list)
    opened: ipc.Opened = field(default_factory=ipc.Opened)
    """What this worker has open of the others' GPU memory."""
    door: listener.Door | None = None
    """Where who borrows connects; None if nobody does."""
    secret: bytes = b""
    """By which they prove that they may."""
    streams: Streams = field(default_factory=Streams)
    """Its connections with others."""
    cancelled: threading.Event = field(default_factory=threading.Event)


_exchanges: dict[str, Loans] = {}
"""The operations under way in this worker, by name."""
_refused: dict[tuple[str, int, str], str] = {}
"""(address of another worker, its process, way) -> why its blocks cannot be read that way."""
_failed: set[str] = set()
"""Tasks of this worker that could not read what they were lent, and will run again."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.transport = transport_of(cluster)
        self.doors = self.transport in ("sockets", "mixed")
        """Whether workers connect to others' ports."""

    def lend(
        self, blocks: Sequence[Sequence[Future[Any]]], timeout: float | None
    ) -> list[list[Ticket | None]]:
        """A Ticket for every block of ``blocks[slot]``, by slot; None for one not in memory now."""
        function, args = self.lends(blocks)
        return self.cluster.run(function, *args, timeout=timeout)

    def end(self, timeout: float = 20.0) -> list[Facts]:
        """What every slot read and did; nothing is lent any more, and tasks that go on stop."""
        self.close(timeout)
        function, args = self.ends
        return self.cluster.run(function, *args, timeout=timeout)

    def lends(self, blocks: Sequence[Sequence[Future[Any]]]) -> Call:
        """What `lend` has every worker do, for who asks them anyway."""
        keys = [[future.key for future in mine] for mine in blocks]
        everyone = [*keys, *[[]] * (self.cluster.slots - len(keys))]
        return _lend, (self.name, everyone, self.doors)

    @property
    def ends(self) -> Call:
        """What `end` has every worker do, once all are closed."""
        return _end, (self.name,)

    def close(self, timeout: float = 20.0) -> None:
        """None, once no slot has memory of another's GPU open."""
        if self.transport == "ipc":
            with contextlib.suppress(DeadlineError):  # of one that is frozen: it is asked again
                self.cluster.run(_close, self.name, timeout=timeout)


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
    """How its blocks are read, by the name that is drawn above; found out once."""
    if not cluster.transport:
        cluster.transport, cluster.transport_why = _find_transport(cluster)
    return cluster.transport


def said_of(cluster: Cluster) -> str:
    """How blocks get from worker to worker of ``cluster``, and why so, in a sentence."""
    way = transport_of(cluster)
    how = {
        "memory": "Blocks are read from memory to memory",
        "ipc": "Blocks are copied from GPU to GPU",
        "sockets": "Blocks are read through sockets",
        "mixed": "Blocks are read past Dask, but between some workers go as messages",
        "comm": "Blocks go as messages",
    }[way]
    if way == "comm" and cluster.backend == "cupy":
        by_ucx = cluster.address(0).startswith("ucx")
        how += " by UCX" if by_ucx else " through host memory and TCP"
    return f"{how}: {cluster.transport_why}."


def _find_transport(cluster: Cluster) -> tuple[str, str]:
    if sys.platform != "linux":
        return "comm", f"process_vm_readv is Linux's, this is {sys.platform}"
    name, tried = f"probe-{secrets.token_hex(8)}", list[_Tried]()
    try:
        for doors in (False, True):  # nobody listens where memory is enough
            tickets = cluster.run(_lend_probe, name, cluster.backend, doors)
            if doors or cluster.backend == "cupy" or len({t.host for t in tickets}) == 1:
                found = cluster.run(_try_ways, name, cluster.backend, tickets)
                tried = [each for mine in found for each in mine]
                if cluster.backend == "cupy" or all(each.way == "memory" for each in tried):
                    break
    except DeadlineError as error:
        return "comm", f"trying it did not end: {error}"
    finally:
        with contextlib.suppress(Exception):
            cluster.run(_close, name)
            cluster.run(_end, name)
    ways = {each.way for each in tried}
    why = next((each.why for each in tried if each.why), "")
    if "messages" in ways and (cluster.backend == "cupy" or len(ways) == 1):
        return "comm", why
    if cluster.backend == "cupy":
        return "ipc", "workers open each other's GPU memory by CUDA's interprocess handles"
    if ways <= {"memory"}:
        return "memory", "workers may read each other's memory"
    if "messages" in ways:
        return "mixed", next(each.why for each in tried if each.way == "messages")
    on_one = "workers are on several hosts, and on one host read each other's memory"
    own = on_one if "memory" in ways else "workers are on hosts of their own"
    return "sockets", why or own


# -- the owner -----------------------------------------------------------------------------------


async def _lend(
    name: str, keys: list[list[str]], doors: bool, dask_worker: Any
) -> list[Ticket | None]:
    """Tickets of this worker's blocks, None for one that it does not hold.

    ``doors``: whether other hosts may connect to read them.
    """
    exchange = _opened(name, doors, dask_worker)
    mine = keys[slot_on(dask_worker)]
    blocks = [dask_worker.data.get(key) for key in mine]

    def tickets() -> list[Ticket | None]:
        return [
            None if block is None else _ticket(exchange, block, key, dask_worker)
            for key, block in zip(mine, blocks, strict=True)
        ]

    if all(block is None or isinstance(block, np.ndarray) for block in blocks):
        return tickets()
    return await _beside(tickets)  # a GPU may have much to finish first


def _opened(name: str, doors: bool, worker: Any) -> Loans:
    """The exchange; with ``doors`` others may connect to it, where this process can listen."""
    exchange = _exchanges.setdefault(name, Loans())
    if doors and exchange.door is None and (found := listener.listener_of(worker)):
        exchange.door, exchange.secret = found.door, secrets.token_bytes(32)

        def lent(token: bytes) -> np.ndarray | None:
            held = (block for block, its in exchange.lent.values() if its.tobytes() == token)
            return next(held, None)

        found.expect(exchange.secret, lambda peer, _: exchange.streams.lend(peer, lent))
    return exchange


async def _beside(function: Callable[..., T], *args: Any) -> T:
    """What ``function`` returns on another thread: meanwhile the worker answers others."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _ticket(exchange: Loans, block: Any, name: str, worker: Any) -> Ticket:
    if name not in exchange.lent:
        exchange.lent[name] = (block, np.frombuffer(secrets.token_bytes(16), np.uint8).copy())
    block, token = exchange.lent[name]
    host, shared = isinstance(block, np.ndarray), None
    if not host:
        with contextlib.suppress(KernelError):  # it goes as a message
            shared = ipc.share(block)
    return Ticket(
        worker.address,
        this_host(),
        os.getpid(),
        name,
        block.ctypes.data if host else 0,
        shared,
        block.shape,
        block.strides,
        block.dtype.name,
        token.ctypes.data,
        token.tobytes(),
        exchange.door if host else None,
        exchange.secret,
    )


def lend_array(name: str, array: Any, doors: bool, worker: Any) -> Ticket:
    """The Ticket of an array that is no block of Dask's; called on the worker that has it."""
    return _ticket(_opened(name, doors, worker), array, "array", worker)


def ticket_of(exchange: Loans, array: np.ndarray, name: Any, worker: Any) -> Ticket:
    """A Ticket for an array that ``exchange`` keeps until it is dropped or the array taken back."""
    return _ticket(exchange, array, name, worker)


async def _close(name: str) -> None:
    """None, once this worker reads nothing more in the exchange, and has nothing of others open."""
    if name in _exchanges:
        _exchanges[name].cancelled.set()
        await _beside(_exchanges[name].opened.close)


def _end(name: str, dask_worker: Any = None) -> Facts:
    """The facts of the exchange; its blocks are let go, the tokens first."""
    exchange = _exchanges.pop(name, None) or Loans()
    exchange.cancelled.set()
    exchange.opened.close(0.0)
    exchange.streams.close()
    if exchange.door is not None and (found := listener.opened()):
        found.forget(exchange.secret)
    for _, token in exchange.lent.values():
        token[:] = 0
    exchange.lent.clear()
    return Facts(tuple(exchange.reads), tuple(exchange.spans), tuple(exchange.tiles))


def end_all() -> None:
    """None; this process lends and borrows nothing any more, and nobody connects to it."""
    for name in list(_exchanges):
        _end(name)
    _refused.clear()
    listener.close()


async def serve(exchange: str, name: str, ends: Region, to_host: bool = False) -> dict[str, Any]:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block.

    ``to_host``: of a block on a GPU its bytes in host memory, in the order of `layout_of`.
    """
    if exchange not in _exchanges or name not in _exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = _exchanges[exchange].lent[name]
    if to_host and not isinstance(block, np.ndarray):
        layout = layout_of(ends, block.strides, block.dtype.itemsize)
        return {
            "status": "OK",
            "part": to_serialize(await _beside(ipc.to_host, block, layout.part)),
        }
    part = block[tuple(slice(*e) for e in ends)]
    # not ascontiguousarray, which gives what has no dimensions one
    return {"status": "OK", "part": to_serialize(array_namespace(part).asarray(part, order="C"))}


# -- the borrower --------------------------------------------------------------------------------


class Reader:
    """Reads parts of other workers' blocks for the running task, and counts them.

    ``parts``: all that it will read. If this task runs again because a worker died, they come
    from Dask, and making a Reader may raise Reschedule (see recompute.py).
    """

    def __init__(self, exchange: str, transport: str, parts: Iterable[Wanted]) -> None:
        self.exchange, self.transport = exchange, transport
        self.worker, self.task = get_worker(), thread_state.key
        self.facts = _exchanges.get(exchange) or Loans()
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

    def read(self, block: LentBlock, ends: Region, buffer: Any) -> Any:
        """The part of ``block``, laid into the bytes of ``buffer`` in the order its owner has it.

        ``ends``: (start, stop) per dimension. ``buffer`` is uint8, on the GPU if the block is on
        one, and nothing that was begun there still uses it. A message ("comm") in host memory
        brings its own, and ``buffer`` is left alone. Raises LoanLostError if the block is not
        lent any more.
        """
        ((_, part),) = self.read_by_rows(block, ends, buffer, rows=None)
        return part

    def read_by_rows(
        self, block: LentBlock, ends: Region, buffer: Any, rows: int | None
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
            part = self._part(block.ticket, some, buffer)
            total += part.nbytes
            self.facts.spans.append(Span("read", begun, time()))
            yield first - start, part
        self.facts.reads.append((block.slot, total))

    def _part(self, ticket: Ticket, ends: Region, buffer: Any) -> Any:
        if self.transport == "memory":
            return read_memory(ticket, ends, buffer)
        if self.transport in ("sockets", "mixed"):
            for way in _ways_to(ticket):
                try:
                    return _read_by(way, self.facts, ticket, ends, buffer, self.check)
                except Unreachable as error:  # it goes as a message, and others will
                    _refused[_pair(ticket, way)] = str(error)
        if self.transport == "ipc" and ticket.shared:
            with contextlib.suppress(ipc.Unreachable):  # it goes as a message
                return _read_gpu(self.facts.opened, ticket, ends, buffer)
        # UCX carries GPU memory as it is; over TCP its bytes go, moved by neither's event loop
        to_host = not ticket.pointer and not ticket.address.startswith("ucx")

        async def ask() -> dict[str, Any]:
            call = self.worker.rpc(ticket.address).tiledask_read(
                exchange=self.exchange, name=ticket.name, ends=ends, to_host=to_host
            )
            return await asyncio.wait_for(call, PATIENCE)

        loop: Any = self.worker.loop  # of asyncio, which Dask's types leave open
        try:
            answer = asyncio.run_coroutine_threadsafe(ask(), loop.asyncio_loop).result()
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
        if to_host:
            ipc.from_host(np.require(part, requirements="C"), buffer)
            return laid_out(ticket, ends, buffer)
        if isinstance(part, np.ndarray):  # messages arrive unaligned, and then sums round otherwise
            part = np.require(part, requirements=["C", "A"])
        return part


def _pair(ticket: Ticket, way: str) -> tuple[str, int, str]:
    return ticket.address, ticket.pid, way


def _ways_to(ticket: Ticket) -> list[str]:
    """How a block of host memory may be read past Dask, the best first."""
    ways = ("memory", "sockets") if ticket.host == this_host() else ("sockets",)
    return [way for way in ways if _pair(ticket, way) not in _refused]


def reads_memory_of(host: str, address: str, pid: int) -> bool:
    """Whether this process can read the memory of another on ``host``, as far as is known."""
    return host == this_host() and (address, pid, "memory") not in _refused


def _read_by(
    way: str, facts: Loans, ticket: Ticket, ends: Region, buffer: Any, check: Callable[[], None]
) -> np.ndarray:
    """The part, past Dask. Raises Unreachable if it cannot be had this way."""
    if way == "sockets":
        return facts.streams.read(ticket, ends, buffer, check)
    try:
        return read_memory(ticket, ends, buffer)
    except (PermissionError, AttributeError) as error:
        raise Unreachable(f"process_vm_readv: {error}") from None


def _read_gpu(opened: ipc.Opened, ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part, from the owner's GPU into the start of ``buffer`` (uint8, on this one)."""
    assert ticket.shared is not None  # of what is not shared no part is read this way
    part = layout_of(ends, ticket.strides, as_dtype(ticket.dtype).itemsize).part
    try:
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


# -- may they read each other? -------------------------------------------------------------------


class _Tried(NamedTuple):
    """How a worker can read another's blocks."""

    way: str
    """"memory", "sockets", "ipc" or "messages"."""
    why: str
    """Why not in a better way; empty if there is none."""


def _lend_probe(name: str, backend: str, doors: bool, dask_worker: Any) -> Ticket:
    """The ticket of 8 numbers that no other worker has."""
    array = (namespace(backend).arange(24) + os.getpid())[8:16]
    return lend_array(name, array, doors, dask_worker)


async def _try_ways(
    name: str, backend: str, tickets: Sequence[Ticket], dask_worker: Any
) -> list[_Tried]:
    """How this worker can read those of ``tickets`` that others have: on other hosts of some."""
    mine = slot_on(dask_worker)
    others = [*tickets[mine + 1 :], *tickets[:mine]]
    if backend == "cupy":
        return await _beside(lambda: [_tried_gpu(name, ticket) for ticket in tickets])
    near = [ticket for ticket in others if ticket.host == this_host()]
    far = {t.host: t for t in reversed(others) if t.host != this_host()}
    some = [*near, *[*far.values()][-HOSTS:]]
    _refused.clear()
    return await _beside(lambda: [_tried(name, ticket) for ticket in some])


def _tried(name: str, ticket: Ticket) -> _Tried:
    exchange, buffer, whys = _exchanges.get(name) or Loans(), np.empty(64, np.uint8), list[str]()
    for way in _ways_to(ticket):
        try:
            part = _read_by(way, exchange, ticket, ((0, 8),), buffer, lambda: None)
            if part.tolist() == _numbers(ticket):
                return _Tried(way, "".join(whys[:1]))
            why = f"the worker at {ticket.address}: read {part.tolist()}, which it does not have"
        except (Unreachable, LoanLostError, DeadlineError) as error:
            why = str(error)
        _refused[_pair(ticket, way)] = why
        whys.append(why)
    return _Tried("messages", "; ".join(whys))


def _tried_gpu(name: str, ticket: Ticket) -> _Tried:
    exchange, buffer = _exchanges.get(name) or Loans(), namespace("cupy").empty(64, np.uint8)
    if ticket.shared is None:
        why = ipc.why_no_handles() or "a block on the GPU has no interprocess handle"
        return _Tried("messages", why)
    if ticket.pid == os.getpid():  # CUDA opens no handle of one's own
        return _Tried("ipc", "")
    try:
        part = _read_gpu(exchange.opened, ticket, ((0, 8),), buffer).get()
    except Exception as error:  # CUDA's
        return _Tried("messages", f"CUDA's interprocess handles: {error}")
    if part.tolist() == _numbers(ticket):
        return _Tried("ipc", "")
    why = f"the worker at {ticket.address}: read {part.tolist()}, which it does not have"
    return _Tried("messages", why)


def _numbers(ticket: Ticket) -> list[int]:
    return [ticket.pid + i for i in range(8, 16)]
