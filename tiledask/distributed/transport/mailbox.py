"""What was sent to one device of a run: it lies here until it is taken, or the run is over.

    put --> parcels --> wake, if nothing more is missing --> take

Whoever waits says for what, and is woken once, when all of it is there: to wake a thread up takes
longer than anything else about a small message.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["CancelledError", "Mailbox", "answered", "call_worker"]

T = TypeVar("T")


class CancelledError(RuntimeError):
    """The run or the exchange was ended while a device still worked for it."""


async def answered(call: Awaitable[T]) -> T:
    """What another worker answers; OSError if this one is being closed, as if the other one were:
    Dask's pool of connections then raises a RuntimeError."""
    try:
        return await call
    except RuntimeError as error:
        if "ConnectionPool is closed" not in str(error):
            raise
        raise OSError("this worker is being closed") from None


def call_worker(worker: Any, address: str, operation: str, seconds: float, **given: Any) -> Any:
    """What the worker at ``address`` answers to one of its handlers, asked from a task of
    ``worker``; raises TimeoutError after ``seconds``, and OSError if one of both is gone."""

    async def ask() -> Any:
        call = getattr(worker.rpc(address), operation)(**given)
        return await asyncio.wait_for(answered(call), seconds)

    return asyncio.run_coroutine_threadsafe(ask(), worker.loop.asyncio_loop).result(2 * seconds)


@dataclass(eq=False)
class Mailbox:
    """What comes to one device in one run; others put things in, the device takes them out."""

    run: str
    device: int
    addresses: tuple[str, ...] = ()
    """Addresses of the workers of all ranks, where these are workers."""
    local: Any = field(default=None, kw_only=True)
    """What this device has here besides: a socket, or what its tasks share."""
    over: BaseException | None = field(default=None, kw_only=True)
    """Why nothing is to be done here any more."""
    parcels: dict[Hashable, Any] = field(default_factory=dict, kw_only=True)
    """What was put in, by its key."""
    doing: Callable[[], Any] = field(default=lambda: None, kw_only=True)
    """Says what the device does, to others that wonder."""
    at_end: list[Callable[[], None]] = field(default_factory=list, kw_only=True)
    """What is to be called when the run is closed here."""
    waiters: list[tuple[set[Hashable], Any]] = field(default_factory=list, init=False, repr=False)
    """Of who waits here: the keys without which there is no need to wake up; and what is released
    to wake it, a lock that is taken. Not a SimpleQueue: asked to wait for less time than its thread
    is kept from running, its get waits for ever in Python 3.11."""
    tasks: dict[Any, set[Any]] = field(default_factory=dict, init=False, repr=False)
    """What waits here for messages, and is carried on by the thread that brings the last one."""

    def end(self, error: BaseException) -> None:
        """End the run here, because of ``error``; the first one stays."""
        self.over = self.over or error
        self.ring(True)

    def put(self, key: Hashable, parcel: Any) -> None:
        """Put ``parcel`` in, and wake who misses nothing else."""
        self.parcels[key] = parcel
        self.ring()

    def ring(self, all_of_them: bool = False) -> None:
        """Wake who misses nothing more, or ``all_of_them``; called after parcels were put in."""
        # who waits shows that first and looks for its parcels then, so one of both sees the other
        for keys, bell in list(self.waiters):
            if all_of_them or self.parcels.keys() >= keys:
                with suppress(RuntimeError):  # it was rung already
                    bell.release()

    def check(self) -> None:
        """Raise why this run is over, if it is."""
        if self.over is not None:
            raise self.over

    def wait(
        self,
        ready: Callable[[], bool] | None,
        deadline: float,
        keys: Sequence[Hashable] = (),
        bell: Any = None,
    ) -> bool:
        """Whether ``ready`` came true before ``deadline`` (time.monotonic); see `check`.

        ``keys``: of parcels without all of which it is not ready, unless all are rung for; None is
        ready when they are there. ``bell``: of the thread that waits, if it has one.
        """
        if bell is None:
            bell = threading.Lock()
            bell.acquire()
        waiter = set(keys), bell
        self.waiters.append(waiter)
        try:
            while True:
                done = self.parcels.keys() >= waiter[0] if ready is None else ready()
                self.check()
                left = deadline - time.monotonic()
                if done or left <= 0:
                    return done
                bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            self.waiters.remove(waiter)
