"""What stands before a rank's arrays: read back as it was, and refused if it is none.

Holds `tiledask.distributed.transport.heads`.
"""

import struct
from types import SimpleNamespace

import numpy as np
import pytest

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing
from tiledask.distributed.transport.heads import SentArray, head_of, note_of, packed
from tiledask.distributed.transport.sockets import Sockets
from tiledask.distributed.transport.tickets import Ticket

CALL = CollectiveCall(
    1,
    "halo_exchange",
    (0, 1, 3),
    7,
    "layer 3/“forward”",
    (("shape", ("any", 4)), ("extents", (np.int64(3), 4)), ("wide", True), ("algorithm", None)),
    (2, 3),
)
NOTES = [None, CALL, Doing(), Doing(CALL, 2, 40, CALL, 1.7e9, True, "returned")]


@pytest.mark.parametrize("note", NOTES)
def test_every_note_is_read_back(note):
    there = head_of(packed(("end", 3), [], note_of(note)))
    assert there == (("end", 3), [], note)
    assert type(there.note) is type(note)


def test_arrays_and_their_tickets_are_read_back():
    flat = (24,), (1,), "uint8"
    ticket = Ticket(
        "tcp://10.0.0.1:5", "", 812, "1", 2**47 + 8, None, *flat, 2**40, bytes(range(16))
    )
    sent = [SentArray("bfloat16", (), None), SentArray("float64", (np.int64(3), 1), ticket)]
    key = "program (0, 1)", 1, 2**40
    assert head_of(packed(key, sent, note_of(None))) == (key, sent, None)
    assert head_of(packed(key, None, note_of(None))).arrays is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x80\x04\x95",  # a pickle
        b"[]",
        b"7",
        b"[" * 2**20,
        b'[["a", 1], [], ["os.system", ["true"]]]',
        b'[["a", 1], [["float32"]], ["", null]]',
        b'[["a", 1], [["float32", [2], ["x"]]], ["", null]]',
        b'[["a", 1], [], ["Doing", [1, 2, 3, 4, 5, 6, 7, 8, 9]]]',
    ],
    ids=["", "pickle", "empty", "number", "deep", "note", "array", "ticket", "doing"],
)
def test_what_is_no_head_is_refused(said):
    with pytest.raises(ValueError, match="no head of a message"):
        head_of(said)


def test_a_head_that_is_too_long_is_not_read():
    incoming = Sockets._incoming(SimpleNamespace(_lent={}), 0)
    room = next(incoming)
    room[:] = struct.pack("<I", 2**30)
    with pytest.raises(ValueError, match="1073741824 bytes before a message's arrays, at most"):
        next(incoming)
