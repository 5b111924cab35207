"""Messages through a socket between each two workers of one machine, past Dask's event loops.

    task of rank 0 == send ==> kernel ==> recv == task of rank 1      no thread in between

Large arrays stay where they are: the message has a ticket for them, the receiver reads them from
the sender's memory, one copy, and acknowledges it; the sender's `settle` waits for that.

The socket files lie in a folder that only the user may enter. A rank that waits for a message, or
for room to send one, takes in whatever comes from anybody, so two ranks may send to each other at
the same time. A connection that ends before its rank has returned means that its worker is gone.
"""

import pickle
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.cluster import host_memory
from tiledask.distributed.transport import dask_transport
from tiledask.distributed.transport.dask_transport import ByDask, gone
from tiledask.distributed.transport.meeting import Meeting
from tiledask.distributed.transport.remote_read import (
    LoanLostError,
    Loans,
    Ticket,
    read_lent,
    ticket_of,
)
from tiledask.distributed.transport.transport import LOOK, take_in
from tiledask.errors import CollectiveError, DeadlineError
from tiledask.tile.backend import as_dtype, name_of

__all__ = ["LONGEST", "Sockets", "prepare"]

LONGEST = 100
"""Characters that the path of a socket may have; systems stop at 104 or 108."""
_SIZE = struct.Struct("<I")
_TOGETHER = 1 << 16
"""Bytes up to which a message is sent by one call."""
_LENT = 1 << 17
"""Bytes from which on a message's arrays are lent, where ranks may read each other's memory."""


def prepare(folder: str, reads: bool, here: Meeting, worker: Any) -> None:
    """Let other ranks connect to this one; called as a run opens in the worker."""
    dask_transport.prepare(here, worker)
    path = Path(folder) / str(here.device)
    with suppress(FileNotFoundError):
        path.unlink()
    opened = socket.socket(socket.AF_UNIX)
    here.door = _Door(opened, folder, reads)
    here.at_end.append(opened.close)
    opened.bind(str(path))
    opened.listen(len(here.addresses))


class _Door(NamedTuple):
    """Where others knock that want to connect to this rank."""

    opened: socket.socket
    folder: str
    """The folder of the sockets of all ranks."""
    reads: bool
    """Whether they may read each other's memory."""


class Sockets(ByDask):
    """Messages through sockets of this machine. What is lent counts as sent; the reader counts
    what the system call brought."""

    def __init__(self, rank: int, here: Meeting, deadline: float, worker: Any) -> None:
        super().__init__(rank, here, deadline, worker)
        self._peers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._note: tuple[Any, bytes] = (None, pickle.dumps(None))
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
            # a connection with every other rank: this one calls those below it
            for other in range(rank):
                self._peers[other] = peer = self._limited(socket.socket(socket.AF_UNIX))
                peer.connect(str(Path(here.door.folder) / str(other)))
                peer.sendall(_SIZE.pack(rank))
            while len(self._peers) < self.ranks - 1:
                peer, _ = self._limited(here.door.opened).accept()
                self._limited(peer)
                self._peers[_SIZE.unpack(peer.recv(_SIZE.size, socket.MSG_WAITALL))[0]] = peer
        except TimeoutError:
            missing = [r for r in self._others() if r not in self._peers]
            raise DeadlineError(
                f"rank {rank} waited until the run's deadline for a connection with ranks "
                f"{missing}: their slots are busy or their workers gone. Give it longer with "
                f"timeout="
            ) from None
        self._inboxes = {other: _Inbox(self._incoming(other)) for other in self._peers}
        for other, peer in self._peers.items():
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ, other)

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
        if self._note[0] is not note:  # the messages of a collective all carry the same call
            self._note = note, pickle.dumps(note)
        flat = [part.reshape(-1).view(np.uint8) for part in parts]
        nbytes = sum(part.nbytes for part in flat)
        lent = self._here.door.reads and nbytes >= _LENT
        tickets: list[Ticket | None] = [None] * len(parts)
        if lent:
            self._lent[to, key] = exchange = Loans()
            if not lend:
                self._own.append((to, key))
            tickets = [ticket_of(exchange, part, i, self._worker) for i, part in enumerate(flat)]
            flat = []
        shapes = [(name_of(part.dtype), part.shape) for part in parts]
        head = pickle.dumps((key, list(zip(shapes, tickets, strict=True)), self._note[1]))
        views = [memoryview(_SIZE.pack(len(head)) + head), *(part.data for part in flat)]
        if sum(map(len, views)) <= _TOGETHER:
            views = [memoryview(b"".join(views))]
        for view in views:
            self._send(to, view)
        self._acknowledge()
        return nbytes

    def settle(self) -> None:
        while self._own:
            to, key = self._own.pop()
            while (to, key) in self._lent:
                self._may_wait(to)
                self._take_in(min(LOOK, max(0.0, self.deadline - time.monotonic())))
                self._acknowledge()

    def _send(self, to: int, view: memoryview) -> None:
        """Send all of ``view``, and take messages in while there is no room for it."""
        peer, sent = self._peers[to], 0
        while sent < len(view):
            try:
                sent += peer.send(view[sent:])
            except BlockingIOError:
                self._make_room(to, peer)
            except OSError as error:
                self.box.check()  # it was closed because the run is over
                raise gone(self.rank, to, error) from None

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
            head = pickle.dumps((key, None, b""))
            self._send(to, memoryview(_SIZE.pack(len(head)) + head))

    def _incoming(self, source: int) -> Iterator[memoryview]:
        """Yields memory for what comes next from a rank; goes on when it is full."""
        while True:
            size = bytearray(_SIZE.size)
            yield memoryview(size)
            head = bytearray(_SIZE.unpack(size)[0])
            yield memoryview(head)
            key, kinds, note = pickle.loads(head)
            if kinds is None:
                del self._lent[source, key]
                continue
            parts, nbytes = [], 0
            for (name, shape), ticket in kinds:
                parts.append(host_memory.empty(shape, as_dtype(name)))
                flat = parts[-1].reshape(-1).view(np.uint8)
                nbytes += flat.nbytes
                if ticket is not None:
                    read_lent(ticket, flat)
                elif flat.nbytes:
                    yield flat.data
            if kinds and kinds[0][1] is not None:
                self._unacknowledged.append((source, key))
            take_in(self.box, key, pickle.loads(note), parts, nbytes)

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
