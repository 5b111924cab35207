"""Messages from rank to rank of a run on workers, in the task that waits for them.

    client      opened ................................ closed
    rank 0          parcels ---- send ----.
    rank 1          parcels <-------------'

    one host        a datagram: its head and small arrays; of large ones a ticket, by which the
                    receiver reads them from the sender's memory, one copy, and acknowledges it
    several hosts   Dask's connections, from worker to worker: encrypted where Dask encrypts

The ends are known by the run's name. A worker that was replaced meanwhile has none, and says so.
The sockets are files in a folder that only the user may enter. What a datagram cannot take, because
it is too long or the queue of its receiver is full, goes by Dask; messages have numbers, so one may
overtake another. Nobody waits for room to send, and so two ranks may send to each other at once.
"""

import asyncio
import pickle
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.transport import blocks
from tiledask.distributed.transport.tickets import CancelledError, LoanLostError, Ticket
from tiledask.distributed.transport.transport import LOOK, Transport
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.tile.backend import array_namespace, as_dtype

__all__ = ["Where", "WorkerMessages", "endpoint_of", "lost", "opened"]

_LENT = 1 << 17
"""Bytes from which on a message's arrays are lent to a rank of the same host."""
_ROOM = 1 << 18
"""Bytes of the longest datagram that is received."""
_endpoints: dict[str, "WorkerMessages"] = {}
"""Of the runs under way in this worker, by name."""
Where = tuple[str, str]
"""The host of a rank, see `this_host`, and the path of its socket; empty if it has none."""


def endpoint_of(run: str, rank: int) -> "WorkerMessages":
    """The end of ``run`` in this worker. Raises ClusterLostError if there is none."""
    if run not in _endpoints:
        raise lost(rank)
    return _endpoints[run]


def lost(rank: int, why: object = "another has taken its place") -> ClusterLostError:
    """The error of a run whose rank ``rank`` is gone."""
    return ClusterLostError(
        f"the worker of rank {rank} died while the run was under way ({why}); what it had for the "
        f"run is gone. Run it again"
    )


# -- the client ------------------------------------------------------------------------------------


@contextmanager
def opened(
    cluster: Cluster, run: str, slots: Sequence[int], folder: Path | str, timeout: float
) -> Iterator[tuple[Where, ...]]:
    """The ends of ``run``, rank r's in ``slots[r]``, inside the block; however it ends, they are
    closed. By rank, where it is: its socket is in ``folder``, if its worker sees that."""
    workers = cluster.wait_for_slots(slots, timeout)
    addresses = tuple(workers[slot]["address"] for slot in slots)
    try:
        found = cluster.run(_open, run, addresses, str(folder), timeout=timeout)
        for rank, slot in enumerate(slots):
            if found[slot] is None:  # another worker is there by now
                raise lost(rank)
        yield tuple(found[slot] for slot in slots)
    finally:
        with suppress(Exception):  # of a cluster that is gone: nobody is left there
            cluster.run(_close, run, timeout=10.0)


def _open(run: str, addresses: tuple[str, ...], folder: str, dask_worker: Any) -> Where | None:
    """Where the rank of this worker is; None if it has none."""
    dask_worker.handlers["tiledask_message"] = _take_message
    if dask_worker.address not in addresses:
        return None
    rank = addresses.index(dask_worker.address)
    _endpoints[run] = here = WorkerMessages(run, rank, addresses, dask_worker, f"{folder}/{rank}")
    return this_host(), here.path


def _close(run: str) -> None:
    here = _endpoints.pop(run, None)
    if here is not None:
        here.end(CancelledError(f"{run} was ended while rank {here.rank} worked for it"))
        for each in here.sockets:
            each.close()
        blocks.end_exchange(run)


async def _take_message(run: str, about: bytes, parts: list[Any]) -> dict[str, Any]:
    """Take in what another rank sends by Dask (a handler of the worker)."""
    here, there = _endpoints.get(run), now()
    if here is not None:
        # messages arrive unaligned, and then sums round otherwise
        arrays = [array_namespace(part).array(part) for part in parts]
        key, note = pickle.loads(about)
        here.arrive(key, note, arrays, sum(part.nbytes for part in arrays), there)
    return {"status": "OK", "taken": here is not None}


class WorkerMessages(Transport):
    """Messages between workers. What is lent counts as sent; the reader counts what came."""

    def __init__(
        self, run: str, rank: int, addresses: tuple[str, ...], worker: Any, path: str
    ) -> None:
        """``path``: of the socket that it receives from, if there can be one."""
        super().__init__(rank, len(addresses))
        self.run, self._addresses, self._worker = run, addresses, worker
        self.path, self._room = "", bytearray(_ROOM)
        self._near: dict[int, str] = {}
        """The path of each rank of this host that has a socket."""
        self._sending: set[Future[Any]] = set()
        self._loans = blocks.exchanges.setdefault(run, blocks.Loans())
        self._lent: dict[tuple[Any, ...], list[str]] = {}
        """By the key of their acknowledgement, names of arrays that another rank reads."""
        self.sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "io"]
        with suppress(OSError):  # a path that is too long, or not there
            self.sockets[0].bind(path)
            self.path = path

    def begin(self, deadline: float, where: Sequence[Where]) -> None:
        """The function begins. ``where``: of all ranks, if those of one host may use sockets."""
        self.deadline, here = deadline, this_host()
        ways = enumerate(where if self.path else ())
        self._near = {rank: path for rank, (host, path) in ways if path and host == here}

    now = staticmethod(now)

    # -- out ----------------------------------------------------------------------------------

    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        parts = [np.asarray(x, order="C") if isinstance(x, np.ndarray) else x for x in parts]
        nbytes = sum(part.nbytes for part in parts)
        near, small = to in self._near, nbytes < _LENT
        if near and small and self._send(to, (self.rank, key, note, parts, False)):
            return nbytes
        if not lend:
            parts = [part.copy() for part in parts]  # they are sent, or read, later
        if not near or small or not self._lend(to, key, note, parts):
            call = self._by_dask(to, key, note, parts)
            sending = asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop)
            self._sending.add(sending)
            sending.add_done_callback(partial(self._sent, to))
        return nbytes

    def _send(self, to: int, message: Any) -> bool:
        """Whether a datagram was taken by a rank of this host."""
        try:
            self.sockets[1].sendto(pickle.dumps(message), socket.MSG_DONTWAIT, self._near[to])
        except OSError:  # too long, no room for it, or nobody there
            return False
        return True

    def _lend(self, to: int, key: Any, note: Any, parts: Sequence[np.ndarray]) -> bool:
        """Whether tickets of the arrays went to a rank of this host."""
        read, names = ("read", to, key), [f"{to} {key} {i}" for i in range(len(parts))]
        self._lent[read] = names
        given = zip(parts, names, strict=True)
        tickets = [blocks.ticket_of(self._loans, *each, self._worker) for each in given]
        sent = self._send(to, (self.rank, key, note, tickets, True))
        if not sent:
            self._take_back(read)
        return sent

    def _take_back(self, read: tuple[Any, ...]) -> None:
        for name in self._lent.pop(read):
            self._loans.lent.pop(name, None)  # the run may have been closed

    async def _by_dask(self, to: int, key: Any, note: Any, parts: Sequence[Any]) -> None:
        """Return when rank ``to`` has the message."""
        answer = await self._worker.rpc(self._addresses[to]).tiledask_message(
            run=self.run,
            about=pickle.dumps((key, note)),
            parts=[to_serialize(part) for part in parts],
        )
        if not answer["taken"]:
            raise lost(to)

    def _sent(self, to: int, sending: Future[Any]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            self.end(lost(to, error))
        self._sending.discard(sending)

    def arrived(self) -> None:
        left = [*self._lent, *self._sending]
        while left and monotonic() < self.deadline:
            self.check()
            if self._sending:
                wait_for_all(list(self._sending), LOOK)
            else:
                self.sleep(LOOK)
            unread = [read for read in list(self._lent) if read[1] not in self.returned]
            left = [*unread, *self._sending]
        self.check()
        if left:
            raise DeadlineError(
                f"{len(left)} messages that rank {self.rank} sent had not arrived at the run's "
                f"deadline; a worker is frozen or gone, or the run needs longer: timeout="
            )

    # -- in -----------------------------------------------------------------------------------

    def arrive(
        self, key: Any, note: Any, parts: Sequence[np.ndarray], nbytes: int, there: float = 0.0
    ) -> None:
        if key[0] == "read":
            self._take_back(key)
        else:
            super().arrive(key, note, parts, nbytes, there)

    def ring(self) -> None:
        if self._near:
            self._send(self.rank, None)
        else:
            super().ring()

    def sleep(self, seconds: float) -> None:
        """Take in a datagram, if one comes in time."""
        if not self._near:
            super().sleep(seconds)
            return
        try:
            self.sockets[0].settimeout(seconds)
            size = self.sockets[0].recv_into(self._room)
        except OSError:  # nothing came, or the run was closed
            return
        message = pickle.loads(memoryview(self._room)[:size])
        if message is None:  # it was rung
            return
        source, key, note, parts, lent = message
        if lent:
            try:
                parts = [self._read(ticket) for ticket in parts]
            except LoanLostError as error:
                self.end(lost(source, error))
                return
            self.deliver(source, ("read", self.rank, key), None, [])
        # who takes it in is awake
        wanted, self._wanted = self._wanted, None
        self.arrive(key, note, parts, sum(part.nbytes for part in parts), now())
        self._wanted = wanted

    def _read(self, ticket: Ticket) -> np.ndarray:
        """What another rank of this host lends."""
        nbytes = prod(ticket.shape) * as_dtype(ticket.dtype).itemsize
        buffer = host_memory.empty((nbytes,), np.dtype(np.uint8))
        ends = tuple((0, extent) for extent in ticket.shape)
        part = blocks.read_part(self._worker, self.run, ticket, ends, buffer, self._loans.opened)
        return np.require(part, requirements="W")  # what came as a message is not
