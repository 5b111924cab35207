"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       "memory": process_vm_readv(2), one copy, no socket
    token: still lent?     <-------------      "ipc":    from GPU to GPU (tile/ipc.py)
                                               "comm":   a message through Dask, for other machines
                                                         and where the system says no
                                             "mixed":    from memory on one host, else as messages

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
import ctypes
import errno
import hashlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from time import time
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dask.context import thread_state
from distributed import Future, Reschedule, get_worker
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.arrays.recompute import Wanted, recovered
from tiledask.distributed.cluster.cluster import Cluster, slot_on
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.cluster.spool import machine
from tiledask.distributed.transport.mailbox import CancelledError
from tiledask.errors import ClusterLostError, DeadlineError, KernelError
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
    "lend_array",
    "lending",
    "let_siblings_read",
    "read_lent",
    "said_of",
    "serve",
    "ticket_of",
    "transport_of",
]

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a borrower waits for one message of an owner."""

_MOST_PIECES = 1024  # IOV_MAX of Linux: pieces of memory in one call
_MOST_BYTES = 2**30  # in one call; Linux stops at 2 GiB - 4 KiB


class LoanLostError(ClusterLostError):
    """The owner of a block is gone or has taken it back."""


@dataclass(frozen=True)
class Ticket:
    """Where a lent block lies."""

    address: str
    """Address of the owner, as Dask knows it."""
    host: str
    """The machine, and which numbers its processes have: see `_this_host`."""
    pid: int
    name: str
    """Name of the block within the exchange."""
    pointer: int
    """Address of its first element in the owner's memory; 0 if it is not in host memory."""
    shared: ipc.Shared | None
    """Where it lies on a GPU, as other processes find it; None if they cannot."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    token_at: int
    token: bytes


@dataclass(frozen=True)
class LentBlock:
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
    cancelled: threading.Event = field(default_factory=threading.Event)


_exchanges: dict[str, Loans] = {}
"""The operations under way in this worker, by name."""
_failed: set[str] = set()
"""Tasks of this worker that could not read what they were lent, and will run again."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.transport = transport_of(cluster)

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
        return _lend, (self.name, [*keys, *[[]] * (self.cluster.slots - len(keys))])

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
    """ "memory" or "ipc" if every worker may read the others', "mixed" if those of its host alone,
    else "comm"; found out once."""
    if not cluster.transport:
        cluster.transport, cluster.transport_why = _find_transport(cluster)
    return cluster.transport


def said_of(cluster: Cluster) -> str:
    """How blocks get from worker to worker of ``cluster``, and why so, in a sentence."""
    way = transport_of(cluster)
    how = {
        "memory": "Blocks are read from memory to memory",
        "ipc": "Blocks are copied from GPU to GPU",
        "mixed": "Blocks are read from memory to memory on one host, and go as messages to others",
        "comm": "Blocks go as messages",
    }[way]
    if way == "comm" and cluster.backend == "cupy":
        by_ucx = cluster.address(0).startswith("ucx")
        how += " by UCX" if by_ucx else " through host memory and TCP"
    return f"{how}: {cluster.transport_why}."


_SENTENCES = {
    "memory": "workers may read each other's memory",
    "mixed": "workers of a host may read each other's memory",
    "ipc": "workers open each other's GPU memory by CUDA's interprocess handles",
}


def _find_transport(cluster: Cluster) -> tuple[str, str]:
    way = "memory" if cluster.backend == "numpy" else "ipc"
    if sys.platform != "linux":
        return "comm", f"process_vm_readv is Linux's, this is {sys.platform}"
    name = f"probe-{secrets.token_hex(8)}"
    try:
        lent = cluster.run(_lend_probe, name, cluster.backend)
        tickets, reasons = ([found[i] for found in lent] for i in range(2))
        if not any(reasons):
            reasons = cluster.run(_read_probes, name, cluster.backend, tickets)
    except DeadlineError as error:
        reasons = [f"trying it did not end: {error}"]
    finally:
        with contextlib.suppress(Exception):
            cluster.run(_close, name)
            cluster.run(_end, name)
    if any(reasons):
        return "comm", next(filter(None, reasons))
    if way == "memory" and len({ticket.host for ticket in tickets}) > 1:
        way = "mixed" if len({ticket.host for ticket in tickets}) < len(tickets) else "comm"
    return way, _SENTENCES.get(way, "workers are on hosts of their own")


# -- the owner -----------------------------------------------------------------------------------


async def _lend(name: str, keys: list[list[str]], dask_worker: Any) -> list[Ticket | None]:
    """Tickets of this worker's blocks, None for one that it does not hold."""
    exchange = _exchanges.setdefault(name, Loans())
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
        _this_host(),
        os.getpid(),
        name,
        block.ctypes.data if host else 0,
        shared,
        block.shape,
        block.strides,
        block.dtype.name,
        token.ctypes.data,
        token.tobytes(),
    )


def lend_array(name: str, array: Any, worker: Any) -> Ticket:
    """The Ticket of an array that is no block of Dask's; called on the worker that has it."""
    exchange = _exchanges.setdefault(name, Loans())
    return _ticket(exchange, array, "array", worker)


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
    for _, token in exchange.lent.values():
        token[:] = 0
    exchange.lent.clear()
    return Facts(tuple(exchange.reads), tuple(exchange.spans), tuple(exchange.tiles))


async def serve(exchange: str, name: str, ends: Region, to_host: bool = False) -> dict[str, Any]:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block.

    ``to_host``: of a block on a GPU its bytes in host memory, in the order of `_layout`.
    """
    if exchange not in _exchanges or name not in _exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = _exchanges[exchange].lent[name]
    if to_host and not isinstance(block, np.ndarray):
        layout = _layout(ends, block.strides, block.dtype.itemsize)
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
        if self.transport == "memory" or (
            self.transport == "mixed" and ticket.host == _this_host()
        ):
            return _read_memory(ticket, ends, buffer)
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
            return _laid_out(ticket, ends, buffer)
        if isinstance(part, np.ndarray):  # messages arrive unaligned, and then sums round otherwise
            part = np.require(part, requirements=["C", "A"])
        return part


class _Layout(NamedTuple):
    """How a part of a block lies in its owner's memory, and so in a buffer once it was copied."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions from the one of the longest stride to the one of the shortest."""
    part: ipc.Stretches


def _layout(ends: Region, strides: tuple[int, ...], itemsize: int) -> _Layout:
    shape = tuple(stop - start for start, stop in ends)
    base = sum(start * step for (start, _), step in zip(ends, strides, strict=True))
    order = sorted(range(len(shape)), key=lambda d: -strides[d])  # stable: C order stays
    length, rest = itemsize, list(order)
    while rest and (strides[rest[-1]] == length or shape[rest[-1]] == 1):
        length *= shape[rest.pop()]
    rows, pitch = (shape[rest[-1]], strides[rest.pop()]) if rest else (1, length)
    starts = np.array([base], np.int64)
    for d in rest:
        starts = (starts[:, None] + np.arange(shape[d]) * strides[d]).ravel()
    return _Layout(shape, tuple(order), ipc.Stretches(starts, rows, pitch, length))


def _laid_out(ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part whose bytes were copied into the start of ``buffer``."""
    dtype = as_dtype(ticket.dtype)
    shape, order, part = _layout(ends, ticket.strides, dtype.itemsize)
    flat = buffer[: part.nbytes].view(dtype).reshape([shape[d] for d in order])
    return flat.transpose([order.index(d) for d in range(len(order))])


def _read_memory(ticket: Ticket, ends: Region, buffer: np.ndarray) -> np.ndarray:
    """The part, by process_vm_readv into the start of ``buffer`` (uint8)."""
    part = _layout(ends, ticket.strides, as_dtype(ticket.dtype).itemsize).part
    starts = part.starts[:, None] + np.arange(part.rows) * part.pitch
    pointers = starts.ravel().astype(np.uint64) + np.uint64(ticket.pointer)
    _copy(ticket, pointers, part.width, buffer.ctypes.data)
    laid_out: np.ndarray = _laid_out(ticket, ends, buffer)
    return laid_out


def _read_gpu(opened: ipc.Opened, ticket: Ticket, ends: Region, buffer: Any) -> Any:
    """The part, from the owner's GPU into the start of ``buffer`` (uint8, on this one)."""
    assert ticket.shared is not None  # of what is not shared no part is read this way
    part = _layout(ends, ticket.strides, as_dtype(ticket.dtype).itemsize).part
    try:
        opened.copy(ticket.pid, ticket.shared, part, buffer)
    except InterruptedError as error:
        raise LoanLostError(f"the exchange is over: {error}") from None
    except ipc.failures():
        try:
            _check_lent(ticket)
        except LoanLostError:
            if ipc.lost():  # went down with the owner: Dask starts this worker again
                os._exit(1)
            raise
        raise
    _check_lent(ticket)
    return _laid_out(ticket, ends, buffer)


def read_lent(ticket: Ticket, flat: np.ndarray) -> None:
    """Fill ``flat`` (uint8) with the array of ``ticket``, which has that shape and type too.

    Raises LoanLostError if it is not lent any more.
    """
    if flat.nbytes:
        _copy(ticket, np.array([ticket.pointer], np.uint64), flat.nbytes, flat.ctypes.data)


def _check_lent(ticket: Ticket) -> None:
    """Raise LoanLostError if the owner is gone or has taken the block back."""
    _take(ticket, np.empty(0, np.uint64), 0, 0)


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
    each = max(1, min(_MOST_PIECES - 1, _MOST_BYTES // max(1, length)))
    for first in range(0, len(starts), each):
        batch = starts[first : first + each]
        _take(ticket, batch, length, to)
        to += length * len(batch)


def _take(ticket: Ticket, starts: np.ndarray, length: int, to: int) -> None:
    """Copy ``length`` bytes from each of ``starts``, in one call that brings the token last."""
    token, nbytes = np.empty(16, np.uint8), length * len(starts)
    remote = np.empty((len(starts) + 1, 2), np.uint64)
    remote[:-1, 0], remote[:-1, 1] = starts, length
    remote[-1] = ticket.token_at, token.nbytes
    local = np.array([[to, nbytes], [token.ctypes.data, token.nbytes]], np.uint64)
    wanted = nbytes + token.nbytes
    got = _readv()(ticket.pid, local.ctypes.data, 2, remote.ctypes.data, len(remote), 0)
    if got != wanted or token.tobytes() != ticket.token:
        code = ctypes.get_errno() if got < 0 else 0
        if code in (errno.EPERM, errno.ENOSYS):
            raise PermissionError(code, os.strerror(code))
        why = os.strerror(code) if code else f"{got} of {wanted} bytes, or another's memory"
        raise LoanLostError(
            f"the worker at {ticket.address} does not lend {ticket.name} any more: {why}"
        )


@cache
def _readv() -> Any:
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    call.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return call


@cache
def _this_host() -> str:
    """The machine since its last start, and the numbers that its processes have: of containers on
    one machine, those that share them are one host."""
    numbers = ""
    with contextlib.suppress(OSError):
        numbers = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{machine()} {numbers}".encode()).hexdigest()[:12]


def let_siblings_read() -> None:
    """Where the kernel lets only ancestors look into a process (Yama), the client's processes may.

    PR_SET_PTRACER of prctl(2) names the parent, which is the client, and so its other children.
    Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(os.getppid()), 0, 0, 0)


# -- may they read each other? -------------------------------------------------------------------


def _lend_probe(name: str, backend: str, dask_worker: Any) -> tuple[Ticket, str]:
    """The ticket of 8 numbers that no other worker has, and why they cannot be lent, if so."""
    array = (namespace(backend).arange(24) + os.getpid())[8:16]
    ticket = lend_array(name, array, dask_worker)
    if backend != "numpy" and ticket.shared is None:
        return ticket, ipc.why_no_handles() or "a block on the GPU has no interprocess handle"
    return ticket, ""


async def _read_probes(name: str, backend: str, tickets: Sequence[Ticket]) -> str:
    return await _beside(_why_not, name, backend, tickets)


def _why_not(name: str, backend: str, tickets: Sequence[Ticket]) -> str:
    """Why this worker cannot read the memory of all others on its host; empty if it can."""
    exchange = _exchanges.get(name) or Loans()
    for ticket in tickets:
        if ticket.host != _this_host() and backend == "numpy":
            continue
        try:
            buffer = namespace(backend).empty(64, np.uint8)
            if backend == "numpy":
                part = _read_memory(ticket, ((0, 8),), buffer)
            elif ticket.pid != os.getpid():
                part = _read_gpu(exchange.opened, ticket, ((0, 8),), buffer).get()
            else:  # CUDA opens no handle of one's own
                continue
        except (OSError, AttributeError, LoanLostError) as error:
            return f"process_vm_readv: {error}"
        except Exception as error:  # CUDA's
            return f"CUDA's interprocess handles: {error}"
        if part.tolist() != [ticket.pid + i for i in range(8, 16)]:
            return f"the worker at {ticket.address}: read {part.tolist()}, which it does not have"
    return ""
