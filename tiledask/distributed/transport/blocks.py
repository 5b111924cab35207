"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       memory     of one host: process_vm_readv(2)
    token: still lent?     <-------------      a GPU      to another's (tile/ipc.py)
                                               a message  by Dask: all others

    "memory"   on one host, CPUs             "mixed"    on several hosts, some workers on one
    "ipc"      on GPUs                       "comm"     all by messages

A read from memory takes the token along, after the data, and a copy from GPU to GPU looks at it
when it is done: if the owner took the block back or died, the token differs, and what was read is
thrown away. Then, and when a task runs again long after its exchange, because its result was on a
worker that died, the parts come from Dask (recompute.py).

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Future
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.cluster.tasks import keys_of, slot_on
from tiledask.distributed.transport.tickets import Ticket, part_of
from tiledask.errors import DeadlineError, KernelError
from tiledask.plan.products.regions import Region
from tiledask.tile import TileCount, ipc
from tiledask.tile.backend import array_namespace

__all__ = [
    *("Facts", "Lender", "Loans", "Span", "end_exchange", "exchanges", "lend_array", "lending"),
    *("said_of", "serve", "ticket_of", "transport_of"),
]

_WORDS = {
    "memory": "are read from memory to memory, or go as messages where the kernel forbids that",
    "mixed": "are read from memory to memory where workers can, else go as messages: workers are "
    "on several hosts, and on one host read each other's memory",
    "ipc": "are copied from GPU to GPU, or go as messages through host memory where CUDA cannot",
    "comm": "go as messages: workers are on hosts of their own",
}


@dataclass(frozen=True)
class Span:
    """Something that a rank did, on its worker's clock."""

    kind: str
    """"multiply", "read", "wait" (for a panel), or "sum"."""
    start: float
    stop: float


@dataclass
class Facts:
    """What one slot did in an exchange."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    """(source slot, bytes) of every piece that was read."""
    spans: list[Span] = field(default_factory=list)
    tiles: list[TileCount | None] = field(default_factory=list)
    """What the kernel of every task that multiplied loaded; None where that is not counted."""
    reported: int = 0
    """Of the spans, how many the dashboard's page has."""


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


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.name = cluster, f"exchange-{secrets.token_hex(8)}"
        self.transport = transport_of(cluster)
        self.ends: Call = end_exchange, (self.name,)
        """What `end` has every worker do, once all are closed."""

    def lends(self, arrays: Sequence[Sequence[Future[Any]]]) -> Call:
        """What `lend` has every worker do, for who asks them anyway."""
        return _lend, (self.name, [keys_of(blocks) for blocks in arrays])

    def lend(
        self, arrays: Sequence[Sequence[Future[Any]]], timeout: float | None
    ) -> list[list[Ticket]]:
        """By slot a Ticket for its block of each of ``arrays``."""
        function, args = self.lends(arrays)
        return self.cluster.run(function, *args, timeout=timeout)

    def end(self) -> None:
        """Nothing is lent any more, and tasks that go on stop."""
        self.close()
        self.cluster.run(end_exchange, self.name, timeout=20.0)

    def close(self) -> None:
        """Return when no slot has memory of another's GPU open."""
        if self.transport == "ipc":
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


def transport_of(cluster: Cluster) -> str:
    """How its blocks are read, by the name that is drawn above."""
    if not cluster.transport:
        hosts = len({*cluster.hosts})
        cluster.transport = "memory" if hosts == 1 else "mixed"
        if cluster.backend == "cupy":
            cluster.transport = "ipc"
        elif sys.platform != "linux" or hosts == cluster.slots > 1:
            cluster.transport = "comm"
    return cluster.transport


def said_of(cluster: Cluster) -> str:
    """How blocks get from worker to worker of ``cluster``, in a sentence."""
    return f"Blocks {_WORDS[transport_of(cluster)]}."


# -- the owner -----------------------------------------------------------------------------------


async def _lend(name: str, keys: list[dict[int, str]], dask_worker: Any) -> list[Ticket]:
    """Tickets of this worker's blocks."""
    loans, slot, data = exchanges.setdefault(name, Loans()), slot_on(dask_worker), dask_worker.data
    mine = [each.get(slot, "") for each in keys]
    blocks = {key: data[key] for key in mine if key in data}

    def tickets() -> list[Ticket]:
        there = {key: ticket_of(loans, x, key, dask_worker, slot) for key, x in blocks.items()}
        return [there.get(key, Ticket(key, slot)) for key in mine]

    if all(isinstance(block, np.ndarray) for block in blocks.values()):
        return tickets()
    return await asyncio.to_thread(tickets)  # a GPU may have much to finish first


def ticket_of(loans: Loans, block: Any, key: Any, worker: Any, slot: int = -1) -> Ticket:
    """A Ticket for what ``loans`` keep until they are dropped or the block taken back."""
    if key not in loans.lent:
        loans.lent[key] = (block, np.frombuffer(secrets.token_bytes(16), np.uint8).copy())
    block, token = loans.lent[key]
    host, shared = isinstance(block, np.ndarray), None
    if not host:
        with contextlib.suppress(KernelError):  # it goes as a message
            shared = ipc.share(block)
    return Ticket(
        key,
        slot,
        worker.address,
        this_host(),
        os.getpid(),
        block.ctypes.data if host else 0,
        shared,
        block.shape,
        block.strides,
        block.dtype.name if block.dtype.isnative else block.dtype.str,
        token.ctypes.data,
        token.tobytes(),
    )


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


async def serve(exchange: str, key: str, ends: Region, to_host: bool = False) -> dict[str, Any]:
    """What a borrower asks for through Dask (a handler of the worker): a part of a lent block.

    ``to_host``: of a block on a GPU its bytes in host memory, in the order of `part_of`.
    """
    if exchange not in exchanges or key not in exchanges[exchange].lent:
        return {"status": "OK", "part": None}
    block, _ = exchanges[exchange].lent[key]
    if to_host and not isinstance(block, np.ndarray):
        lies = part_of(ends, block.strides, block.dtype.itemsize)
        part: Any = await asyncio.to_thread(ipc.to_host, block, lies)
    else:  # not ascontiguousarray, which gives what has no dimensions one
        part = block[tuple(slice(*e) for e in ends)]
        part = array_namespace(part).asarray(part, order="C")
    return {"status": "OK", "part": to_serialize(part)}
