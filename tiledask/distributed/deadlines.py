"""How long a public call may wait: one end for all that it does.

    td.matmul(a, b, timeout=5)       @bounded: the end is in 5 s
      room_of(...)        60 s       waits 5 s at most
      cluster.wait(...)   300 s      4.8 s, or if that is over GRACE: to put things in order

Calls within a call can only shorten it. Threads that are started within have no end of their own.
"""

import _thread
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from inspect import signature
from math import inf
from typing import Any, ParamSpec, TypeVar

from tiledask.errors import ConfigError

__all__ = ["DEADLINE", "GRACE", "HEAR", "bounded", "end_of", "keep_interrupts"]
__all__ += ["seconds_of", "until"]

P = ParamSpec("P")
T = TypeVar("T")

DEADLINE = 300.0
"""Seconds that one call may wait for the cluster unless told otherwise."""
GRACE = 0.25
"""Seconds after a call's timeout in which what it waits for may say itself what was missing; and
that a wait may take in any case: a call that is late still lets go of what it holds."""
HEAR = 0.1
"""Seconds after which a wait looks whether what it waits for is lost."""


_end: ContextVar[float] = ContextVar("end", default=inf)
"""When the public call ends, by time.monotonic."""


def seconds_of(timeout: float | None) -> float:
    """Seconds to wait: ``timeout``, or DEADLINE for None."""
    if timeout is None:
        return DEADLINE
    number = isinstance(timeout, int | float) and timeout is not True
    if not number or not 0 < timeout < float("inf"):
        raise ConfigError(
            f"a timeout is a number of seconds above 0, got {timeout!r}; None takes {DEADLINE:g}"
        )
    return float(timeout)


@contextmanager
def until(seconds: float, grace: float = 0.0) -> Iterator[None]:
    """Inside the block no wait goes on for longer than ``seconds``, and ``grace``, from now.

    >>> with until(5):
    ...     with until(60):
    ...         end_of(300) - time.monotonic() <= 5
    True
    """
    token = _end.set(min(_end.get(), time.monotonic() + seconds + grace))
    try:
        yield
    finally:
        _end.reset(token)


def end_of(seconds: float) -> float:
    """When a wait of ``seconds`` that begins now ends here, by time.monotonic."""
    now = time.monotonic()
    return min(now + seconds, max(now + GRACE, _end.get()))


def bounded(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, a public one with ``timeout``, ending when that is over, whatever it waits for
    within. Without a timeout each of its waits has its own. Interrupted, it keeps no block: a
    notebook holds on to the traceback, and that to whatever its frames have."""
    asked = signature(function)

    @wraps(function)
    def ends(*args: P.args, **options: P.kwargs) -> T:
        given = asked.bind_partial(*args, **options)
        given.apply_defaults()
        timeout = given.arguments["timeout"]
        try:
            with until(seconds_of(timeout), GRACE) if timeout is not None else nullcontext():
                return function(*args, **options)
        except KeyboardInterrupt as error:
            del given, args, options
            traceback.clear_frames(error.__traceback__)
            raise

    return ends


@cache
def keep_interrupts() -> None:
    """From now on an interrupt that falls into a destructor comes again, until it ends a call.

    Python prints what a destructor raises and goes on. Dask's futures have one that waits for the
    lock of the interpreter, so on a busy client Ctrl-C often falls into it.
    """
    before = sys.unraisablehook

    def again(found: Any) -> None:
        if found.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(found)

    sys.unraisablehook = again
