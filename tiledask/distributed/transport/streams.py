"""Parts of lent blocks through sockets: asked for by their bounds, answered by their bytes.

    borrower                                          owner: a thread per connection
    token of the block, dimensions, bounds --->       still lent? within it?
    buffer of the plan                     <---       bytes of the part, as they lie in the block

A connection is made when a borrower first asks an owner in an exchange, proven by the exchange's
secret (listener.py), and closed with it. Both ends wait without the interpreter: BLAS goes on.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from tiledask.distributed.transport.listener import Door, UnreachedError, connect, no_door, receive
from tiledask.distributed.transport.tickets import LoanLostError, Ticket, laid_out, layout_of
from tiledask.errors import DeadlineError
from tiledask.plan.products.regions import Region, slices
from tiledask.tile import as_dtype

__all__ = ["PATIENCE", "Streams"]

PATIENCE = 30.0
"""Seconds that a borrower waits for an owner's next bytes."""
_ASKED = struct.Struct("<16sB")
"""Token of a block, number of dimensions."""
_BOUNDS = struct.Struct("<2Q")
_COMES = struct.Struct("<q")
"""Bytes that follow; -1 if the block is not lent any more."""
_PIECE = 2**20
"""Bytes of what does not lie in one piece that are put together at a time; they stay in cache."""
_LOOK = struct.pack("@ll", 1, 0)
"""After as many seconds, microseconds, a borrower looks whether its exchange is over."""


class Streams:
    """A process's connections of one exchange: by some it borrows, by others it lends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[Door, list[socket.socket]] = {}
        """By who is at the other end, connections that nothing comes by."""
        self._all: set[socket.socket] = set()
        self._closed = False

    def close(self) -> None:
        """None; nothing comes or goes any more."""
        with self._lock:
            self._closed = True
            for peer in self._all:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)  # wakes who waits
            for peer in (each for free in self._free.values() for each in free):
                peer.close()
            self._all.clear()
            self._free.clear()

    def _keep(self, peer: socket.socket) -> None:
        with self._lock:
            if self._closed:
                peer.close()
                raise LoanLostError("the exchange is over")
            self._all.add(peer)

    def _drop(self, peer: socket.socket) -> None:
        with self._lock:
            self._all.discard(peer)
        peer.close()

    # -- the borrower -----------------------------------------------------------------------------

    def read(self, ticket: Ticket, ends: Region, buffer: np.ndarray, check: Any) -> np.ndarray:
        """The part, in the start of ``buffer`` (uint8). ``check`` raises if the exchange is over.

        Raises UnreachedError if there is no connection, LoanLostError if it is not lent any more.
        """
        nbytes = layout_of(ends, ticket.strides, as_dtype(ticket.dtype).itemsize).part.nbytes
        bounds = b"".join(_BOUNDS.pack(*each) for each in ends)
        peer = self._connected(ticket)
        try:
            peer.sendall(_ASKED.pack(ticket.token, len(ends)) + bounds)
            head = bytearray(_COMES.size)
            _fill(peer, memoryview(head), check, ticket)
            (comes,) = _COMES.unpack(head)
            if comes != nbytes:
                raise ConnectionError("it was taken back")
            _fill(peer, buffer.data[:nbytes], check, ticket)
        except BaseException as error:
            self._drop(peer)
            if isinstance(error, OSError) and not isinstance(error, DeadlineError):
                raise LoanLostError(
                    f"the worker at {ticket.address} does not lend {ticket.name} any more: {error}"
                ) from None
            raise
        assert ticket.door is not None  # there is a connection
        with self._lock:
            self._free.setdefault(ticket.door, []).append(peer)
        part: np.ndarray = laid_out(ticket, ends, buffer)
        return part

    def _connected(self, ticket: Ticket) -> socket.socket:
        if ticket.door is None:
            raise UnreachedError(no_door(ticket.address))
        with self._lock:
            if free := self._free.get(ticket.door):
                return free.pop()
        peer = connect(ticket.door, ticket.secret)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK)
        self._keep(peer)
        return peer

    # -- the owner --------------------------------------------------------------------------------

    def lend(self, peer: socket.socket, lent: Callable[[bytes], np.ndarray | None]) -> None:
        """None; what is asked for by ``peer`` goes there, until it or the exchange ends.

        ``lent``: the block of a token, None if it is not lent.
        """
        threading.Thread(
            target=self._lend, args=(peer, lent), name="tiledask-lends", daemon=True
        ).start()

    def _lend(self, peer: socket.socket, lent: Callable[[bytes], np.ndarray | None]) -> None:
        with suppress(OSError, LoanLostError):
            self._keep(peer)
            try:
                while True:
                    token, dimensions = _ASKED.unpack(receive(peer, _ASKED.size))
                    block = lent(token)
                    if block is None:
                        peer.sendall(_COMES.pack(-1))
                        continue
                    if dimensions != block.ndim:
                        return
                    asked = receive(peer, dimensions * _BOUNDS.size)
                    ends = tuple(_BOUNDS.iter_unpack(asked))
                    within = zip(ends, block.shape, strict=True)
                    if not all(start <= stop <= extent for (start, stop), extent in within):
                        return
                    _send(peer, block, ends)
                    del block  # it may be taken back while nobody asks
            finally:
                self._drop(peer)


def _send(peer: socket.socket, block: np.ndarray, ends: Region) -> None:
    """Send the part, in the order of `layout_of`."""
    part: np.ndarray = block[(*slices(ends), ...)]  # type: ignore[arg-type]
    order = layout_of(ends, block.strides, block.itemsize).order
    peer.sendall(_COMES.pack(part.nbytes), socket.MSG_MORE if part.nbytes else 0)
    for piece in _pieces(part.transpose(order)):
        peer.sendall(piece.data)


def _pieces(x: np.ndarray) -> Iterator[np.ndarray]:
    """The bytes of ``x``, in C order: of the block itself where many lie together."""
    if x.flags.c_contiguous or x.nbytes <= _PIECE or x.ndim < 2:
        yield np.asarray(x, order="C").reshape(-1).view(np.uint8)
    elif 2 * x[0].nbytes > _PIECE:
        for inner in x:
            yield from _pieces(inner)
    else:
        rows = _PIECE // x[0].nbytes
        for first in range(0, len(x), rows):
            yield from _pieces(x[first : first + rows])


def _fill(peer: socket.socket, view: memoryview, check: Any, ticket: Ticket) -> None:
    """Fill ``view`` with what comes."""
    heard = time.monotonic()
    while view:
        try:
            got = peer.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            check()
            if time.monotonic() - heard > PATIENCE:
                raise DeadlineError(
                    f"the worker at {ticket.address} did not send a block's part within "
                    f"{PATIENCE:g} s; it is frozen or gone. Start a new cluster"
                ) from None
            continue
        if not got:
            raise ConnectionError("the connection was closed at the other end")
        view, heard = view[got:], time.monotonic()
