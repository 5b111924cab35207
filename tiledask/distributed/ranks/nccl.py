"""Arrays from GPU to GPU by NCCL, where every rank has a GPU of its own; messages say what comes.

              all meet           round: messages, then NCCL, until it is done    next round
    rank 0    hear all --.       "[4, 3] of float32" --.    send ==.
    rank 1    signal <---'--->    make room for it  <--'    recv <='

The rounds and moves are those of messages, and bytes are counted where NCCL is given them. Why it
cannot hang:

- Before anything is given to NCCL all ranks of the group have met: they have made the same call.
  So NCCL never waits for a program, only for machines. Ranks that do not call, that call something
  else or in another order are found by their signals, as by messages without GPUs.
- All of a round is begun at once, in one NCCL group, and done before the rank goes on. So a rank
  has one operation under way, in one communicator, and all ranks go through the rounds in order.
- NCCL is called on a thread that can be left behind, and what the GPU does is asked for, not waited
  for, until the run's deadline. When the run is over communicators are aborted.

`Group.send` and `Group.recv` stay on their way through host memory. A send must not wait for its
recv (a pipeline's schedule relies on that), but to NCCL both have to be there: a send that was
begun alone would keep a kernel spinning on the GPU, which any later communicator may run into.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tiledask.distributed.transport.transport import Transport
from tiledask.errors import DeadlineError
from tiledask.tile import nccl
from tiledask.tile.backend import as_dtype, name_of

if TYPE_CHECKING:
    from tiledask.distributed.ranks.exchange import Exchange

__all__ = ["Devices"]

PAUSE = 20e-6, 1e-3
"""Seconds between looks at what the GPU does: at first, and at most."""
END = 5.0
"""Seconds that aborting the communicators may keep the end of a run waiting."""

Parts = tuple[int, Sequence[Any]]
"""(number in the group, arrays)."""
_Made = TypeVar("_Made")


class _Coming(NamedTuple):
    """What a message says instead of carrying it."""

    parts: tuple[tuple[str, tuple[int, ...]], ...]
    """(element type, shape) of each."""
    about: Any
    """What the sender's call is about."""


class Devices:
    """One rank's ways to the GPUs of the others: a communicator for each group that used one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._device = nccl.device()
        self._lane = _Lane(self._device)
        self._communicators: dict[tuple[int, ...], nccl.Communicator] = {}
        self._begun: nccl.Pending | None = None  # keeps its arrays until it is done or aborted

    def open(self, exchange: "Exchange") -> None:
        """Return when all ranks of the group are in this call, and have their communicator."""
        known = exchange.members in self._communicators
        make = None if known else lambda: self._called(exchange, nccl.unique_id)
        unique = self.meet(exchange, make)
        if not known:
            self._communicators[exchange.members] = self._called(
                exchange, nccl.Communicator, len(exchange.members), unique, exchange.me
            )

    def meet(
        self, exchange: "Exchange", brings: Callable[[], Any] | None = None, hub: int = 0
    ) -> Any:
        """What number ``hub`` ``brings``, once all ranks of the group are in this call."""
        port, call = exchange.port, exchange.call
        if exchange.me != hub:
            port.signal(hub, call)
            return port.hear(hub).call.about
        others = [number for number in range(len(exchange.members)) if number != hub]
        for other in others:
            port.hear(other)
        about = brings() if brings else None
        for other in others:
            port.signal(other, call._replace(about=about))
        return about

    def swap(
        self, exchange: "Exchange", sends: Sequence[Parts], sources: Sequence[int]
    ) -> list[Sequence[Any]]:
        """A round: ``sends`` go out; the parts that come from each of ``sources``."""
        giving = [self._announced(exchange, to, parts) for to, parts in sends]
        came = [(source, self._expected(exchange, source)) for source in sources]
        out = _each(pair for pair in giving if pair is not None)
        into = _each((source, parts) for source, (awaited, parts) in came if awaited)
        if out or into:
            self._done(exchange, nccl.Communicator.move, out, into)
        port = exchange.port
        port.sent += sum(part.nbytes for _, part in out)
        for source, part in into:
            port.received += part.nbytes
            port.counts.came[source] += part.nbytes
        return [parts for _, (_, parts) in came]

    def collective(
        self, exchange: "Exchange", x: Any, out: Any, op: str = "sum", root: int = 0
    ) -> None:
        """NCCL's own collective from ``x`` into ``out``."""
        kind = exchange.call.kind
        if x.nbytes or out.nbytes:
            self._done(exchange, nccl.Communicator.collective, kind, x, out, op, root)

    def close(self) -> None:
        """Abort all communicators; nobody needs them any more."""
        self._lane.stop()
        ending = _Lane(self._device)
        ended = [ending.begin(each.abort) for each in self._communicators.values()]
        ending.stop()
        wait(ended, END)
        self._begun = None

    # -- a round ------------------------------------------------------------------------------

    def _announced(self, exchange: "Exchange", to: int, parts: Sequence[Any]) -> Parts | None:
        """What NCCL has to send, after a message that says so; what is in host memory goes with
        the message."""
        if not all(map(nccl.on_gpu, parts)):
            exchange.port.put(to, parts, exchange.call)
            return None
        parts = [nccl.contiguous(part) for part in parts]
        kinds = tuple((name_of(part.dtype), part.shape) for part in parts)
        call = exchange.call._replace(about=_Coming(kinds, exchange.call.about))
        exchange.port.put(to, [], call)
        return to, parts

    def _expected(self, exchange: "Exchange", source: int) -> tuple[bool, Sequence[Any]]:
        """(whether NCCL has to bring it, room for what comes from ``source``, or what came)."""
        (message,) = exchange.port.get((source,))
        coming = message.call.about
        if not isinstance(coming, _Coming):
            exchange.learn(coming)
            return False, message.parts
        exchange.learn(coming.about)
        return True, [nccl.empty(shape, as_dtype(name)) for name, shape in coming.parts]

    # -- waiting ------------------------------------------------------------------------------

    def _done(self, exchange: "Exchange", begin: Callable[..., nccl.Pending], *args: Any) -> None:
        """Return when what ``begin`` begins is done."""
        communicator, after = self._communicators[exchange.members], nccl.now()
        self._begun = pending = self._called(exchange, begin, communicator, after, *args)
        self._until(exchange, lambda: pending.done)
        self._begun = None

    def _called(self, exchange: "Exchange", function: Callable[..., _Made], *args: Any) -> _Made:
        """What ``function`` returns on the other thread."""
        future = self._lane.begin(function, *args)
        self._until(exchange, future.done)
        return future.result()

    def _until(self, exchange: "Exchange", ready: Callable[[], bool]) -> None:
        transport, (pause, most) = self._transport, PAUSE
        while not transport.wait(ready, min(transport.deadline, time.monotonic() + pause)):
            if time.monotonic() >= transport.deadline:
                raise DeadlineError(
                    f"rank {transport.rank} waited for NCCL until the run's deadline, in "
                    f"{exchange.call}, which all its ranks had called. Give the run longer "
                    f"with timeout=; if that is no help, NCCL_DEBUG=INFO in the environment "
                    f"shows where it stands, and transport='sockets' or 'posts' does without it"
                )
            pause = min(2 * pause, most)


_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
"""(where its result goes, what is called, with what)."""


class _Lane:
    """A thread that makes calls one after the other; nobody has to wait for it."""

    def __init__(self, device: Any) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(device,), name="nccl", daemon=True).start()

    def begin(self, function: Callable[..., _Made], *args: Any) -> Future[_Made]:
        future: Future[_Made] = Future()
        self._calls.put((future, function, args))
        return future

    def stop(self) -> None:
        """Let it end after what was begun."""
        self._calls.put(None)

    def _run(self, device: Any) -> None:
        device.use()
        while (given := self._calls.get()) is not None:
            future, function, args = given
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)


def _each(pairs: Iterable[Parts]) -> list[tuple[int, Any]]:
    """(number, array) of all that have any bytes, which both sides know."""
    return [(number, part) for number, parts in pairs for part in parts if part.nbytes]
