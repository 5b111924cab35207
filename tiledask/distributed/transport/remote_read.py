"""Blocks lent to other workers: their owner keeps them alive, whoever needs a part reads it.

    owner                                    borrower (a task that is computing)
    block, kept until the exchange ends      Reader.read(ticket, part, buffer)
    ticket: where it lies  -- client -->       memory     of one host: process_vm_readv(2)
    token: still lent?     <-------------      a message  by Dask, between hosts
                                               a GPU      to another's (tile/ipc.py)

    "memory"   all by the first              "mixed"    within a host by the first, else messages
    "ipc"      from GPU to GPU               "comm"     all by messages

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from distributed import Future
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Call
from tiledask.distributed.cluster.tasks import keys_of, slot_on
from tiledask.distributed.transport.loans import Facts, Loans, exchanges
from tiledask.distributed.transport.process_memory import check_lent, this_host
from tiledask.distributed.transport.reader import read_gpu
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

_TRIED = 16
"""Workers that the others try to read from before anything is."""


# -- the client ----------------------------------------------------------------------------------


class Lender:
    """The client's side of an exchange: lends blocks, and collects what was read."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.transport = transport_of(cluster)

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
        return _lend, (self.name, [keys_of(blocks) for blocks in arrays])

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
        "mixed": "Blocks are read from memory to memory where workers can, else go as messages",
        "comm": "Blocks go as messages",
    }[way]
    if way == "comm" and cluster.backend == "cupy":
        how += " through host memory and TCP"
    return f"{how}: {cluster.transport_why}."


def _find_transport(cluster: Cluster) -> tuple[str, str]:
    if sys.platform != "linux":
        return "comm", f"process_vm_readv is Linux's, this is {sys.platform}"
    name, on_gpus = f"probe-{secrets.token_hex(8)}", cluster.backend == "cupy"
    try:
        tickets = cluster.run(_lend_probe, name, cluster.backend)
        # what each worker is sent must not grow with their number
        some = tickets if on_gpus else [*{ticket.host: ticket for ticket in tickets}.values()]
        found = cluster.run(_try_others, name, some[:_TRIED])
    except DeadlineError as error:
        return "comm", f"trying it did not end: {error}"
    finally:
        with contextlib.suppress(Exception):
            cluster.run(_close, name)
            cluster.run(_end, name)
    hosts = {ticket.host for ticket in tickets}
    if refusal := next(filter(None, found), ""):
        return "comm", refusal
    if on_gpus:
        return "ipc", "workers open each other's GPU memory by CUDA's interprocess handles"
    if len(hosts) == 1:
        return "memory", "workers may read each other's memory"
    if len(hosts) == len(tickets):
        return "comm", "workers are on hosts of their own"
    return "mixed", "workers are on several hosts, and on one host read each other's memory"


# -- the owner -----------------------------------------------------------------------------------


async def _lend(name: str, keys: list[dict[int, str]], dask_worker: Any) -> list[Ticket | None]:
    """Tickets of this worker's blocks, None for one that it does not hold."""
    exchange = exchanges.setdefault(name, Loans())
    mine = [each.get(slot_on(dask_worker), "") for each in keys]
    blocks = {key: dask_worker.data[key] for key in mine if key in dask_worker.data}

    def tickets() -> list[Ticket | None]:
        there = {key: ticket_of(exchange, x, key, dask_worker) for key, x in blocks.items()}
        return [there.get(key) for key in mine]

    if all(isinstance(block, np.ndarray) for block in blocks.values()):
        return tickets()
    return await _beside(tickets)  # a GPU may have much to finish first


async def _beside(function: Callable[..., T], *args: Any) -> T:
    """What ``function`` returns on another thread: meanwhile the worker answers others."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def ticket_of(exchange: Loans, block: Any, name: Any, worker: Any) -> Ticket:
    """A Ticket for what ``exchange`` keeps until it is dropped or the block taken back."""
    if not hasattr(block, "dtype"):  # whoever asked for it refuses it by this name
        nothing = ticket_of(exchange, np.empty(0), name, worker)
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
    )


def lend_array(name: str, array: Any, worker: Any) -> Ticket:
    """The Ticket of an array that is no block of Dask's; called on the worker that has it."""
    return ticket_of(exchanges.setdefault(name, Loans()), array, "array", worker)


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
    for _, token in exchange.lent.values():
        token[:] = 0
    exchange.lent.clear()
    reads, spans, tiles = exchange.reads, exchange.spans, exchange.tiles
    return Facts(tuple(reads), tuple(spans), tuple(tiles))


def end_all() -> None:
    """None; this process lends and borrows nothing any more."""
    for name in list(exchanges):
        _end(name)


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


def _lend_probe(name: str, backend: str, dask_worker: Any) -> Ticket:
    """The ticket of a few numbers."""
    return lend_array(name, namespace(backend).arange(8), dask_worker)


async def _try_others(name: str, tickets: Sequence[Ticket]) -> str:
    """Why this worker cannot read one of ``tickets`` past Dask; "" where it can read all. Of host
    memory those that others on its host have; the token tells whether it is theirs."""
    for ticket in tickets:
        if ticket.pid == os.getpid() or (ticket.pointer and ticket.host != this_host()):
            continue
        if why := await _beside(_try, name, ticket):
            return why
    return ""


def _try(name: str, ticket: Ticket) -> str:
    if not ticket.pointer and ticket.shared is None:
        return ipc.why_no_handles() or "a block on the GPU has no interprocess handle"
    try:
        if ticket.pointer:
            check_lent(ticket)
        else:
            opened = (exchanges.get(name) or Loans()).opened
            read_gpu(opened, ticket, ((0, 8),), namespace("cupy").empty(64, np.uint8))
    except LoanLostError as error:
        return str(error)
    except Exception as error:  # CUDA's are of many kinds
        how = "process_vm_readv" if ticket.pointer else "CUDA's interprocess handles"
        return f"{how}: {error}"
    return ""
