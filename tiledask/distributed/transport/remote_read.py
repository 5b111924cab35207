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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from distributed import Future
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.cluster import BlockKeys, Cluster, slot_on
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.transport import listener
from tiledask.distributed.transport.listener import UnreachedError
from tiledask.distributed.transport.loans import Facts, Loans, exchanges
from tiledask.distributed.transport.process_memory import this_host
from tiledask.distributed.transport.reader import read_by, read_gpu, refused, way_of, ways_to
from tiledask.distributed.transport.tickets import LoanLostError, Ticket, layout_of
from tiledask.errors import DeadlineError, KernelError
from tiledask.plan.products.regions import Region
from tiledask.tile import ipc
from tiledask.tile.backend import array_namespace, namespace

__all__ = [
    "Lender",
    "end_all",
    "lend_array",
    "lending",
    "said_of",
    "serve",
    "ticket_of",
    "transport_of",
]

T = TypeVar("T")

HOSTS, EACH = 16, 16
"""Hosts, and workers of each, that the others try to read from before anything is: all of fewer.
Whoever else cannot be read from is found out by the first read, which then goes by messages."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.transport = transport_of(cluster)
        self.doors = self.transport in ("sockets", "mixed")
        """Whether workers connect to others' ports."""

    def lend(
        self, arrays: Sequence[Sequence[Future[Any]]], timeout: float | None
    ) -> list[list[Ticket | None]]:
        """By slot a Ticket for its block of each of ``arrays``; None for one that is not in memory
        there now."""
        function, args = self.lends(arrays)
        return self.cluster.run(function, *args, timeout=timeout)

    def end(self, timeout: float = 20.0) -> list[Facts]:
        """What every slot read and did; nothing is lent any more, and tasks that go on stop."""
        self.close(timeout)
        function, args = self.ends
        return self.cluster.run(function, *args, timeout=timeout)

    def lends(self, arrays: Sequence[Sequence[Future[Any]]]) -> Call:
        """What `lend` has every worker do, for who asks them anyway."""
        return _lend, (self.name, [BlockKeys.of(blocks) for blocks in arrays], self.doors)

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
                found = cluster.run(_try_ways, name, cluster.backend, _some_of(tickets))
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


def _some_of(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Those that all workers try; what each is sent must not grow with their number."""
    by_host: dict[str, list[Ticket]] = {}
    for ticket in tickets:
        by_host.setdefault(ticket.host, []).append(ticket)
    return [ticket for mine in [*by_host.values()][:HOSTS] for ticket in mine[:EACH]]


# -- the owner -----------------------------------------------------------------------------------


async def _lend(
    name: str, keys: list[BlockKeys], doors: bool, dask_worker: Any
) -> list[Ticket | None]:
    """Tickets of this worker's blocks, None for one that it does not hold.

    ``doors``: whether other hosts may connect to read them.
    """
    exchange = _opened(name, doors, dask_worker)
    mine = [each.at(slot_on(dask_worker)) for each in keys]
    blocks = {key: dask_worker.data[key] for key in mine if key in dask_worker.data}

    def tickets() -> list[Ticket | None]:
        there = {key: _ticket(exchange, x, key, dask_worker) for key, x in blocks.items()}
        return [there.get(key) for key in mine]

    if all(isinstance(block, np.ndarray) for block in blocks.values()):
        return tickets()
    return await _beside(tickets)  # a GPU may have much to finish first


def _opened(name: str, doors: bool, worker: Any) -> Loans:
    """The exchange; with ``doors`` others may connect to it, where this process can listen."""
    exchange = exchanges.setdefault(name, Loans())
    if doors and exchange.door is None and (found := listener.listener_of(worker)):
        exchange.door, exchange.secret = found.door, secrets.token_bytes(32)

        def lent(token: bytes) -> np.ndarray | None:
            held = list(exchange.lent.values())  # others are lent meanwhile
            return next((block for block, its in held if its.tobytes() == token), None)

        found.expect(exchange.secret, lambda peer, _: exchange.streams.lend(peer, lent))
    return exchange


async def _beside(function: Callable[..., T], *args: Any) -> T:
    """What ``function`` returns on another thread: meanwhile the worker answers others."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _ticket(exchange: Loans, block: Any, name: str, worker: Any) -> Ticket:
    if not hasattr(block, "dtype"):  # whoever asked for it refuses it by this name
        nothing = _ticket(exchange, np.empty(0), name, worker)
        return replace(nothing, dtype=type(block).__name__)
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
        block.dtype.name if block.dtype.isnative else block.dtype.str,
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
    if name in exchanges:
        exchanges[name].cancelled.set()
        await _beside(exchanges[name].opened.close)


def _end(name: str, dask_worker: Any = None) -> Facts:
    """The facts of the exchange; its blocks are let go, the tokens first."""
    exchange = exchanges.pop(name, None) or Loans()
    exchange.cancelled.set()
    exchange.opened.close(0.0)
    exchange.streams.close()
    if exchange.door is not None and (found := listener.opened()):
        found.forget(exchange.secret)
    for _, token in exchange.lent.values():
        token[:] = 0
    exchange.lent.clear()
    reads, spans, tiles = exchange.reads, exchange.spans, exchange.tiles
    return Facts(tuple(reads), tuple(spans), tuple(tiles), tuple(exchange.weighed))


def end_all() -> None:
    """None; this process lends and borrows nothing any more, and nobody connects to it."""
    for name in list(exchanges):
        _end(name)
    refused.clear()
    listener.close()


async def serve(exchange: str, name: str, ends: Region, to_host: bool = False) -> dict[str, Any]:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block.

    ``to_host``: of a block on a GPU its bytes in host memory, in the order of `layout_of`.
    """
    if exchange not in exchanges or name not in exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = exchanges[exchange].lent[name]
    if to_host and not isinstance(block, np.ndarray):
        layout = layout_of(ends, block.strides, block.dtype.itemsize)
        return {
            "status": "OK",
            "part": to_serialize(await _beside(ipc.to_host, block, layout.part)),
        }
    part = block[tuple(slice(*e) for e in ends)]
    # not ascontiguousarray, which gives what has no dimensions one
    return {"status": "OK", "part": to_serialize(array_namespace(part).asarray(part, order="C"))}


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
    if backend == "cupy":
        return await _beside(lambda: [_tried_gpu(name, ticket) for ticket in tickets])
    others = [ticket for ticket in tickets if ticket.address != dask_worker.address]
    first = slot_on(dask_worker) % max(1, len(others))  # each begins with another
    near = [ticket for ticket in others if ticket.host == this_host()]
    far = {t.host: t for t in (*others[first:], *others[:first]) if t.host != this_host()}
    some = [*near, *far.values()]
    refused.clear()
    return await _beside(lambda: [_tried(name, ticket) for ticket in some])


def _tried(name: str, ticket: Ticket) -> _Tried:
    exchange, buffer, whys = exchanges.get(name) or Loans(), np.empty(64, np.uint8), list[str]()
    for way in ways_to(ticket, exchange):
        try:
            part = read_by(way, exchange, ticket, ((0, 8),), buffer, lambda: None)
            if part.tolist() == _numbers(ticket):
                return _Tried(way, "".join(whys[:1]))
            why = f"the worker at {ticket.address}: read {part.tolist()}, which it does not have"
        except (UnreachedError, LoanLostError, DeadlineError) as error:
            why = str(error)
        refused.add(way_of(ticket, way))
        whys.append(why)
    return _Tried("messages", "; ".join(whys))


def _tried_gpu(name: str, ticket: Ticket) -> _Tried:
    exchange, buffer = exchanges.get(name) or Loans(), namespace("cupy").empty(64, np.uint8)
    if ticket.shared is None:
        why = ipc.why_no_handles() or "a block on the GPU has no interprocess handle"
        return _Tried("messages", why)
    if ticket.pid == os.getpid():  # CUDA opens no handle of one's own
        return _Tried("ipc", "")
    try:
        part = read_gpu(exchange.opened, ticket, ((0, 8),), buffer).get()
    except Exception as error:  # CUDA's
        return _Tried("messages", f"CUDA's interprocess handles: {error}")
    if part.tolist() == _numbers(ticket):
        return _Tried("ipc", "")
    why = f"the worker at {ticket.address}: read {part.tolist()}, which it does not have"
    return _Tried("messages", why)


def _numbers(ticket: Ticket) -> list[int]:
    return [ticket.pid + i for i in range(8, 16)]
