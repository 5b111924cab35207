"""A worker's own port: who proves nothing gets nothing, and disturbs nobody.

Holds `tiledask.distributed.transport.listener` and `tiledask.distributed.transport.streams`.
"""

import secrets
import socket
import struct
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.memory_orders import arrays

from tiledask.distributed.transport import listener, loans, reader, remote_read, streams
from tiledask.distributed.transport.listener import Door, Listener, UnreachedError, connect, receive
from tiledask.distributed.transport.loans import Loans
from tiledask.distributed.transport.streams import Streams
from tiledask.distributed.transport.tickets import LoanLostError
from tiledask.errors import DeadlineError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are opened on Linux alone")
SECRET = secrets.token_bytes(32)
"""Of what is expected."""


@pytest.fixture
def listening():
    """A Listener that lets in who knows SECRET: it is sent back what it says."""
    here = Listener("127.0.0.1")
    here.expect(SECRET, echo)
    yield here
    here.close()


def echo(peer, who):
    def answer():
        with peer:
            peer.sendall(struct.pack("<I", who))
            while some := peer.recv(100):
                peer.sendall(some)

    threading.Thread(target=answer, daemon=True).start()


def works(here):
    """Whether who knows the secret is let in, as number 7."""
    with connect(here.door, SECRET, who=7) as peer:
        peer.sendall(b"hello")
        return receive(peer, 9) == struct.pack("<I", 7) + b"hello"


def stranger(here):
    peer = socket.create_connection(here.door)
    peer.settimeout(240)
    return peer


def left_with(peer):
    """All that a stranger ever hears, until it is sent away."""
    heard = b""
    try:
        while some := peer.recv(1000):
            heard += some
    except ConnectionResetError:
        pass
    return heard


def test_who_knows_the_secret_is_let_in(listening):
    assert works(listening)
    assert works(listening)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(84),
        secrets.token_bytes(84),
        listener.name_of(SECRET) + secrets.token_bytes(68),
        b"\xff" * 10_000,
        SECRET + bytes(52),
    ],
    ids=["http", "random", "the right name", "far too much", "the secret itself"],
)
def test_garbage_and_what_proves_nothing(listening, said):
    with stranger(listening) as peer:
        peer.sendall(said)
        assert len(left_with(peer)) == 32  # the nonce that all are sent
    assert works(listening)


def test_a_wrong_secret_and_one_that_is_forgotten(listening):
    with pytest.raises(UnreachedError, match=r"127\.0\.0\.1:.*cannot be reached"):
        connect(listening.door, secrets.token_bytes(32))
    assert works(listening)
    listening.forget(SECRET)
    with pytest.raises(UnreachedError):
        connect(listening.door, SECRET)


def test_a_proof_that_was_overheard_is_worth_nothing(listening):
    told = struct.pack("<16sI32s", listener.name_of(SECRET), 0, bytes(32))
    with stranger(listening) as first, stranger(listening) as second:
        nonce = receive(first, 32)
        said = told + listener._proof(SECRET, b"connects", nonce, told)
        second.sendall(said)
        assert len(left_with(second)) == 32
        first.sendall(said)  # it is right where it was made for
        assert len(receive(first, 32 + 4)) == 36


def test_who_says_nothing_is_sent_away_and_holds_nobody_up(listening, monkeypatch):
    monkeypatch.setattr(listener, "PROVE", 0.3)
    with stranger(listening) as peer:
        peer.sendall(b"x")
        assert works(listening)
        assert len(left_with(peer)) == 32


def test_of_too_many_the_one_that_came_first_goes(listening, monkeypatch):
    monkeypatch.setattr(listener, "PROVE", 60)
    monkeypatch.setattr(listener, "STRANGERS", 8)
    several = [stranger(listening) for _ in range(12)]
    assert works(listening)
    assert len(left_with(several[0])) <= 32  # long before its time is over
    for peer in several:
        peer.close()
    assert works(listening)


def test_nobody_listens_once_it_is_closed():
    here = Listener("127.0.0.1")
    silent = stranger(here)
    here.close()
    assert not here._thread.is_alive()
    assert len(left_with(silent)) <= 32
    with pytest.raises(UnreachedError, match="refused"):
        connect(here.door, SECRET)


def test_an_impostor_that_listens_is_found_out():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend():
            peer, _ = server.accept()
            with peer:
                peer.sendall(bytes(32))
                receive(peer, 84)
                peer.sendall(bytes(32))

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(UnreachedError, match="does not know the secret"):
            connect(Door(*server.getsockname()), SECRET)


def test_a_worker_listens_where_dask_does_and_not_where_that_encrypts():
    try:
        assert listener.listener_of(SimpleNamespace(address="tls://127.0.0.1:1")) is None
        assert listener.listener_of(SimpleNamespace(address="inproc://1/2/3")) is None
        assert listener.listener_of(SimpleNamespace(address="tcp://203.0.113.1:1")) is None
        assert listener.opened() is None
        worker = SimpleNamespace(address="tcp://127.0.0.1:1")
        here = listener.listener_of(worker)
        assert listener.listener_of(worker) is here is listener.opened()
        assert here.door.host == "127.0.0.1"
    finally:
        listener.close()
    assert not here._thread.is_alive()


# -- blocks ---------------------------------------------------------------------------------------


@pytest.fixture
def exchange():
    """The name of an exchange of this process, to which others connect."""
    name = f"exchange-{secrets.token_hex(4)}"
    yield name
    remote_read._end(name)
    listener.close()


WORKER = SimpleNamespace(address="tcp://127.0.0.1:1")


def lent(exchange, array):
    return remote_read._ticket(
        remote_read._opened(exchange, True, WORKER), array, f"block {id(array)}", WORKER
    )


def go_on():
    """The exchange is not over."""


@pytest.mark.parametrize("name", dict(arrays()))
def test_parts_come_as_they_are(exchange, name, monkeypatch):
    array = dict(arrays())[name]
    rng = np.random.default_rng(1)
    ticket, borrows = lent(exchange, array), Streams()
    for piece in (2**20, 100, 1):
        monkeypatch.setattr(streams, "_PIECE", piece)
        for _ in range(7):
            ends = tuple(tuple(sorted(rng.choice(n + 1, 2, replace=False))) for n in array.shape)
            ends = tuple((int(a), int(b)) for a, b in ends)
            expected = array[tuple(slice(*e) for e in ends)]
            buffer = np.full(expected.nbytes + 8, 0xA5, np.uint8)
            part = borrows.read(ticket, ends, buffer, go_on)
            np.testing.assert_array_equal(part, expected)
            assert part.dtype == array.dtype
            assert (buffer[expected.nbytes :] == 0xA5).all()  # nothing beyond its end
    borrows.close()


def test_what_was_taken_back_is_not_lent(exchange):
    array = np.arange(8.0)
    ticket, borrows, room = lent(exchange, array), Streams(), np.empty(64, np.uint8)
    assert borrows.read(ticket, ((0, 8),), room, go_on).sum() == 28
    held = loans.exchanges[exchange]
    held.lent.clear()
    with pytest.raises(LoanLostError, match="taken back"):
        borrows.read(ticket, ((0, 8),), room, go_on)
    remote_read._end(exchange)  # that closes the connections too
    with pytest.raises((LoanLostError, UnreachedError)):
        borrows.read(ticket, ((0, 8),), room, go_on)


def test_when_all_ends_no_thread_and_no_port_is_left(exchange):
    ticket, borrows, room = lent(exchange, np.arange(8.0)), Streams(), np.empty(64, np.uint8)
    borrows.read(ticket, ((0, 8),), room, go_on)
    mine = [t for t in threading.enumerate() if t.name.startswith("tiledask")]
    lends = [t for t in mine if t.name != "tiledask-supervisor"]  # of another test's cluster
    assert len(lends) == 2
    remote_read.end_all()
    for thread in lends:
        thread.join(240)
        assert not thread.is_alive()
    assert exchange not in loans.exchanges
    with pytest.raises(UnreachedError):
        Streams().read(ticket, ((0, 8),), room, go_on)


@pytest.mark.parametrize(
    "asked",
    [
        struct.pack("<B2Q", 1, 0, 2**63),  # beyond the end
        struct.pack("<B2Q", 1, 9, 9),
        struct.pack("<B2Q", 1, 5, 2),
        struct.pack("<B", 200),  # of more dimensions than it has
    ],
    ids=["beyond", "outside", "backwards", "dimensions"],
)
def test_what_asks_for_more_than_there_is_gets_nothing(exchange, asked):
    ticket, borrows, room = lent(exchange, np.arange(8.0)), Streams(), np.empty(64, np.uint8)
    peer = connect(ticket.door, ticket.secret)
    peer.settimeout(240)
    with peer:
        peer.sendall(ticket.token + asked)
        assert left_with(peer) == b""
    assert borrows.read(ticket, ((0, 8),), room, go_on).sum() == 28
    borrows.close()


def test_a_stranger_does_not_disturb_what_is_read(exchange):
    array = np.arange(2.0**20).reshape(1024, 1024)
    ticket, borrows, over = lent(exchange, array), Streams(), threading.Event()

    def knock():
        while not over.is_set():
            with socket.create_connection(ticket.door) as peer:
                peer.sendall(secrets.token_bytes(200))

    knocks = threading.Thread(target=knock)
    knocks.start()
    room = np.empty(array.nbytes, np.uint8)
    for _ in range(20):
        part = borrows.read(ticket, ((0, 1024), (0, 1024)), room, go_on)
        assert part.sum() == array.sum()
        room[:] = 0
    over.set()
    knocks.join()
    borrows.close()


def test_an_owner_that_is_silent_has_a_deadline_and_an_exchange_that_is_over_ends_the_wait(
    exchange, monkeypatch
):
    ticket, room = lent(exchange, np.arange(8.0)), np.empty(64, np.uint8)
    monkeypatch.setattr(streams, "_LOOK", struct.pack("@ll", 0, 50_000))
    monkeypatch.setattr(streams, "PATIENCE", 0.3)
    monkeypatch.setattr(Streams, "_lend", lambda self, peer, lent: time.sleep(5))
    with pytest.raises(DeadlineError, match="frozen or gone"):
        Streams().read(ticket, ((0, 8),), room, go_on)

    def over():
        raise KeyError("it is over")

    with pytest.raises(KeyError):
        Streams().read(ticket, ((0, 8),), room, over)


def test_who_is_not_let_in_by_a_port_has_another_way(exchange):
    ticket = lent(exchange, np.arange(8.0))
    listener.close()
    reader.refused.clear()
    way, why = remote_read._tried("probe", ticket.__class__(**vars(ticket) | {"host": "another"}))
    assert way == "messages"
    assert f"{ticket.door} cannot be reached" in why
    reader.refused.clear()
    assert Loans().door is None
