"""The cable between two hosts alone: how long a byte takes, and how many go through in a second.

python -m tiledask.lab.bench.hosts.link HOST     answers on a free port, which it prints
"""

import socket
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

__all__ = ["Cable", "answer", "measure_link"]

TRIPS = 2000
"""Bytes that go there and back, one after the other."""
LARGE, TIMES = 2**26, 8
"""Bytes of a large message, and how many come."""
_ROOM = 4 * 2**20
_PATIENCE = 30.0


class Cable(NamedTuple):
    """What a cable can."""

    latency: float
    """Seconds of a byte there and back, over two: the median."""
    bandwidth: float
    """Bytes per second of large messages: the median."""


def _set(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for room in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, room, _ROOM)
    end.settimeout(_PATIENCE)


def measure_link(host: str, port: int) -> Cable:
    """What the link to who `answer`s there can."""
    trips, large, room = [], [], memoryview(bytearray(LARGE))
    with socket.create_connection((host, port), _PATIENCE) as end:
        _set(end)
        for _ in range(TRIPS):
            begun = perf_counter()
            end.sendall(b"b")
            end.recv(1)
            trips.append(perf_counter() - begun)
        for _ in range(TIMES + 1):  # the first touches the memory
            begun, at = perf_counter(), 0
            end.sendall(b"m")
            while at < LARGE:
                at += end.recv_into(room[at:])
            large.append(perf_counter() - begun)
    return Cable(median(trips) / 2, LARGE / median(large[1:]))


def answer(host: str, say: Callable[[str], None]) -> None:
    """Answer one who measures: "m" with a large message, a byte with one; ``say`` hears where."""
    message = bytes(LARGE)
    with socket.create_server((host, 0)) as door:
        door.settimeout(_PATIENCE)
        say(f"listens at: {door.getsockname()[1]}")
        end, _ = door.accept()
    with end:
        _set(end)
        while asked := end.recv(1):
            end.sendall(message if asked == b"m" else b"b")


if __name__ == "__main__":
    answer(sys.argv[1], partial(print, flush=True))
