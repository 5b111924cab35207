"""A rank function on threads of this process: no Dask, no cluster."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

import numpy as np

from tiledask.distributed.ranks.rank_function import RankResult, Ranks, arguments, collected, ran
from tiledask.distributed.transport.transport import Transport
from tiledask.errors import ConfigError, DeadlineError
from tiledask.plan.whole import is_whole

__all__ = ["Threads", "run_threads"]

GRACE = 1.0
"""Seconds that a thread gets to notice that the run is over."""


class Threads(Transport):
    """A transport between threads: messages are put into the others' parcels, as copies."""

    def __init__(self, rank: int, ranks: int, everybody: list["Threads"], deadline: float) -> None:
        self._everybody = everybody
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
        nbytes = sum([part.nbytes for part in parts])
        self._everybody[to].arrive(key, note, parts, nbytes)  # notes are frozen values
        return nbytes


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
