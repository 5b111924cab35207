"""Messages through a socket between each two workers, past Dask's event loops.

    task of rank 0 == send ==> kernel ==> recv == task of rank 1      no thread in between

The sockets are files in a folder that all workers see and only the user may enter. Where ranks may
read each other's memory large arrays stay where they are: the message has a ticket for them, the
receiver reads them from the sender's memory, one copy, and acknowledges it; the sender's `settle`
waits for that. An error goes to the other ranks by Dask.

A rank that waits for a message, or for room to send one, takes in whatever comes from anybody, so
two ranks may send to each other at the same time. A connection that ends before its rank has
returned means that its worker is gone.
"""

import os
import pickle
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.transport import dask_transport
from tiledask.distributed.transport.dask_transport import ANSWER, ByDask, gone
from tiledask.distributed.transport.loans import Loans
from tiledask.distributed.transport.meeting import Meeting
from tiledask.distributed.transport.process_memory import read_lent, this_host
from tiledask.distributed.transport.reader import reads_memory_of
from tiledask.distributed.transport.remote_read import ticket_of
from tiledask.distributed.transport.tickets import LoanLostError, Ticket
from tiledask.distributed.transport.transport import LOOK, portable, take_in
from tiledask.errors import ClusterLostError, CollectiveError, DeadlineError
from tiledask.tile.backend import as_dtype, name_of

__all__ = ["LONGEST", "Sockets", "Where", "prepare"]

LONGEST = 100
"""Characters that the path of a socket may have; systems stop at 104 or 108."""
_SIZE = struct.Struct("<I")
_TOGETHER = 1024
"""Pieces that one call sends (IOV_MAX): the other end wakes up once for all of them."""
_LENT = 1 << 17
"""Bytes from which on a message's arrays are lent, where ranks may read each other's memory."""


class Where(NamedTuple):
    """Where a rank is."""

    host: str
    address: str
    """As Dask knows it."""
    pid: int


class SentArray(NamedTuple):
    """One array of a message, before its bytes."""

    dtype: str
    shape: tuple[int, ...]
    ticket: Ticket | None
    """Where it lies, if it is lent; else its bytes follow."""


@dataclass
class _Door:
    """Where others knock that want to connect to this rank."""

    folder: str
    """Of the socket files."""
    reads: bool
    """Whether ranks may read each other's memory, as far as the system lets them."""
    file: socket.socket
    where: tuple[Where, ...] = ()
    """By rank."""

    def close(self) -> None:
        with suppress(OSError):
            self.file.shutdown(socket.SHUT_RDWR)  # wakes the task, if it waits for others
        self.file.close()


def prepare(folder: str, reads: bool, here: Meeting, worker: Any) -> Where:
    """Let other ranks connect to this one; called as a run opens in the worker."""
    dask_transport.prepare(here, worker)
    path = Path(folder) / str(here.device)
    with suppress(FileNotFoundError):
        path.unlink()
    opened = socket.socket(socket.AF_UNIX)
    here.door = _Door(folder, reads, opened)
    here.at_end.append(here.door.close)
    opened.bind(str(path))
    opened.listen(len(here.addresses))
    return Where(this_host(), worker.address, os.getpid())


def _received(peer: socket.socket, nbytes: int) -> bytes:
    """So many bytes from ``peer``. Raises EOFError if the connection ends before."""
    came = b""
    while len(came) < nbytes:
        more = peer.recv(nbytes - len(came))
        if not more:
            raise ConnectionError("the connection has ended")
        came += more
    return came


class Sockets(ByDask):
    """Messages through sockets. What is lent counts as sent; the reader counts what the system
    call brought."""

    def __init__(self, rank: int, here: Meeting, deadline: float, worker: Any) -> None:
        super().__init__(rank, here, deadline, worker)
        self._peers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._lent: dict[
            tuple[int, tuple[Any, ...]], Loans
        ] = {}  # (receiver, message's key) -> arrays
        self._own: list[tuple[int, tuple[Any, ...]]] = []
        """Of those lent, what the sender wants back before it goes on."""
        self._unacknowledged: list[
            tuple[int, tuple[Any, ...]]
        ] = []  # (sender, message's key) of what was read
        here.at_end.append(self._close)
        try:
            self._connect()
            self._lends = self._said_to_read()
            """Ranks that read what is lent to them."""
        except TimeoutError:
            missing = [r for r in self._others() if r not in self._peers]
            raise DeadlineError(
                f"rank {rank} waited until the run's deadline for a connection with ranks "
                f"{missing}: their slots are busy or their workers gone. Give it longer with "
                f"timeout="
            ) from None
        except OSError as error:
            self.box.check()  # the run may be over for another reason, and its doors closed
            raise ClusterLostError(
                f"rank {rank} could not connect to all others, the worker of one died ({error}); "
                f"run the program again"
            ) from None
        self._inboxes = {other: _Inbox(self._incoming(other)) for other in self._peers}
        for other, peer in self._peers.items():
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ, other)

    def _connect(self) -> None:
        """None, once there is a connection with every other rank: this one calls those below it."""
        door: _Door = self._here.door
        for other in range(self.rank):
            self._peers[other] = peer = self._limited(socket.socket(socket.AF_UNIX))
            peer.connect(str(Path(door.folder) / str(other)))
            peer.sendall(_SIZE.pack(self.rank))
        for _ in range(self.rank + 1, self.ranks):
            peer, _ = self._limited(door.file).accept()
            self._limited(peer)
            self._peers[_SIZE.unpack(_received(peer, _SIZE.size))[0]] = peer

    def _said_to_read(self) -> set[int]:
        """The ranks that can read this one's memory, as they say; they hear whether it can read
        theirs."""
        door: _Door = self._here.door
        for other, peer in self._peers.items():
            there = door.where[other]
            reads = door.reads and reads_memory_of(there.host, there.address, there.pid)
            peer.sendall(bytes([reads]))
        said = {other: self._limited(peer).recv(1) for other, peer in self._peers.items()}
        return {other for other, reads in said.items() if reads == b"\1"}

    def _limited(self, peer: socket.socket) -> socket.socket:
        peer.settimeout(max(0.001, self.deadline - time.monotonic()))
        return peer

    # -- out ----------------------------------------------------------------------------------

    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        parts = [np.asarray(part, order="C") for part in parts]
        flat = [part.reshape(-1).view(np.uint8) for part in parts]
        nbytes = sum(part.nbytes for part in flat)
        lent = to in self._lends and nbytes >= _LENT
        tickets: list[Ticket | None] = [None] * len(parts)
        if lent:
            self._lent[to, key] = exchange = Loans()
            if not lend:
                self._own.append((to, key))
            tickets = [ticket_of(exchange, part, i, self._worker) for i, part in enumerate(flat)]
            flat = []
        kinds = [
            SentArray(name_of(part.dtype), part.shape, ticket)
            for part, ticket in zip(parts, tickets, strict=True)
        ]
        head = pickle.dumps((key, kinds, note))
        views = [memoryview(_SIZE.pack(len(head)) + head), *(part.data for part in flat)]
        self._send(to, views)
        self._acknowledge()
        return nbytes

    def settle(self) -> None:
        while self._own:
            to, key = self._own.pop()
            while (to, key) in self._lent:
                self._may_wait(to)
                self._take_in(min(LOOK, max(0.0, self.deadline - time.monotonic())))
                self._acknowledge()

    def _send(self, to: int, views: list[memoryview]) -> None:
        """Send all of ``views``, and take messages in while there is no room for it."""
        peer = self._peers[to]
        while views:
            try:
                sent = peer.sendmsg(views[:_TOGETHER])
            except BlockingIOError:
                self._make_room(to, peer)
                continue
            except OSError as error:
                # it was closed because the run is over, or its worker is gone: as others see too
                self.box.tell(over=gone(self.rank, to, error))
                self.box.check()
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _make_room(self, to: int, peer: socket.socket) -> None:
        """Wait until ``peer`` takes more, or something came in."""
        self._may_wait(to)
        try:
            self._selector.modify(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, to)
            self._take_in(LOOK)
        finally:
            if peer in self._selector.get_map():
                self._selector.modify(peer, selectors.EVENT_READ, to)

    def _may_wait(self, to: int) -> None:
        """Raise if there is no hope that rank ``to`` takes what is sent to it."""
        self.box.check()
        if time.monotonic() > self.deadline:
            raise DeadlineError(
                f"rank {self.rank} could not send all to rank {to} before the run's deadline: "
                f"{self._words(to)}. Let rank {to} call the collective too, or give the run "
                f"longer with timeout="
            )
        if ("end", to) in self.box.parcels:
            raise CollectiveError(
                f"rank {self.rank} sends to rank {to} in {self.doing().call}, but "
                f"{self._words(to)}. All ranks of a group make the same calls"
            )

    def fail(self, error: BaseException) -> None:
        self.box.tell(over=error)
        why, others = portable(error), self._others()
        wait([self._by_dask(other, ("over", self.rank), why) for other in others], ANSWER)
        for other in others:
            with suppress(Exception):  # of a rank that is gone: the others shall look
                self.deliver(other, ("over", self.rank), None, [])

    # -- in -----------------------------------------------------------------------------------

    def arrived(self) -> None:
        self._own = list(self._lent)
        self.settle()

    def wait(
        self,
        ready: Callable[[], bool] | None,
        deadline: float,
        keys: Sequence[tuple[Any, ...]] = (),
    ) -> bool:
        parcels = self.box.parcels
        while not (ready() if ready else all(key in parcels for key in keys)):
            self.box.check()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._take_in(left)
            self._acknowledge()
        return True

    def _take_in(self, seconds: float) -> None:
        """Take in what is there, or what comes first within ``seconds``."""
        for ready, events in self._selector.select(seconds):
            if not events & selectors.EVENT_READ:
                continue
            try:
                self._inboxes[ready.data].fill(self._peers[ready.data])
            except (EOFError, OSError, LoanLostError) as error:
                self._selector.unregister(ready.fileobj)
                if ("end", ready.data) not in self.box.parcels:
                    self.box.tell(over=gone(self.rank, ready.data, error))

    def _acknowledge(self) -> None:
        """Acknowledge what was read; not while a message is half sent, it would break into that."""
        while self._unacknowledged:
            to, key = self._unacknowledged.pop()
            head = pickle.dumps((key, None, None))
            self._send(to, [memoryview(_SIZE.pack(len(head)) + head)])

    def _incoming(self, source: int) -> Iterator[memoryview]:
        """Yields memory for what comes next from a rank; goes on when it is full."""
        while True:
            size = bytearray(_SIZE.size)
            yield memoryview(size)
            head = bytearray(*_SIZE.unpack(size))
            yield memoryview(head)
            key, kinds, note = pickle.loads(head)
            if kinds is None:
                self._lent.pop((source, key), None)
                continue
            if key[0] == "over":
                continue  # Dask has brought why, and the task shall look
            parts, nbytes = [], 0
            for name, shape, ticket in kinds:
                parts.append(host_memory.empty(shape, as_dtype(name)))
                flat = parts[-1].reshape(-1).view(np.uint8)
                nbytes += flat.nbytes
                if ticket is not None:
                    read_lent(ticket, flat)
                elif flat.nbytes:
                    yield flat.data
            if kinds and kinds[0].ticket is not None:
                self._unacknowledged.append((source, key))
            take_in(self.box, key, note, parts, nbytes)

    def _close(self) -> None:
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # wakes the task, if it still waits
            peer.close()


class _Inbox:
    """What has come of one connection's next message; never waits for the rest of it, for two
    ranks that did would keep a third from sending."""

    def __init__(self, wanted: Iterator[memoryview]) -> None:
        self._wanted = wanted
        self._view = next(wanted)

    def fill(self, peer: socket.socket) -> None:
        """Take what is there. Raises EOFError if the connection has ended."""
        while True:
            try:
                got = peer.recv_into(self._view)
            except BlockingIOError:
                return
            if not got:
                raise EOFError("the connection has ended")
            self._view = self._view[got:] if got < len(self._view) else next(self._wanted)
