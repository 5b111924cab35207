"""A rank function on threads of this process: no Dask, no cluster."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from typing import Any

import numpy as np

from tiledask.distributed.ranks.rank_function import RankResult, Ranks, arguments, collected, ran
from tiledask.distributed.transport.transport import SOON, Message, Port, Steps, Transport, driven
from tiledask.errors import ConfigError, DeadlineError
from tiledask.plan.whole import is_whole

__all__ = ["Threads", "run_threads"]

GRACE = 1.0
"""Seconds that a thread gets to notice that the run is over."""
LONG = 1 << 16
"""Bytes of a message from which on all ranks compute for themselves, outside of Python's lock."""


class _Task:
    """A collective of one rank, that whatever thread brings its messages carries on."""

    def __init__(self, transport: "Threads", port: Port, steps: Steps, note: Any) -> None:
        self.transport, self.port, self.steps, self.note = transport, port, steps, note
        self.bell = threading.Lock()
        self.bell.acquire()
        """Rings when it is over, if not its own thread has brought it there."""
        self.sources: Sequence[int] = ()
        self.keys: list[tuple[Any, ...]] | None = None
        """Of the messages that it waits for; None before it has begun."""
        self.result: Any = None
        self.error: BaseException | None = None

    def advance(self) -> bool:
        """Go on while all messages are there; whether it is over."""
        port, here = self.port, self.transport
        try:
            while True:
                came: Any = None
                if self.keys is not None:
                    came = [message.parts for message in port.pop(self.sources, self.keys)]
                sends, self.sources, lend = self.steps.send(came)
                for to, parts in sends:
                    port.put(to, parts, self.note, lend)
                self.keys = port.keys(self.sources)
                # it lies there before it looks, so whoever brings something meanwhile sees it
                here.tasks[self] = missing = set(self.keys)
                if not here.parcels.keys() >= missing or here.tasks.pop(self, None) is None:
                    return False
        except StopIteration as done:
            self.result = done.value
        except BaseException as error:
            self.error = error
        return True


class Threads(Transport):
    """A transport between threads: messages are put into the others' parcels, as copies.

    To wake a thread up takes longer than all else about a small message. So a thread that brings
    another rank what that waits for goes on with its collective, and only the result wakes it.
    """

    def __init__(self, rank: int, ranks: int, everybody: list["Threads"], deadline: float) -> None:
        self._everybody = everybody
        self.ready: deque[_Task] = deque()
        """What has got its last message from here."""
        self.tasks: dict[_Task, set[Any]] = {}
        """What waits here for messages, and is carried on by the thread that brings the last."""
        super().__init__(rank, ranks, deadline)

    now = staticmethod(time.time)

    def deliver(
        self,
        to: int,
        key: tuple[Any, ...],
        note: Any,
        parts: Sequence[np.ndarray],
        lend: bool = False,
    ) -> int:
        if not lend:
            parts = [np.array(part, order="C") for part in parts]
        nbytes = 0
        for part in parts:
            nbytes += part.nbytes
        there = self._everybody[to]
        if len(key) == 2:  # the end of a rank, or of the run
            there.arrive(key, note, parts, nbytes)
            return 0
        there.parcels[key] = Message(note, parts, nbytes)  # notes are frozen values
        if there.waiters:
            there.ring()
        for task, keys in list(there.tasks.items()):
            if there.parcels.keys() >= keys and there.tasks.pop(task, None) is not None:
                self.ready.append(task)  # it is this thread's now, and nobody else's
        return nbytes

    def carry(self, port: Port, steps: Steps, note: Any = None, nbytes: int = 0) -> Any:
        if nbytes >= LONG:
            return super().carry(port, steps, note)
        mine = _Task(self, port, steps, note)
        self.ready.append(mine)
        ended = self.settle()
        while mine not in ended:
            if mine.bell.acquire(timeout=SOON):
                break
            if self.tasks.pop(mine, None) is not None:
                # something is late: wait for it in the way that says so
                swap = partial(port.swap, note=note)
                return driven(steps, swap, swap((), mine.sources))
        if mine.error is not None:
            raise mine.error
        return mine.result

    def settle(self) -> list[_Task]:  # type: ignore[override]
        """Carry on all that is ready, and what becomes so; what has ended of it."""
        ended: list[_Task] = []
        work = [self.ready]
        while work:
            try:
                while ready := work[-1]:
                    task = ready.popleft()
                    if task.advance():
                        ended.append(task)
                    if (more := task.transport.ready) is not ready:
                        work.append(more)
            except IndexError:  # another stream of the rank was faster
                pass
            work.pop()
        for task in ended:
            task.bell.release()
        return ended

    def wait(self, *what: Any) -> bool:
        self.settle()  # what is ready here may be what it waits for
        return super().wait(*what)

    def others(self, missing: int, *before: int) -> str:
        doing = self._everybody[missing].doing()
        said, then = f"; {doing.words(missing, self.now())}", doing.waits_for
        if then is None or then in (self.rank, *before):
            return said
        return said + self.others(then, *before, missing)


def run_threads(
    function: Callable[..., Any],
    shape: int | tuple[int, ...],
    *args: Any,
    per_rank: Sequence[Any] | None = None,
    timeout: float = 60.0,
) -> Ranks:
    """``function(rank, *args)`` on a thread for every rank of a mesh of ``shape``: a `Ranks`.

    As `tiledask.run_ranks`, with its arguments and errors, but in this process: for small
    programs and tests. All threads share the arrays in ``args``.

    >>> run_threads(lambda rank, x: rank.group().all_reduce(x * rank.index).tolist(), 3,
    ...             np.array([1, 10])).results
    [[3, 30], [3, 30], [3, 30]]
    """
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not shape or not all(is_whole(n, 1) for n in shape):
        raise ConfigError(f"a mesh shape is whole numbers of 1 or more, got {shape}")
    given = arguments(shape, args, per_rank)
    deadline, transports = time.monotonic() + timeout, list[Threads]()
    transports += [Threads(r, len(given), transports, deadline) for r in range(len(given))]
    ended: list[Future[RankResult]] = [Future() for _ in given]

    def work(r: int) -> None:
        try:
            ended[r].set_result(ran(function, shape, transports[r], "numpy", given[r]))
        except BaseException as error:
            ended[r].set_exception(error)

    for r in range(len(given)):
        threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True).start()
    wait(ended, max(0.0, deadline + GRACE - time.monotonic()), FIRST_EXCEPTION)
    if any(each.done() and each.exception() for each in ended):
        wait(ended, GRACE)
    late = [r for r, each in enumerate(ended) if not each.done()]
    failed = [r for r, each in enumerate(ended) if r not in late and each.exception()]
    if failed:
        ended[next((r for r in failed if not transports[r].heard), failed[0])].result()
    if late:
        words = "; ".join(transports[r].doing().words(r, time.time()) for r in late)
        over = DeadlineError(
            f"ranks {late} have not returned after {timeout:g} s: {words}. Give the run longer "
            f"with timeout="
        )
        for each in transports:
            each.end(over)
        raise over
    return collected([each.result() for each in ended])
