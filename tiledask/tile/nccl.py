"""NCCL through CuPy: sums of arrays from GPU to GPU, and when what was begun is done.

    stream of the program   [kernel writes x]--event--.
    stream of NCCL                                    '-->[all_reduce x]---event--> done?

NCCL works on a stream of its own, behind all that the program had enqueued on its current one when
it called. Nobody may write what is sent, or touch what is received, before `Pending.done`.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import CollectiveError, ConfigError
from tiledask.tile.backend import Array, namespace, nccl_bindings

__all__ = ["REDUCES", "Communicator", "Pending", "Place", "check_dtype", "contiguous", "device"]
__all__ += ["empty", "now", "on_gpu", "place", "stay_near", "unique_id", "why_not"]

_BITS = {"float": (16, 32, 64), "bfloat": (16,), "int": (8, 32, 64), "uint": (8, 32, 64)}
REDUCES = tuple(f"{kind}{bits}" for kind, widths in _BITS.items() for bits in widths)
"""Element types that NCCL can add."""


class Place(NamedTuple):
    """Where a rank computes."""

    machine: str
    device: str  # The GPU's PCI bus id
    reason: str  # Why NCCL cannot be used there, in a sentence; empty if it can


def place() -> Place:
    """The place of this process and its current GPU."""
    machine = socket.gethostname()
    try:
        nccl_bindings()
        return Place(machine, device().pci_bus_id, "")
    except Exception as error:  # KernelError, or whatever a broken driver raises
        return Place(machine, "", " ".join(str(error).split()))


def why_not(places: Sequence[Place]) -> str:
    """Why arrays of ranks at ``places`` cannot go by NCCL, in a sentence; empty if they can.

    >>> why_not([Place("a", "0000:01:00.0", ""), Place("a", "0000:01:00.0", "")])
    'NCCL needs a GPU for each rank, and ranks 0 and 1 share GPU 0000:01:00.0 of a'
    """
    for r, each in enumerate(places):
        if each.reason:
            return f"rank {r}: {each.reason}"
        first = [p[:2] for p in places].index(each[:2])
        if first < r:
            return (
                f"NCCL needs a GPU for each rank, and ranks {first} and {r} share GPU "
                f"{each.device} of {each.machine}"
            )
    return "" if len(places) > 1 else f"NCCL needs 2 ranks or more, and there are {len(places)}"


def stay_near(places: Sequence[Place]) -> None:
    """Let NCCL's ranks meet on the loopback if all are on one machine; call it before any other.

    NCCL takes a network card for that otherwise. What NCCL_SOCKET_IFNAME says already goes first.
    """
    if len({each.machine for each in places}) == 1:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


# -- arrays --------------------------------------------------------------------------------------


def on_gpu(x: Array) -> bool:
    """Whether ``x`` is an array of a GPU."""
    return type(x).__module__.partition(".")[0] == "cupy"


def contiguous(x: Array) -> Array:
    """``x`` itself if its elements lie one behind the other, else a copy that does."""
    return x if x.flags.c_contiguous else x.copy()


def empty(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array on the current GPU, for what will be received."""
    return namespace("cupy").empty(shape, dtype)


def device() -> Any:
    """This thread's current GPU; ``use()`` makes it another thread's."""
    return namespace("cupy").cuda.Device()


def now() -> Any:
    """An event behind all that this thread has enqueued on its stream so far."""
    cuda = namespace("cupy").cuda
    event = cuda.Event(disable_timing=True)
    event.record(cuda.get_current_stream())
    return event


def check_dtype(dtype: np.dtype) -> None:
    """Raise ConfigError if NCCL cannot add elements of ``dtype``."""
    if dtype.name not in REDUCES:
        raise ConfigError(
            f"NCCL's own sums are of {', '.join(REDUCES)}, got {dtype.name}; algorithm='ring', "
            f"'tree' and 'direct' take any type"
        )


# -- communicators -------------------------------------------------------------------------------


def unique_id() -> bytes:
    """What all ranks of a new communicator must know, 128 bytes; one of them makes it."""
    with _translated("make the id of a communicator"):
        found: bytes = nccl_bindings().get_unique_id()
    return found


class Pending:
    """A sum that NCCL has begun, and its arrays, kept until it is done."""

    def __init__(self, communicator: Any, stream: Any, arrays: Sequence[Array]) -> None:
        self._communicator, self._arrays = communicator, arrays
        self._event = namespace("cupy").cuda.Event(disable_timing=True)
        self._event.record(stream)

    @property
    def done(self) -> bool:
        """Whether the GPU is done with it. Raises CollectiveError if NCCL has failed."""
        with _translated("carry arrays"):
            self._communicator.check_async_error()
        done: bool = self._event.done
        return done


class Communicator:
    """One rank's end of a communicator of ``size`` ranks, on the thread's current GPU.

    NCCL's calls may block until the other ranks make theirs, so they belong on a thread that can
    be left behind. ``after``: of `now`, from the thread whose arrays they are.
    """

    def __init__(self, size: int, unique: bytes, rank: int) -> None:
        self._nccl = nccl_bindings()
        self._stream = namespace("cupy").cuda.Stream(non_blocking=True)
        with _translated(f"set up a communicator of {size} ranks"):
            self._comm = self._nccl.NcclCommunicator(size, unique, rank)

    def all_reduce(self, after: Any, x: Array, out: Array, op: str = "sum") -> Pending:
        """Begin NCCL's own sum, or ``op``, of ``x`` into ``out``: both contiguous, of `REDUCES`."""
        kind, how = (getattr(self._nccl, f"NCCL_{name.upper()}") for name in (x.dtype.name, op))
        with _translated("call its all_reduce"):
            self._stream.wait_event(after)
            self._comm.allReduce(x.data.ptr, out.data.ptr, x.size, kind, how, self._stream.ptr)
        return Pending(self._comm, self._stream, [x, out])

    def abort(self) -> None:
        """Give everything back, and end whatever is under way; waits for no other rank."""
        self._comm.abort()


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except nccl_bindings().NcclError as error:
        raise CollectiveError(
            f"NCCL could not {what}: {error}. NCCL_DEBUG=WARN in the environment makes it say "
            f"more; transport='sockets' or 'posts' carries arrays through host memory"
        ) from None
