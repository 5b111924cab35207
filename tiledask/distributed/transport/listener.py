"""A port of a worker's process, where others of its cluster connect past Dask.

    who connects                                who listens: one thread of the process
                   <---- a nonce ----
    name, who,     ---- and an HMAC of  --->    is the name expected here, the HMAC its secret's?
    own nonce           all of them             else the connection is closed
                   <---- an HMAC ----           it knows the secret too
    blocks of an exchange (streams.py), or messages of ranks (sockets.py)

The secret of an exchange or a run comes through Dask to those that take part, and never goes this
way. Until it is proven nothing is read but those 84 bytes, for a few seconds, of a few strangers;
of too many the one that came first is sent away. Nothing here is encrypted: where Dask's own
connections are, nobody listens.
"""

import asyncio
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from distributed.comm.addressing import get_address_host, get_address_host_port

from tiledask.errors import ClusterLostError

__all__ = [
    "Door",
    "Listener",
    "UnreachedError",
    "close",
    "connect",
    "listener_of",
    "no_door",
    "opened",
    "reached",
    "receive",
]

REACH = 3.0
"""Seconds in which a host that is there takes a connection."""
PROVE = 5.0
"""Seconds that either side has to prove that it knows the secret."""
STRANGERS = 64
"""The most connections at a time that have not proven anything."""
BUFFER = 4 * 2**20
"""Bytes that the system keeps of what is under way, on either side."""
_NONCE = 32
_PROOF = struct.Struct("<16sI32s32s")
"""Name of what is expected, number of who connects, its nonce, its proof."""
_KEPT_ALIVE = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4}
"""A connection without a word for 7 s is looked after: of a host that is cut off it ends."""
_UNHEARD = 8_000
"""Milliseconds after which one ends whose bytes nobody acknowledges (TCP_USER_TIMEOUT)."""


class UnreachedError(ClusterLostError):
    """No connection can be made there."""


class Door(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Taker = Callable[[socket.socket, int], None]
"""Is given a connection, and the number of who is at its other end; must not wait."""


def name_of(secret: bytes) -> bytes:
    """How what has ``secret`` is called by those that connect: 16 bytes that do not give it away.

    >>> name_of(b"of an exchange") == name_of(b"of a run")
    False
    """
    return hashlib.sha256(b"name" + secret).digest()[:16]


def _proof(secret: bytes, role: bytes, *told: bytes) -> bytes:
    return hmac.digest(secret, role + b"".join(told), "sha256")


class _Stranger:
    """Who has connected and proven nothing."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.nonce = peer, secrets.token_bytes(_NONCE)
        self.came, self.deadline = b"", monotonic() + PROVE

    def hear(self, expected: dict[bytes, tuple[bytes, Taker]]) -> tuple[Taker, int] | None:
        """What takes the connection, and who it is from; None before all has come.

        Raises PermissionError for what proves nothing.
        """
        came = self.peer.recv(_PROOF.size - len(self.came))
        self.came += came
        if not came:
            raise PermissionError("it has closed the connection")
        if len(self.came) < _PROOF.size:
            return None
        name, who, nonce, proof = _PROOF.unpack(self.came)
        secret, take = expected.get(name, (secrets.token_bytes(32), None))
        told = self.came[: -len(proof)]
        right = hmac.compare_digest(proof, _proof(secret, b"connects", self.nonce, told))
        if take is None or not right:
            raise PermissionError("it does not know the secret")
        self.peer.send(_proof(secret, b"listens", nonce, self.nonce))
        return take, who


class Listener:
    """Listens at ``host`` until it is closed, with one thread."""

    def __init__(self, host: str) -> None:
        self._expected: dict[bytes, tuple[bytes, Taker]] = {}
        """By the name of each secret, the secret and what takes the connections."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            _widen(self._socket)
            self._socket.bind((host, 0))
            self._socket.listen(STRANGERS)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self.door = Door(host, self._socket.getsockname()[1])
        self._waker, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="tiledask-listener", daemon=True)
        self._thread.start()

    def expect(self, secret: bytes, take: Taker) -> None:
        """None; from now on ``take`` is given whoever knows ``secret``."""
        self._expected[name_of(secret)] = secret, take

    def forget(self, secret: bytes) -> None:
        """None; nobody is let in with ``secret`` any more."""
        self._expected.pop(name_of(secret), None)

    def close(self) -> None:
        """None, once nobody listens."""
        self._bell.close()
        self._thread.join(PROVE)

    def _listen(self) -> None:
        strangers: dict[socket.socket, _Stranger] = {}  # the one that came first is first
        with selectors.DefaultSelector() as selector:
            for known in (self._socket, self._waker):
                selector.register(known, selectors.EVENT_READ)

            def let_go(peer: socket.socket) -> None:
                selector.unregister(peer)
                del strangers[peer]

            def send_away(peer: socket.socket) -> None:
                let_go(peer)
                peer.close()

            while True:
                ready = [key.fileobj for key, _ in selector.select(1.0 if strangers else None)]
                for at in ready:
                    if at is self._waker:
                        for peer in (*strangers, self._socket, self._waker):
                            peer.close()
                        return
                    if at is self._socket:
                        try:
                            peer, _ = self._socket.accept()
                        except OSError:  # it is gone again, or there are no more files
                            sleep(0.01)
                            continue
                        strangers[peer] = new = _Stranger(peer)
                        selector.register(peer, selectors.EVENT_READ)
                        peer.setblocking(False)
                        try:
                            peer.send(new.nonce)
                        except OSError:
                            send_away(peer)
                        if len(strangers) > STRANGERS:
                            send_away(next(iter(strangers)))
                    elif at in strangers:
                        try:
                            found = strangers[at].hear(self._expected)
                        except BlockingIOError:
                            continue
                        except OSError:
                            send_away(at)
                            continue
                        if found is not None:
                            take, who = found
                            let_go(at)
                            at.setblocking(True)
                            _keep_alive(at)
                            take(at, who)
                for stranger in list(strangers.values()):
                    if monotonic() > stranger.deadline:
                        send_away(stranger.peer)


def connect(door: Door, secret: bytes, who: int = 0, seconds: float = REACH) -> socket.socket:
    """A connection with who listens at ``door`` and has proven that it knows ``secret``.

    Raises UnreachedError if there is none within ``seconds``, or it does not know it.
    """
    peer = socket.socket(socket.AF_INET6 if ":" in door.host else socket.AF_INET)
    try:
        _widen(peer)
        peer.settimeout(seconds)
        peer.connect(door)
        peer.settimeout(PROVE)
        theirs, own = receive(peer, _NONCE), secrets.token_bytes(_NONCE)
        told = struct.pack("<16sI32s", name_of(secret), who, own)
        _keep_alive(peer)
        peer.sendall(told + _proof(secret, b"connects", theirs, told))
        proof = receive(peer, 32)
        if not hmac.compare_digest(proof, _proof(secret, b"listens", own, theirs)):
            raise PermissionError("who listens there does not know the secret")
        peer.settimeout(None)
    except OSError as error:
        peer.close()
        raise UnreachedError(f"{door} cannot be reached: {error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


def receive(peer: socket.socket, nbytes: int) -> bytes:
    """The next ``nbytes`` of a connection. Raises ConnectionError if it ends before."""
    came = b""
    while len(came) < nbytes:
        some = peer.recv(nbytes - len(came))
        if not some:
            raise ConnectionError("the connection was closed at the other end")
        came += some
    return came


def _widen(made: socket.socket) -> None:
    """Let more bytes be under way; before it is connected, that the window may be as wide."""
    for name, option in (("rmem_max", socket.SO_RCVBUF), ("wmem_max", socket.SO_SNDBUF)):
        with suppress(OSError, ValueError):
            # less than asked for would be less than the system takes by itself
            if int(Path(f"/proc/sys/net/core/{name}").read_text()) >= BUFFER:
                made.setsockopt(socket.SOL_SOCKET, option, BUFFER)


def _keep_alive(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_KEPT_ALIVE.items(), ("TCP_USER_TIMEOUT", _UNHEARD)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# -- of this process -----------------------------------------------------------------------------


_open: Listener | None = None
"""The one of this process, once it was needed."""


def listener_of(worker: Any) -> Listener | None:
    """The Listener of ``worker``'s process; None where its connections are encrypted, or not TCP's,
    or nothing can listen at its address."""
    global _open
    if sys.platform != "linux" or not worker.address.startswith("tcp://"):
        return None
    host = get_address_host(worker.address)
    if _open is None or _open.door.host != host:
        close()
        with suppress(OSError):  # an address that others know it by, behind a router
            _open = Listener(host)
    return _open


async def reached(address: str, seconds: float = REACH) -> bool:
    """Whether the host of a worker's ``address`` takes a connection, as one does whose worker is
    busy."""
    try:
        call = asyncio.open_connection(*get_address_host_port(address))
        _, writer = await asyncio.wait_for(call, seconds)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def no_door(address: str) -> str:
    """Why others cannot connect to the process of a worker."""
    if address.startswith("tls"):
        return f"connections with {address} are encrypted, as those of workers' own ports are not"
    return f"the worker at {address} has no port for others"


def opened() -> Listener | None:
    """The Listener of this process, if there is one."""
    return _open


def close() -> None:
    """None; nobody listens in this process any more."""
    global _open
    if _open is not None:
        _open.close()
        _open = None
