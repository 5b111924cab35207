"""One try of a fault: what a call did, and how long after the fault it had done it."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from tiledask import errors
from tiledask.errors import MOST_WORDS, DeadlineError

__all__ = ["DECLARED", "Tried", "tried"]

DECLARED = tuple(getattr(errors, name) for name in errors.__all__ if name.endswith("Error"))
"""What a user is told; everything else is raw."""


class Tried(NamedTuple):
    """What came of a try."""

    end: str
    """"right": as if nothing had been; "said": an error that is declared; else "wrong", "hang",
    or "raw", an error that is not."""
    seconds: float
    """From the fault, or from the call's beginning, to its end."""
    words: str = ""
    """Of the error, or of what was found wrong."""


def tried(call: Callable[[], Any], right: Any, late: float, *, said: bool = False) -> Tried:
    """What ``call`` did: returned what is ``right``, or raised.

    After ``late`` seconds it hung; so does one that waits for its own timeout, unless that is
    what is asked for: ``said``.
    """
    begun = perf_counter()
    try:
        found = call()
    except DeadlineError as error:
        ended = Tried("said" if said else "hang", perf_counter() - begun, str(error))
    except DECLARED as error:
        ended = Tried("said", perf_counter() - begun, str(error))
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        hung = isinstance(error, TimeoutError)
        ended = Tried("hang" if hung else "raw", perf_counter() - begun, words)
    else:
        ended = Tried("right" if found == right else "wrong", perf_counter() - begun)
    if len(ended.words) > MOST_WORDS + 20:
        ended = ended._replace(end="raw")
    return ended._replace(end="hang") if ended.seconds > late else ended
