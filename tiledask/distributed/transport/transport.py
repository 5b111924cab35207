"""How messages go from rank to rank, and what is said when they do not come.

    rank 0  put --- deliver ---> parcels of rank 1 --- get      messages between two ranks of a
            counted                         counted             port are taken in their order

What came lies in the parcels until it is taken. A rank has one thread. It says for what it waits,
and is woken once, when all of it is there: to wake a thread up takes longer than all else about a
small message.

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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing, mismatch
from tiledask.errors import CollectiveError, DeadlineError

__all__ = ["LOOK", "Message", "Port", "Transport"]

SOON = 0.05
"""Seconds within which most messages come: nothing is looked up before."""
LOOK = 1.0
"""Seconds of waiting after which a rank looks what there is, and as often again."""


class Message(NamedTuple):
    """A message of a collective."""

    call: Any
    """What came with it: the sender's CollectiveCall, if ranks are to agree."""
    parts: Sequence[np.ndarray]
    """The receiver's own, unless they are lent."""
    nbytes: int
    """That came, as the transport counted them."""
    there: float = 0.0
    """When it came, by the run's clock."""


class Port:
    """One rank's end of a channel among ``members``: it puts messages to them and gets theirs.

    Messages from one member come in their order. Counts what goes through.
    """

    def __init__(self, transport: "Transport", members: tuple[int, ...], stream: str) -> None:
        self.members, self.transport = members, transport
        self._name = f"{stream} {members}"  # a string keeps its hash
        self.sent = 0
        """Bytes that left."""
        self.posted, self.taken, self.came = ([0] * len(members) for _ in range(3))
        """By number in ``members``: messages that left, those that were taken, bytes that came."""

    def put(
        self, to: int, parts: Sequence[np.ndarray], note: Any = None, lend: bool = False
    ) -> None:
        """Send ``parts`` to number ``to``; ``lend``: nobody will ever change them."""
        here = self.transport
        here.check()
        key = self._name, here.rank, self.posted[to]
        self.sent += here.deliver(self.members[to], key, note, parts, lend)
        self.posted[to] += 1

    def get(self, sources: Sequence[int]) -> list[Message]:
        """The next message of each of ``sources`` (different numbers), when all are there.

        Raises CollectiveError if one has returned, or is in another call; DeadlineError when the
        run's time is over; and what ended the run.
        """
        here = self.transport
        keys = [(self._name, self.members[source], self.taken[source]) for source in sources]
        if not here.parcels.keys() >= set(keys):
            here.await_all(keys)
        found: list[Message] = [here.parcels.pop(key) for key in keys]
        for source, message in zip(sources, found, strict=True):
            self.taken[source] += 1
            self.came[source] += message.nbytes
            here.agree(message.call)
        return found

    def moved(self) -> tuple[int, int, int]:
        """Bytes sent and received, and messages sent, until now."""
        return self.sent, sum(self.came), sum(self.posted)


class Transport(ABC):
    """A rank's way to the others of its run."""

    def __init__(self, rank: int, ranks: int, deadline: float = math.inf) -> None:
        self.rank, self.ranks, self.deadline = rank, ranks, deadline
        self.parcels: dict[Any, Message] = {}
        """What came and was not taken yet, by its key: (channel, source, number)."""
        self.returned: dict[int, Doing] = {}
        """What ranks did that have returned: no message of theirs comes after that."""
        self.over: BaseException | None = None
        """Why nothing is to be done here any more."""
        self.heard = False
        """Whether it was another rank that ended the run."""
        self.ports: dict[tuple[tuple[int, ...], str], Port] = {}
        """By members and stream."""
        self.call: CollectiveCall | None = None
        """The collective under way."""
        self.last: CollectiveCall | None = None
        """The one before it."""
        self.since = self.now()
        """When the one under way began; else when the last one ended."""
        self._waits: Sequence[tuple[Any, ...]] = ()
        """Keys of the messages that it waits for."""
        self._wanted: set[tuple[Any, ...]] | None = None
        """The keys without which there is no need to wake up."""
        # not a SimpleQueue: asked to wait for less time than its thread is kept from running, its
        # get waits for ever in Python 3.11
        self._bell = threading.Lock()
        self._bell.acquire()

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

        Unless it lends them, the caller may change the arrays as soon as this returns.
        """

    def arrived(self) -> None:
        """Return when all that was delivered has arrived, where it may overtake each other."""
        return

    def ring(self) -> None:
        """Wake the thread that waits here."""
        with suppress(RuntimeError):  # it was woken already
            self._bell.release()

    def sleep(self, seconds: float) -> None:
        """Return after so long, or when woken."""
        self._bell.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

    # -- what came ----------------------------------------------------------------------------

    def arrive(
        self, key: Any, note: Any, parts: Sequence[np.ndarray], nbytes: int, there: float = 0.0
    ) -> None:
        """Put what was delivered into the parcels; ``there``: when it came."""
        if key[0] == "over":
            self.end(pickle.loads(note))
        elif key[0] == "end":
            self.returned[key[1]] = note
            self.ring()
        else:
            self.parcels[key] = Message(note, parts, nbytes, there)
            # who waits shows that first and looks for its parcels then, so one sees the other
            if (wanted := self._wanted) is not None and self.parcels.keys() >= wanted:
                self.ring()

    def end(self, error: BaseException) -> None:
        """End the run here, because of ``error``; the first one stays."""
        self.over = self.over or error
        self.ring()

    def check(self) -> None:
        """Raise why this run is over, if it is."""
        if self.over is not None:
            raise self.over

    def agree(self, theirs: Any) -> None:
        """Raise CollectiveError if another rank's call is not the one under way here."""
        mine = self.call
        if mine is not None and isinstance(theirs, CollectiveCall) and not mine.agrees(theirs):
            raise mismatch(mine, theirs)

    def wait(self, keys: Sequence[tuple[Any, ...]], deadline: float) -> bool:
        """Whether the messages of ``keys``, (what, rank, ...), came before ``deadline``, of
        time.monotonic; it is over sooner where a rank has returned without sending its own.

        Raises if the run is over.
        """
        wanted = self._wanted = set(keys)
        while not (there := self.parcels.keys() >= wanted):
            self.check()
            left = deadline - time.monotonic()
            if left <= 0 or (self.returned and self._left_out(keys)):
                break
            self.sleep(left)
        self._wanted = None
        return there

    def await_all(self, keys: Sequence[tuple[Any, ...]]) -> None:
        """Return when the messages of ``keys`` are there; raises as `Port.get`."""
        self._waits, pause = keys, SOON
        while not self.wait(keys, min(self.deadline, time.monotonic() + pause)):
            pause = LOOK
            for key in keys:
                if key in self.parcels:  # what disagrees need not wait for what does not come
                    self.agree(self.parcels[key].call)
            for rank in self._left_out(keys):
                raise CollectiveError(
                    f"rank {self.rank} waits for rank {rank} in {self.call}, but "
                    f"{self.returned[rank].words(rank, self.now())}. All ranks of a group make the "
                    f"same calls: let rank {rank} make this one too, or none"
                )
            missing = self.doing().waits_for
            if missing is not None and time.monotonic() >= self.deadline:
                raise DeadlineError(
                    f"rank {self.rank} waited for rank {missing} until the run's deadline, in "
                    f"{self.call}. Let rank {missing} make its call, or give "
                    f"the run longer with timeout="
                )
        self._waits = ()

    def _left_out(self, keys: Sequence[tuple[Any, ...]]) -> list[int]:
        """Ranks that have returned without sending theirs of ``keys``."""
        return [key[1] for key in keys if key not in self.parcels and key[1] in self.returned]

    # -- collectives --------------------------------------------------------------------------

    def port(self, members: tuple[int, ...], stream: str = "") -> Port:
        """This rank's end of the channel among ``members``; every stream has its own."""
        key = members, stream
        if key not in self.ports:
            self.ports[key] = Port(self, members, stream)
        return self.ports[key]

    def enter(self, call: CollectiveCall) -> None:
        """A collective begins."""
        self.call, self.since = call, self.now()

    def leave(self) -> None:
        """It is done."""
        self.call, self.last, self.since = None, self.call, self.now()

    def doing(self) -> Doing:
        """What this rank does."""
        if self.rank in self.returned:
            return self.returned[self.rank]
        missing = (key[1] for key in self._waits if key not in self.parcels)
        return Doing(self.call, next(missing, None), self.last, self.since)

    # -- the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Tell all others that this rank's program has returned."""
        self.arrived()
        self.returned[self.rank] = done = self.doing()._replace(returned=True)
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
