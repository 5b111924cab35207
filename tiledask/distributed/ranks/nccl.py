"""NCCL's own all_reduce between GPUs: algorithm="nccl", where every rank has a GPU of its own.

              all meet, by messages     NCCL, until it is done
    rank 0    hear all --.              all_reduce ==.
    rank 1    say so <---'--->          all_reduce <='

NCCL chooses the way itself, so nobody here counts the bytes. A record of such a call has what
NVIDIA's nccl-tests reckon with (doc/PERFORMANCE.md): those of a ring, and it says that they are
computed. `Ranks.traffic`, who sent to whom, has only the messages by which ranks met. Sums are in
NCCL's order: to the last bit they need not be those of the other algorithms. Why it cannot hang:

- Before anything is given to NCCL all ranks of the group have met: they have made the same call.
  So NCCL never waits for a program, only for machines. Ranks that do not call, that call something
  else or in another order are found by those messages, as without GPUs.
- A rank has one operation under way, in one communicator.
- NCCL is called on a thread that can be left behind, and what the GPU does is asked for, not waited
  for, until the run's deadline. When the run is over communicators are aborted.

All else goes through host memory, also between GPUs.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np

from tiledask.distributed.ranks.exchange import Exchange
from tiledask.distributed.ranks.rounds import operation
from tiledask.distributed.transport.transport import Transport
from tiledask.errors import ConfigError, DeadlineError
from tiledask.plan.collectives.algorithms import algorithms
from tiledask.plan.collectives.cost import even
from tiledask.tile import nccl

__all__ = ["Devices", "all_reduce", "check", "meet"]

PAUSE = 20e-6, 1e-3
"""Seconds between looks at what the GPU does: at first, and at most."""
END = 5.0
"""Seconds that aborting the communicators may keep the end of a run waiting."""
_Made = TypeVar("_Made")


class Devices:
    """One rank's ways to the GPUs of the others: a communicator for each group that used one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._device = nccl.device()
        self._lane = _Lane(self._device)
        self._communicators: dict[tuple[int, ...], nccl.Communicator] = {}
        self._begun: nccl.Pending | None = None  # keeps its arrays until it is done or aborted

    def open(self, exchange: Exchange) -> None:
        """Return when all ranks of the group are in this call, and have their communicator."""
        known = exchange.members in self._communicators
        unique = meet(exchange, bytes if known else lambda: self._called(exchange, nccl.unique_id))
        if not known:
            self._communicators[exchange.members] = self._called(
                exchange, nccl.Communicator, len(exchange.members), unique, exchange.me
            )

    def all_reduce(self, exchange: Exchange, x: Any, out: Any, op: str) -> None:
        """NCCL's own sum of ``x`` into ``out``; returns when it is done."""
        if not (x.nbytes or out.nbytes):
            return
        begin = self._communicators[exchange.members].all_reduce
        self._begun = pending = self._called(exchange, begin, nccl.now(), x, out, op)
        self._until(exchange, lambda: pending.done)
        self._begun = None

    def close(self) -> None:
        """Abort all communicators; nobody needs them any more."""
        self._lane.stop()
        ending = _Lane(self._device)
        ended = [ending.begin(each.abort) for each in self._communicators.values()]
        ending.stop()
        wait(ended, END)
        self._begun = None

    # -- waiting ------------------------------------------------------------------------------

    def _called(self, exchange: Exchange, function: Callable[..., _Made], *args: Any) -> _Made:
        """What ``function`` returns on the other thread."""
        future = self._lane.begin(function, *args)
        self._until(exchange, future.done)
        return future.result()

    def _until(self, exchange: Exchange, ready: Callable[[], bool]) -> None:
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


# -- the collective --------------------------------------------------------------------------------


def check(kind: str, array: Any, devices: Any, ranks: int) -> None:
    """Raise ConfigError if NCCL does no ``kind`` of ``array`` among ``ranks``; one rank alone
    needs none."""
    others = ", ".join(algorithms)
    if kind != "all_reduce":
        raise ConfigError(f"algorithm='nccl' is for all_reduce; for {kind} there are {others}")
    if ranks == 1:
        return
    if devices is None:
        raise ConfigError(
            f"algorithm='nccl' needs a run over NCCL, and this is none: with transport='nccl' "
            f"run_ranks says why; {others} go without"
        )
    if not nccl.on_gpu(array):
        raise ConfigError(
            f"algorithm='nccl' takes arrays of GPUs, got one in host memory; rank.on_device(x) "
            f"moves it there, and {others} go without"
        )


def meet(exchange: Exchange, brings: Callable[[], bytes]) -> bytes:
    """What number 0 ``brings``, once all ranks are in this call."""
    port, others = exchange.port, range(1, len(exchange.members))
    if exchange.me:
        port.put(0, (), exchange.call)
        ((told,),) = [message.parts for message in port.get((0,))]
        return bytes(told)
    port.get(others)
    made = brings()
    for other in others:
        port.put(other, [np.frombuffer(made, np.uint8)], exchange.call)
    return made


def all_reduce(exchange: Exchange, x: Any, op: str) -> Any:
    """The sum on every rank, as `Group.all_reduce`."""
    operation(op)
    nccl.check_dtype(x.dtype)
    exchange.terms = even(x.size, len(exchange.members)), x.dtype.itemsize
    given = nccl.contiguous(x)
    out = nccl.empty(given.shape, given.dtype)
    exchange.devices.all_reduce(exchange, given, out, op)
    return out
