"""What stands before the arrays of a rank's message: plain values, which nothing is run to read.

[key, [[type, shape, ticket or null], ...], note]        JSON, as UTF-8
[key, null, null]                                        what was lent by that message was read
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing
from tiledask.distributed.transport.tickets import Ticket

__all__ = ["Head", "Kind", "head_of", "note_of", "packed"]

Key = tuple[Any, ...]


class Kind(NamedTuple):
    """One array of a message."""

    dtype: str
    shape: tuple[int, ...]
    ticket: Ticket | None
    """Where it lies, if it is lent; else its bytes follow."""


class Head(NamedTuple):
    """A message but for its bytes."""

    key: Key
    kinds: list[Kind] | None
    """None: the sender of what was lent under this key may have it back."""
    note: Any


def note_of(note: Any) -> str:
    """A note (None, a CollectiveCall or a Doing) as a message carries it."""
    name = "" if note is None else type(note).__name__
    return json.dumps([name, note], default=int)  # an integer of NumPy's


def packed(key: Key, kinds: Sequence[Kind] | None, note: str) -> bytes:
    """The bytes of a Head.

    >>> call = CollectiveCall(0, "all_reduce", (0, 1), 3, "loss", (("shape", (2, 3)),))
    >>> head_of(packed(("a", 1), [Kind("float64", (2, 3), None)], note_of(call)))
    Head(key=('a', 1), kinds=[Kind(dtype='float64', shape=(2, 3), ticket=None)], \
note=CollectiveCall(rank=0, kind='all_reduce', group=(0, 1), number=3, label='loss', \
same=(('shape', (2, 3)),), about=None))
    """
    given = None
    if kinds is not None:
        given = [(name, shape, ticket and _told(ticket)) for name, shape, ticket in kinds]
    return f"[{json.dumps(key)},{json.dumps(given, default=int)},{note}]".encode()


def head_of(data: bytes | bytearray) -> Head:
    """The Head of `packed` bytes. Raises ValueError for what is none."""
    try:
        key, given, (name, note) = json.loads(data)
        kinds = None
        if given is not None:
            kinds = [Kind(str(t), tuple(map(int, n)), its and _ticket(its)) for t, n, its in given]
        return Head(tuple(key), kinds, _NOTES[name](_deep(note)))
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"no head of a message: {error}") from None


def _deep(value: Any) -> Any:
    """A value with tuples for lists."""
    return tuple(map(_deep, value)) if isinstance(value, list) else value


def _doing(told: Any) -> Doing:
    made = Doing(*told)
    call, last = (its and CollectiveCall(*its) for its in (made.call, made.last))
    return made._replace(call=call, last=last)


_NOTES: dict[str, Any] = {
    "": lambda told: None,
    "CollectiveCall": lambda told: CollectiveCall(*told),
    "Doing": _doing,
}


def _told(ticket: Ticket) -> list[Any]:
    """What of a ticket who reads memory needs."""
    where = ticket.address, ticket.pid, str(ticket.name), ticket.pointer, ticket.shape
    return [*where, ticket.token_at, ticket.token.hex()]


def _ticket(told: Any) -> Ticket:
    address, pid, name, pointer, shape, token_at, token = told
    flat = tuple(shape), (1,), "uint8"
    return Ticket(address, "", pid, name, pointer, None, *flat, token_at, bytes.fromhex(token))
