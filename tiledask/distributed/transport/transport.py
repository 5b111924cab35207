"""How messages go from rank to rank, and what is said when they do not come.

    rank 0  post --- deliver ---> mailbox of rank 1 --- take      messages between two ranks of a
             counted                          counted             group are taken in their order

Every message carries the sender's `CollectiveCall`. The receiver compares it with its own, so two
ranks that call different things find out at the first message. A rank that returns says so to all
others, a rank that fails sends its error to all, and ranks that wait for each other in a circle are
found by asking them what they do.
"""

import pickle
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall, Doing, mismatch
from tiledask.distributed.transport.mailbox import Mailbox
from tiledask.errors import CollectiveError, DeadlineError

__all__ = ["Message", "Transport", "doing_of", "portable", "take_in"]

LOOK = 1.0
"""Seconds of waiting after which a rank asks the others what they do, and as often again."""


class Message(NamedTuple):
    """A message of a collective."""

    call: CollectiveCall
    parts: list[np.ndarray]
    """Contiguous, and the receiver's own."""
    nbytes: int
    """That came, as the transport counted them."""


class Transport(ABC):
    """A rank's way to the others of its run; counts what goes through."""

    def __init__(self, rank: int, ranks: int, box: Mailbox, deadline: float) -> None:
        self.rank, self.ranks, self.box, self.deadline = rank, ranks, box, deadline
        self.sent = self.received = self.messages = 0
        """Bytes that left and came, messages that left."""
        self.came: Counter[int] = Counter()
        """Bytes by the rank that they came from."""
        self.posted: Counter[tuple[Any, ...]] = Counter()
        self.taken: Counter[tuple[Any, ...]] = Counter()
        """Messages and signals by (group, other rank)."""
        self.messages_from: Counter[int] = Counter()
        """Messages by the rank that they came from."""
        self.devices: Any = None
        """The way from GPU to GPU, if there is one (a Devices)."""
        self.heard = False
        """Whether it was another rank that ended the run."""
        box.doing = Doing(since=self.now())

    # -- what each transport does in its own way ---------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the same clock on all ranks."""

    @abstractmethod
    def deliver(self, to: int, key: tuple[Any, ...], note: Any, parts: Sequence[np.ndarray]) -> int:
        """Bring ``parts`` (contiguous) to rank ``to``'s mailbox, by `take_in`; bytes that left.

        The caller changes the arrays only after `settle`.
        """

    @abstractmethod
    def ask(self, rank: int) -> Doing | None:
        """What another rank does now; None if it does not answer."""

    def settle(self) -> None:
        """Return when the arrays that were delivered may be changed."""
        return

    def arrived(self) -> None:
        """Return when all that was delivered has arrived, where it may overtake each other."""
        return

    def wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Whether ``ready`` came true before ``deadline``; raises if the run is over."""
        return self.box.wait(ready, deadline)

    @property
    def flying(self) -> bool:
        """Whether messages may be under way."""
        return False

    # -- messages -----------------------------------------------------------------------------

    def post(self, to: int, call: CollectiveCall, parts: Sequence[np.ndarray]) -> None:
        """Send ``parts`` to rank ``to`` as a message of ``call``."""
        self.sent += self._deliver_next(to, call, parts)
        self.messages += 1

    def signal(self, to: int, call: CollectiveCall) -> None:
        """Tell rank ``to``, which calls `hear`, that this rank is in ``call``; counts nowhere."""
        self._deliver_next(to, call, [])

    def _deliver_next(self, to: int, call: CollectiveCall, parts: Sequence[np.ndarray]) -> int:
        self.box.check()
        pair = call.group, to
        nbytes = self.deliver(
            to, ("message", call.group, self.rank, self.posted[pair]), call, parts
        )
        self.posted[pair] += 1
        return nbytes

    def take(self, source: int, call: CollectiveCall) -> Message:
        """The next message from rank ``source`` to this group; it must be of the same call.

        Raises CollectiveError if the ranks disagree, if ``source`` has returned, or if both wait
        for each other; DeadlineError when the run's time is over; and what ended the run.
        """
        message = self.hear(source, call)
        self.received += message.nbytes
        self.came[source] += message.nbytes
        self.messages_from[source] += 1
        return message

    def hear(self, source: int, call: CollectiveCall) -> Message:
        """The next `signal` from rank ``source`` to this group; raises as `take` does."""
        pair = call.group, source
        key = ("message", call.group, source, self.taken[pair])
        if key not in self.box.parcels:
            self._wait(source, key, call)
        message: Message = self.box.parcels.pop(key)
        self.taken[pair] += 1
        if not call.agrees(message.call):
            raise mismatch(call, message.call)
        return message

    def _wait(self, source: int, key: tuple[Any, ...], call: CollectiveCall) -> None:
        box, doing = self.box, self.box.doing
        box.doing = doing._replace(waits_for=source, flying=self.flying, key=key)
        here = lambda: key in box.parcels or ("end", source) in box.parcels  # noqa: E731
        seen: list[tuple[int, Doing]] = []
        while not self.wait(here, min(self.deadline, time.monotonic() + LOOK)):
            if time.monotonic() >= self.deadline:
                raise self._late(source, call)
            box.doing = box.doing._replace(flying=self.flying)
            circle = self._circle(source)
            if circle and circle == seen:
                raise self._stuck(call, circle)
            seen = circle
        if key not in box.parcels:
            raise CollectiveError(
                f"rank {self.rank} waits for rank {source} in {call}, but "
                f"{self._words(source)}. All ranks of a group make the same calls: let rank "
                f"{source} make this one too, or none"
            )
        box.doing = doing._replace(messages=doing.messages + 1)

    # -- when nothing comes -------------------------------------------------------------------

    def _circle(self, source: int) -> list[tuple[int, Doing]]:
        """Ranks that wait for each other, from ``source`` back to this one; empty if none do."""
        found: list[tuple[int, Doing]] = []
        at = source
        while at != self.rank:
            doing = self.ask(at)
            if doing is None or doing.waits_for is None or doing.flying:
                return []
            if self.flying or len(found) == self.ranks:
                return []
            found.append((at, doing))
            at = doing.waits_for
        return found

    def _stuck(self, call: CollectiveCall, circle: list[tuple[int, Doing]]) -> CollectiveError:
        words = "; ".join(doing.words(rank, self.now()) for rank, doing in circle)
        return CollectiveError(
            f"rank {self.rank} waits for rank {circle[0][0]} in {call}; {words}: they wait "
            f"for each other, for ever. Let all ranks call their groups' collectives in one order"
        )

    def _late(self, source: int, call: CollectiveCall) -> DeadlineError:
        chain, words, doing = [source], [self._words(source)], self.ask(source)
        while doing is not None and doing.waits_for is not None:
            if doing.waits_for in (self.rank, *chain):
                break
            chain.append(doing.waits_for)
            words.append(self._words(chain[-1]))
            doing = self.ask(chain[-1])
        return DeadlineError(
            f"rank {self.rank} waited for rank {source} until the run's deadline, in {call}; "
            f"{'; '.join(words)}. Let rank {chain[-1]} make its call, or give the run longer with "
            f"timeout="
        )

    def _words(self, rank: int) -> str:
        """What another rank does, in words."""
        doing = self.box.parcels.get(("end", rank)) or self.ask(rank)
        return f"rank {rank} does not answer" if doing is None else doing.words(rank, self.now())

    # -- the end ------------------------------------------------------------------------------

    def enter(self, call: CollectiveCall) -> None:
        """A collective begins."""
        self.box.check()
        before = self.box.doing
        self.box.doing = Doing(call, None, before.messages, before.last, self.now())

    def leave(self, call: CollectiveCall) -> None:
        """A collective is done."""
        self.box.doing = Doing(None, None, self.box.doing.messages, call, self.now())

    def finish(self) -> None:
        """Tell all others that this rank's program has returned."""
        self.arrived()
        self.box.doing = self.box.doing._replace(end="returned")
        for other in self._others():
            self.deliver(other, ("end", self.rank), self.box.doing, [])
        self.arrived()

    def fail(self, error: BaseException) -> None:
        """Tell all others that the run is over, and why."""
        self.box.tell(over=error)
        for other in self._others():
            with suppress(Exception):  # of a rank that is gone: the others shall hear
                self.deliver(other, ("over", self.rank), portable(error), [])

    def _others(self) -> list[int]:
        return [r for r in range(self.ranks) if r != self.rank]


def doing_of(box: Mailbox) -> Doing | None:
    """What the rank of ``box`` does, for others. Whoever has the message that it waits for is not
    stuck: on a busy machine it may be seconds before it can look into its mailbox."""
    doing: Doing | None = box.doing
    return doing._replace(waits_for=None) if doing and doing.key in box.parcels else doing


def take_in(
    box: Mailbox, key: tuple[Any, ...], note: Any, parts: list[np.ndarray], nbytes: int
) -> None:
    """Put what was delivered into the mailbox; called where it arrives."""
    if key[0] == "message":
        box.put(key, Message(note, parts, nbytes))
    elif key[0] == "end":
        box.put(key, note)
    else:
        box.tell(over=pickle.loads(note))


def portable(error: BaseException) -> bytes:
    """``error`` for another process; one that cannot be pickled goes as its words."""
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        sent = pickle.dumps(plain)
    return sent
