"""What stands before the arrays of a rank's message: plain values, which nothing is run to read.

[key, [[type, shape, ticket or null], ...], note]        JSON, as UTF-8
[key, null, note]                                        what was lent by that message was read
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing
from tiledask.distributed.transport.tickets import Ticket

__all__ = ["Head", "SentArray", "head_of", "note_of", "packed"]


class SentArray(NamedTuple):
    """One array of a message."""

    dtype: str
    shape: tuple[int, ...]
    ticket: Ticket | None
    """Where it lies, if it is lent; else its bytes follow."""


class Head(NamedTuple):
    """A message but for its bytes."""

    key: tuple[Any, ...]
    arrays: list[SentArray] | None
    """None: the sender of what was lent under this key may have it back."""
    note: CollectiveCall | Doing | None


def note_of(note: CollectiveCall | Doing | None) -> str:
    """A note as a message carries it."""
    name = "" if note is None else type(note).__name__
    return json.dumps([name, note], default=int)  # an integer of NumPy's


def packed(key: tuple[Any, ...], arrays: Sequence[SentArray] | None, note: str) -> bytes:
    """The bytes of a Head.

    >>> head_of(packed(("loss", 1), [SentArray("float64", (2, 3), None)], note_of(None)))
    Head(key=('loss', 1), arrays=[SentArray(dtype='float64', shape=(2, 3), ticket=None)], note=None)
    """
    given = None
    if arrays is not None:
        given = [(name, shape, ticket and _told(ticket)) for name, shape, ticket in arrays]
    return f"[{json.dumps(key)},{json.dumps(given, default=int)},{note}]".encode()


def head_of(data: bytes | bytearray) -> Head:
    """The Head of `packed` bytes. Raises ValueError for what is none."""
    try:
        key, given, (name, note) = json.loads(data)
        arrays = None if given is None else [_array(*each) for each in given]
        return Head(tuple(key), arrays, _NOTES[name](_deep(note)))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
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


def _array(dtype: str, shape: Any, ticket: Any) -> SentArray:
    return SentArray(dtype, tuple(map(int, shape)), ticket and _ticket(*ticket))


def _told(ticket: Ticket) -> list[Any]:
    """What of a ticket who reads memory needs."""
    where = ticket.address, ticket.pid, str(ticket.name), ticket.pointer, ticket.shape
    return [*where, ticket.token_at, ticket.token.hex()]


def _ticket(
    address: str, pid: int, name: str, pointer: int, shape: Any, token_at: int, token: str
) -> Ticket:
    flat = tuple(shape), (1,), "uint8"
    return Ticket(address, "", pid, name, pointer, None, *flat, token_at, bytes.fromhex(token))
