"""Messages from rank to rank of a run on workers, in the task that waits for them.

    client      opened ................................ closed
    rank 0          parcels ---- send ----.
    rank 1          parcels <-------------'

    one host        a datagram: its head and small arrays; of large ones a ticket, by which the
                    receiver reads them from the sender's memory, one copy, and acknowledges it
    several hosts   Dask's connections, from worker to worker: encrypted where Dask encrypts

The ends are known by the run's name. A worker that was replaced meanwhile has none, and says
so. The sockets are files in a folder that only the user may enter. A message that a datagram cannot
take, because it is too long or the queue of its receiver is full, goes by Dask; messages have
numbers, so one may overtake another. Nobody waits for room to send, and so two ranks may send to
each other at the same time.
"""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol.serialize import to_serialize

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.spool import this_host
from tiledask.distributed.transport.blocks import Loans, exchanges, read_part, ticket_of
from tiledask.distributed.transport.tickets import CancelledError, LoanLostError, Ticket
from tiledask.distributed.transport.transport import LOOK, Transport
from tiledask.errors import ClusterLostError, CollectiveError, DeadlineError
from tiledask.tile.backend import array_namespace, as_dtype, name_of

__all__ = ["Where", "WorkerMessages", "endpoint_of", "lost", "opened"]

_NEWS = 2.0
"""Seconds in which others are told that the run has failed."""
_LENT = 1 << 17
"""Bytes from which on a message's arrays are lent to a rank of the same host."""
_ROOM = 1 << 18
"""Bytes of the longest datagram that is received."""
_LONGEST = 100
"""Characters that the path of a socket may have; systems stop at 104 or 108."""
_endpoints: dict[str, "WorkerMessages"] = {}
"""Of the runs under way in this worker, by name."""


class Where(NamedTuple):
    """Where a rank is."""

    path: str
    """Of the socket that it receives from; empty if it has none."""
    host: str
    """See `this_host`."""
    pid: int


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
    cluster: Cluster, run: str, slots: Sequence[int], folder: Path, timeout: float
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
    except ClusterLostError:
        with suppress(Exception):  # where they are now: who is gone would be waited for
            cluster.wait_for_slots(slots, 0.0)
        raise
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
    return Where(here.path, this_host(), os.getpid())


def _close(run: str) -> None:
    here = _endpoints.pop(run, None)
    if here is not None:
        here.end(CancelledError(f"{run} was ended while rank {here.rank} worked for it"))
        here.close()


# -- handlers of the worker ------------------------------------------------------------------------


async def _take_message(run: str, about: bytes, parts: list[Any]) -> dict[str, Any]:
    """Take in what another rank sends."""
    here, there = _endpoints.get(run), now()
    if here is not None:
        key, note = pickle.loads(about)
        # messages arrive unaligned, and then sums round otherwise
        arrays = [
            array_namespace(flat).array(flat).view(as_dtype(name)).reshape(shape)
            for flat, name, shape in parts
        ]
        here.arrive(key, note, arrays, sum(flat.nbytes for flat, *_ in parts), there)
    return {"status": "OK", "taken": here is not None}


class WorkerMessages(Transport):
    """Messages between workers. What is lent counts as sent; the reader counts what came."""

    def __init__(
        self, run: str, rank: int, addresses: tuple[str, ...], worker: Any, path: str
    ) -> None:
        """``path``: of the socket that it receives from, if there can be one."""
        super().__init__(rank, len(addresses))
        self.run, self._addresses, self._worker, self.path = run, addresses, worker, ""
        self._near: dict[int, Where] = {}
        """Of each rank of this host that has a socket."""
        self._sending: set[Future[Any]] = set()
        self._loans = exchanges.setdefault(run, Loans())
        self._lent: dict[tuple[Any, ...], list[str]] = {}
        """By the key of their acknowledgement, names of arrays that another rank reads."""
        self._own: list[tuple[Any, ...]] = []
        """The acknowledgements of what the sender wants back before it goes on."""
        if sys.platform == "linux" and len(path) <= _LONGEST and Path(path).parent.is_dir():
            self.path, self._room = path, bytearray(_ROOM)
            self._in, self._out = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "io")
            Path(path).unlink(missing_ok=True)
            self._in.bind(path)

    def begin(self, deadline: float, where: Sequence[Where]) -> None:
        """The function begins. ``where``: of all ranks, if those of one host may use sockets."""
        self.deadline = deadline
        for other, each in enumerate(where):
            if self.path and each.path and each.host == this_host():
                self._near[other] = each

    def now(self) -> float:
        return now()

    # -- out ----------------------------------------------------------------------------------

    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        host = np.ndarray, np.generic, float, int
        parts = [np.asarray(x, order="C") if isinstance(x, host) else x for x in parts]
        nbytes = sum(part.nbytes for part in parts)
        if to in self._near and self._by_datagram(to, key, note, parts, nbytes, lend):
            return nbytes
        kept = parts if lend else [part.copy() for part in parts]  # they are sent later
        sending = asyncio.run_coroutine_threadsafe(
            self._by_dask(to, key, note, kept), self._worker.loop.asyncio_loop
        )
        self._sending.add(sending)
        sending.add_done_callback(partial(self._sent, to))
        return nbytes

    async def _by_dask(self, to: int, key: Any, note: Any, parts: Sequence[Any]) -> None:
        """Return when rank ``to`` has the message."""
        answer = await self._worker.rpc(self._addresses[to]).tiledask_message(
            run=self.run,
            about=pickle.dumps((key, note)),
            parts=[
                (to_serialize(part.reshape(-1).view(np.uint8)), name_of(part.dtype), part.shape)
                for part in parts
            ],
        )
        if not answer["taken"]:
            raise lost(to)

    def _by_datagram(
        self, to: int, key: Any, note: Any, parts: list[np.ndarray], nbytes: int, lend: bool
    ) -> bool:
        """Whether the message went as one."""
        if nbytes < _LENT:
            return self._send(to, pickle.dumps((self.rank, key, note, parts, False)))
        if not all(isinstance(part, np.ndarray) for part in parts):
            return False
        acknowledged, names = ("read", to, key), [f"{to} {key} {i}" for i in range(len(parts))]
        given = zip(parts, names, strict=True)
        tickets = [ticket_of(self._loans, part, name, self._worker) for part, name in given]
        self._lent[acknowledged] = names
        sent = self._send(to, pickle.dumps((self.rank, key, note, tickets, True)))
        if not sent:
            self._take_back(acknowledged)
        elif not lend:
            self._own.append(acknowledged)
        return sent

    def _send(self, to: int, message: bytes) -> bool:
        """Whether a datagram was taken."""
        try:
            self._out.sendto(message, socket.MSG_DONTWAIT, self._near[to].path)
        except OSError as error:  # too long, no room for it, or nobody there
            if isinstance(error, ConnectionRefusedError | FileNotFoundError):
                self.look(to)
            return False
        return True

    def look(self, rank: int) -> None:
        if rank in self._near:
            try:
                os.kill(self._near[rank].pid, 0)
            except ProcessLookupError as error:
                self.end(lost(rank, error))

    def _sent(self, to: int, sending: Future[Any]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            self.end(lost(to, error))
        self._sending.discard(sending)

    def _take_back(self, acknowledged: tuple[Any, ...]) -> None:
        for name in self._lent.pop(acknowledged):
            del self._loans.lent[name]

    def settle(self) -> None:
        while self._own:
            acknowledged = self._own.pop()
            to = acknowledged[1]
            while not self.wait([acknowledged], min(self.deadline, monotonic() + LOOK)):
                self.look(to)
                if to in self.returned or monotonic() > self.deadline:
                    raise (CollectiveError if to in self.returned else DeadlineError)(
                        f"rank {self.rank} could not send all to rank {to} in {self.doing().call}: "
                        f"that did not take it. All ranks of a group make the same calls; or give "
                        f"the run longer with timeout="
                    )
        for acknowledged in self._lent.keys() & self.parcels.keys():
            self._take_back(acknowledged)
            del self.parcels[acknowledged]

    def arrived(self) -> None:
        self._own = [*self._lent]
        self.settle()
        left = wait_for_all(list(self._sending), max(0.0, self.deadline - monotonic())).not_done
        self.check()
        if left:
            raise DeadlineError(
                f"{len(left)} messages that rank {self.rank} sent had not arrived at the run's "
                f"deadline; a worker is frozen or gone, or the run needs longer: timeout="
            )

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        wait_for_all(list(self._sending), _NEWS)

    # -- in -----------------------------------------------------------------------------------

    def wait(self, keys: Sequence[Any], deadline: float, bell: Any = None) -> bool:
        # who brings something by Dask meanwhile rings by a datagram of nothing
        return super().wait(keys, deadline, self if self._near else None)

    def release(self) -> None:
        """Wake the task, if it waits for a datagram."""
        self._send(self.rank, b"")

    def acquire(self, timeout: float) -> None:
        """Take in a datagram, if one comes in time."""
        self._in.settimeout(min(timeout, 3600.0))  # systems take no more than weeks
        try:
            size = self._in.recv_into(self._room)
        except OSError:  # nothing came, or the run was closed
            return
        if not size:
            return
        source, key, note, parts, lent = pickle.loads(memoryview(self._room)[:size])
        if lent:
            try:
                parts = [self._read(ticket) for ticket in parts]
            except LoanLostError as error:
                self.end(lost(source, error))
                return
            self.deliver(source, ("read", self.rank, key), None, [])
        self.arrive(key, note, parts, sum(part.nbytes for part in parts), now())

    def _read(self, ticket: Ticket) -> np.ndarray:
        """What another rank of this host lends."""
        nbytes = prod(ticket.shape) * as_dtype(ticket.dtype).itemsize
        buffer = host_memory.empty((nbytes,), np.dtype(np.uint8))
        ends = tuple((0, extent) for extent in ticket.shape)
        part = read_part(self._worker, self.run, ticket, ends, buffer, self._loans.opened)
        return np.require(part, requirements="W")  # what came as a message is not

    def close(self) -> None:
        """End what is left of it here; nobody needs it any more."""
        if self._near:
            self.release()  # wakes the task, if it still waits
        if self.path:
            self._in.close()
            self._out.close()
        exchanges.pop(self.run, None)
        self._loans.lent.clear()
