"""Memory that is lent to a kernel: between zones of 0xFF, where a store outside of it is seen.

Without them a kernel that is wrong, and many are on purpose, would store into whatever Python keeps
beside its arrays, and another test would die of it. What is read there is a NaN in every type.
"""

from math import prod
from types import SimpleNamespace
from unittest.mock import patch
from weakref import WeakValueDictionary

import numpy as np

from tiledask.tile.cuda import operands

ZONE = 64 * 1024
"""Bytes on either side of an array, further than any fault here has led."""
BOUNDARY = 256
"""Bytes: a GPU's memory starts on multiples of it."""

_rooms = WeakValueDictionary()  # by its address: all bytes of a zone, an array and a zone


def lent_empty(shape, dtype):
    """An array of ``shape`` in a room of its own; all its bytes are 0xFF."""
    size = prod(shape) * np.dtype(dtype).itemsize
    room = np.full(ZONE + BOUNDARY + size + ZONE, 0xFF, np.uint8)
    _rooms[room.ctypes.data] = room
    return room[_inside(room)].view(dtype).reshape(shape)


def lent(x):
    """``x`` copied into a room of its own, row by row."""
    copied = lent_empty(x.shape, x.dtype)
    copied[...] = x
    return copied


def is_lent(x):
    """Whether ``x`` is an array in a room, or a part of one."""
    while x.base is not None:
        x = x.base
    return x.ctypes.data in _rooms


def lent_copies():
    """While entered: what `launch` copies of its operands goes to rooms too."""
    own = SimpleNamespace(
        array=lambda x, order: lent(x),
        empty=lent_empty,
        zeros=lambda shape, dtype: lent(np.zeros(shape, dtype)),
    )
    return patch.object(operands, "array_namespace", lambda x: own)


def strays():
    """What was stored outside of the arrays since the last look, in words; empty if nothing was."""
    found = []
    for room in list(_rooms.values()):
        inside = _inside(room)
        for zone, where in ((room[: inside.start], "before"), (room[inside.stop :], "after")):
            if zone.min() < 0xFF:
                at = np.flatnonzero(zone < 0xFF)
                away = inside.start - at[-1] if where == "before" else at[0] + 1
                found.append(f"{away} bytes {where} an array of {inside.stop - inside.start}")
                zone[...] = 0xFF
    return f"a store outside of what was lent: {', '.join(found)}" if found else ""


def _inside(room):
    start = ZONE + -(room.ctypes.data + ZONE) % BOUNDARY
    return slice(start, start + room.size - 2 * ZONE - BOUNDARY)
