"""A rank function on threads of this process: no Dask, no cluster, one mailbox per rank."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tiledask.distributed.ranks.mismatch import Doing
from tiledask.distributed.ranks.rank_function import RankResult, Ranks, arguments, collected, ran
from tiledask.distributed.transport.mailbox import Mailbox
from tiledask.distributed.transport.transport import Message, Transport, take_in
from tiledask.errors import ConfigError, DeadlineError

__all__ = ["Threads", "run_threads"]

GRACE = 1.0
"""Seconds that a thread gets to notice that the run is over."""
LONG = 1 << 16
"""Bytes of a message after which its sender is busy for so long that the receiver is woken at once:
it computes while the sender does, outside of Python's lock."""


class Threads(Transport):
    """A transport between threads: messages are put into the others' mailboxes, as copies."""

    def __init__(self, rank: int, boxes: Sequence[Mailbox], deadline: float) -> None:
        self._boxes = boxes
        self._unrung: list[Mailbox] = []
        """Those in which messages lie of which nobody was told."""
        super().__init__(rank, len(boxes), boxes[rank], deadline)

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
        box = self._boxes[to]
        if len(key) == 2:  # the end of a rank, or of the run
            take_in(box, key, note, parts, nbytes)
            return 0
        box.parcels[key] = Message(note, parts, nbytes)  # notes are frozen values
        if nbytes >= LONG:
            box.ring()
        elif box not in self._unrung:
            self._unrung.append(box)
        return nbytes

    def settle(self) -> None:
        while self._unrung:
            self._unrung.pop().ring()

    def wait(self, *what: Any) -> bool:
        self.settle()  # not before: they would only wait until this thread lets them run
        return self.box.wait(*what)

    def ask(self, rank: int) -> Doing | None:
        doing: Doing = self._boxes[rank].doing()
        return doing


def run_threads(
    program: Callable[..., Any],
    shape: int | tuple[int, ...],
    *args: Any,
    per_rank: Sequence[Any] | None = None,
    timeout: float = 60.0,
) -> Ranks:
    """``program(rank, *args)`` on a thread for every rank of a mesh of ``shape``: a `Ranks`.

    As `tiledask.run_ranks`, with its arguments and errors, but in this process: for small
    programs and tests. All threads share the arrays in ``args``.

    >>> run_threads(lambda rank, x: rank.group().all_reduce(x * rank.index).tolist(), 3,
    ...             np.array([1, 10])).results
    [[3, 30], [3, 30], [3, 30]]
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not shape or any(n < 1 for n in shape):
        raise ConfigError(f"a mesh shape is whole numbers of 1 or more, got {shape}")
    given = arguments(shape, args, per_rank)
    boxes = [Mailbox("threads", r) for r in range(len(given))]
    deadline = time.monotonic() + timeout
    transports = [Threads(r, boxes, deadline) for r in range(len(given))]
    parts: dict[int, RankResult] = {}
    errors: dict[int, BaseException] = {}
    ended: SimpleQueue[int] = SimpleQueue()

    def work(r: int) -> None:
        try:
            parts[r] = ran(program, shape, transports[r], "numpy", given[r])
        except BaseException as error:
            errors[r] = error
        ended.put(r)

    threads = [
        threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True)
        for r in range(len(given))
    ]
    for thread in threads:
        thread.start()
    end = deadline + GRACE
    for _ in threads:
        if not errors:
            with suppress(Empty):
                ended.get(timeout=max(0.0, end - time.monotonic()))
    if errors:
        end = min(end, time.monotonic() + GRACE)
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if failed := sorted(errors):
        raise errors[next((r for r in failed if not transports[r].heard), failed[0])]
    if late := [r for r in range(len(given)) if r not in parts]:
        words = "; ".join(boxes[r].doing().words(r, time.time()) for r in late)
        over = DeadlineError(
            f"ranks {late} have not returned after {timeout:g} s: {words}. Give the run longer "
            f"with timeout="
        )
        for box in boxes:
            box.tell(over=over)
        raise over
    return collected([parts[r] for r in range(len(given))])
