"""How messages go from rank to rank, and what is said when they do not come.

    rank 0  put --- deliver ---> parcels of rank 1 --- get      messages between two ranks of a
            counted                         counted             port are taken in their order

What came lies in the parcels until it is taken. Whoever waits says for what, and is woken once,
when all of it is there: to wake a thread up takes longer than all else about a small message.

A message may carry the sender's `CollectiveCall`. The receiver compares it with its own, so two
ranks that call different things find out at the first message. A message of a program, which was
checked before, carries none. A rank that returns says so to all others, a rank that fails sends its
error to all, and what does not come by the deadline is named with the rank that did not send it.
"""

import math
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing, mismatch
from tiledask.errors import CollectiveError, DeadlineError

__all__ = ["SOON", "Message", "Port", "PortCounts", "Steps", "Transport", "driven"]

SOON = 0.05
"""Seconds within which most messages come: nothing is looked up or told before."""
LOOK = 1.0
"""Seconds of waiting after which a rank looks whether the others are there, and as often again."""


class Message(NamedTuple):
    """A message of a collective."""

    call: Any
    """What came with it: the sender's CollectiveCall, if ranks are to agree on the way."""
    parts: Sequence[np.ndarray]
    """The receiver's own, unless they are lent."""
    nbytes: int
    """That came, as the transport counted them."""
    there: float = 0.0
    """When it came, by the run's clock."""


Moved = tuple[int, int, int, float]
"""Bytes sent and received, messages sent, and when that began, by the run's clock: by a collective,
or by its port before it."""
Round = tuple[Sequence[tuple[int, Sequence[Any]]], Sequence[int], bool]
"""(number, arrays) to send each; numbers to get from; whether what is sent is lent, that is never
changed."""
Steps = Generator[Round, Sequence[Sequence[Any]], Any]
"""A collective of one rank: yields its rounds, is sent the arrays that come, returns its result."""


def driven(steps: Steps, swap: Callable[..., Sequence[Sequence[Any]]], came: Any = None) -> Any:
    """The result of ``steps``, whose rounds ``swap`` carries out."""
    try:
        while True:
            came = swap(*steps.send(came))
    except StopIteration as done:
        return done.value


class PortCounts(NamedTuple):
    """What went through a Port, by number in ``members``."""

    members: tuple[int, ...]
    stream: str
    posted: list[int]
    """Messages that left."""
    taken: list[int]
    """Messages that were taken."""
    came: list[int]
    """Bytes that came."""


class Port:
    """One rank's end of a way among ``members``: it puts messages to them and gets theirs.

    Messages from one member come in their order. Counts what goes through. One thread uses it.
    """

    def __init__(self, transport: "Transport", members: tuple[int, ...], stream: str) -> None:
        self.members, self.rank = members, transport.rank
        self.transport, self._parcels = transport, transport.parcels
        self._name = f"{stream} {members}"  # a string keeps its hash
        self.sent = 0
        """Bytes that left."""
        self.counts = PortCounts(members, stream, *([0] * len(members) for _ in range(3)))
        self.now: CollectiveCall | None = None
        """The collective under way here."""
        self.last: CollectiveCall | None = None
        """The one before it."""
        self.since = 0.0
        """When the one under way began; else when the last one ended."""
        self.waits: Sequence[tuple[Any, ...]] = ()
        """Keys of the messages that it waits for."""

    # -- messages -----------------------------------------------------------------------------

    def put(
        self,
        to: int,
        parts: Sequence[np.ndarray],
        note: Any = None,
        lend: bool = False,
    ) -> None:
        """Send ``parts`` to number ``to``; ``lend``: nobody will ever change them."""
        self.transport.check()
        posted = self.counts.posted
        key = self._name, self.rank, posted[to]
        self.sent += self.transport.deliver(self.members[to], key, note, parts, lend)
        posted[to] += 1

    def get(self, sources: Sequence[int]) -> list[Message]:
        """The next message of each of ``sources`` (different numbers), when all are there.

        Raises CollectiveError if one has returned; DeadlineError when the run's time is over; and
        what ended the run.
        """
        keys = self.keys(sources)
        if not self._parcels.keys() >= set(keys):
            self.transport.await_all(self, keys)
        return self.pop(sources, keys)

    def keys(self, sources: Sequence[int]) -> list[tuple[Any, ...]]:
        """Under which the next messages of ``sources`` will be in the parcels."""
        taken = self.counts.taken
        return [(self._name, self.members[source], taken[source]) for source in sources]

    def pop(self, sources: Sequence[int], keys: Sequence[tuple[Any, ...]]) -> list[Message]:
        """The next messages of ``sources``, which are there."""
        counts = self.counts
        found: list[Message] = [self._parcels.pop(key) for key in keys]
        for source, message in zip(sources, found, strict=True):
            counts.taken[source] += 1
            counts.came[source] += message.nbytes
            self.agree(message.call)
        return found

    def swap(
        self,
        sends: Sequence[tuple[int, Sequence[Any]]],
        sources: Sequence[int],
        lend: bool = False,
        note: Any = None,
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        for to, parts in sends:
            self.put(to, parts, note, lend)
        return [message.parts for message in self.get(sources)] if sources else []

    def agree(self, theirs: Any) -> None:
        """Raise CollectiveError if another rank's call is not the one under way here."""
        mine = self.now
        if mine is not None and isinstance(theirs, CollectiveCall) and not mine.agrees(theirs):
            raise mismatch(mine, theirs)

    # -- collectives --------------------------------------------------------------------------

    def enter(self, what: CollectiveCall) -> Moved:
        """A collective begins; what was moved before."""
        self.now, self.since = what, self.transport.now()
        return self.sent, sum(self.counts.came), sum(self.counts.posted), self.since

    def leave(self, before: Moved) -> Moved:
        """It is done: what it moved."""
        self.transport.settle()
        self.now, self.last, self.since = None, self.now, self.transport.now()
        sent, came, messages, begin = before
        came, messages = sum(self.counts.came) - came, sum(self.counts.posted) - messages
        return self.sent - sent, came, messages, begin

    def doing(self) -> Doing:
        """What this rank does here."""
        missing = (key[1] for key in self.waits if key not in self._parcels)
        return Doing(self.now, next(missing, None), self.last, self.since)


class Transport(ABC):
    """A rank's way to the others of its run; counts what goes through."""

    def __init__(self, rank: int, ranks: int, deadline: float = math.inf) -> None:
        self.rank, self.ranks, self.deadline = rank, ranks, deadline
        self.parcels: dict[Hashable, Any] = {}
        """What came and was not taken yet, by its key."""
        self.returned: dict[int, Doing] = {}
        """What ranks did that have returned: no message of theirs comes after that."""
        self.over: BaseException | None = None
        """Why nothing is to be done here any more."""
        self.waiters: list[tuple[set[tuple[Any, ...]], Any]] = []
        """Of who waits here: the keys without which there is no need to wake up; and what is
        released to wake it, a lock that is taken. Not a SimpleQueue: asked to wait for less time
        than its thread is kept from running, its get waits for ever in Python 3.11."""
        self.ports: dict[tuple[tuple[int, ...], str], Port] = {}
        """By members and stream."""
        self.heard = False
        """Whether it was another rank that ended the run."""
        self._begun = self.now()

    # -- what each transport does in its own way ---------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the same clock on all ranks."""

    @abstractmethod
    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        """Bring ``parts`` to rank ``to``, which has them `arrive`; bytes that left.

        The caller changes the arrays only after `settle`, and if it lends them never.
        """

    def others(self, missing: int) -> str:
        """What rank ``missing``, and those for which that waits, do, as far as it is seen here."""
        return ""

    def look(self, rank: int) -> None:
        """End the run if it is seen from here that rank ``rank`` is gone."""
        return

    def settle(self) -> None:
        """Return when the arrays that were delivered, and not lent, may be changed."""
        return

    def arrived(self) -> None:
        """Return when all that was delivered has arrived, where it may overtake each other."""
        return

    # -- what came ----------------------------------------------------------------------------

    def arrive(
        self, key: Any, note: Any, parts: Sequence[np.ndarray], nbytes: int, there: float = 0.0
    ) -> None:
        """Put what was delivered into the parcels; ``there``: when it came."""
        if key[0] == "over":
            self.end(pickle.loads(note))
        elif key[0] == "end":
            self.returned[key[1]] = note
            self.ring(True)
        else:
            self.parcels[key] = Message(note, parts, nbytes, there)
            self.ring()

    def end(self, error: BaseException) -> None:
        """End the run here, because of ``error``; the first one stays."""
        self.over = self.over or error
        self.ring(True)

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

    def wait(self, keys: Sequence[tuple[Any, ...]], deadline: float, bell: Any = None) -> bool:
        """Whether the messages of ``keys``, (what, rank, ...), came before ``deadline``, of
        time.monotonic; it is over sooner where a rank has returned without sending its own.

        ``bell``: of the thread that waits, if it has one. Raises if the run is over.
        """
        if bell is None:
            bell = threading.Lock()
            bell.acquire()
        missing = set(keys)
        waiter = missing, bell
        self.waiters.append(waiter)
        try:
            while True:
                there = self.parcels.keys() >= missing
                self.check()
                left = deadline - time.monotonic()
                if there or left <= 0 or (self.returned and self.left_out(keys)):
                    return there
                bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            self.waiters.remove(waiter)

    def left_out(self, keys: Sequence[tuple[Any, ...]]) -> list[int]:
        """Ranks that have returned without sending theirs of ``keys``."""
        return [key[1] for key in keys if key not in self.parcels and key[1] in self.returned]

    # -- messages -----------------------------------------------------------------------------

    def port(self, members: tuple[int, ...], stream: str = "") -> Port:
        """This rank's end of the way among ``members``; every stream has its own."""
        key = members, stream
        if key not in self.ports:
            self.ports[key] = Port(self, members, stream)
        return self.ports[key]

    def carry(self, port: Port, steps: Steps, note: Any = None, nbytes: int = 0) -> Any:
        """The result of ``steps`` through ``port``; ``note`` goes with each message.

        ``nbytes``: about how much a message has.
        """
        return driven(steps, partial(port.swap, note=note))

    def await_all(self, port: Port, keys: Sequence[tuple[Any, ...]]) -> None:
        """Return when the messages of ``keys``, for ``port``, are there; raises as `Port.get`."""
        port.waits, pause = keys, SOON
        while not self.wait(keys, min(self.deadline, time.monotonic() + pause)):
            pause = LOOK
            for key in keys:
                if key in self.parcels:  # what disagrees need not wait for what does not come
                    port.agree(self.parcels[key].call)
                else:
                    self.look(key[1])
            for rank in self.left_out(keys):
                raise CollectiveError(
                    f"rank {self.rank} waits for rank {rank} in {port.now}, but "
                    f"{self.returned[rank].words(rank, self.now())}. All ranks of a group make the "
                    f"same calls: let rank {rank} make this one too, or none"
                )
            missing = port.doing().waits_for
            if missing is not None and time.monotonic() >= self.deadline:
                raise DeadlineError(
                    f"rank {self.rank} waited for rank {missing} until the run's deadline, in "
                    f"{port.now}{self.others(missing)}. Let rank {missing} make its call, or give "
                    f"the run longer with timeout="
                )
        port.waits = ()

    # -- the end ------------------------------------------------------------------------------

    def doing(self) -> Doing:
        """What this rank does; of several streams one that waits, if any does."""
        if self.rank in self.returned:
            return self.returned[self.rank]
        at = [port for port in list(self.ports.values()) if port.since]
        if not at:
            return Doing(since=self._begun)
        return max(
            at, key=lambda port: (bool(port.waits), port.now is not None, port.since)
        ).doing()

    def finish(self) -> None:
        """Tell all others that this rank's program has returned."""
        self.settle()
        self.arrived()
        self.returned[self.rank] = done = self.doing()._replace(end="returned")
        for other in range(self.ranks):
            if other != self.rank:
                self.deliver(other, ("end", self.rank), done, [])
        self.arrived()

    def fail(self, error: BaseException) -> None:
        """Tell all others that the run is over, and why."""
        self.end(error)
        try:
            sent = pickle.dumps(error)
            pickle.loads(sent)
        except Exception:  # it goes as its words
            plain = RuntimeError(f"{type(error).__name__}: {error}")
            for note in getattr(error, "__notes__", ()):
                plain.add_note(note)
            sent = pickle.dumps(plain)
        for other in range(self.ranks):
            if other != self.rank:
                with suppress(Exception):  # of a rank that is gone: the others shall hear
                    self.deliver(other, ("over", self.rank), sent, [])
