"""A reader's function, called by ranks that are threads; what it raises is told in a line."""

from collections.abc import Callable
from typing import Any

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import RuleError

__all__ = ["run_on_ranks"]


def run_on_ranks(
    answer: Callable[..., Any],
    program: Callable[[Any], Any],
    *mesh: int,
    takes: str = "",
    given: str = "",
    timeout: float = 10.0,
) -> Ranks:
    """What ``program``, in which every rank of ``mesh`` calls ``answer``, comes to; RuleError for
    whatever that raises. ``takes``: its arguments, and ``given`` what they were, for the message; a
    rank that waits for longer than ``timeout`` seconds has been left alone."""
    try:
        return run_threads(program, mesh, timeout=timeout)
    except RuleError:
        raise
    except Exception as error:
        name, why = getattr(answer, "__name__", "the function"), str(error).splitlines() or [""]
        ranks = " x ".join(map(str, mesh))
        raise RuleError(
            f"{name}{takes} raised {type(error).__name__}{given} on {ranks} ranks: {why[0]}"
        ) from error
