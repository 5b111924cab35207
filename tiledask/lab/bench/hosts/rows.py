"""What was measured of one way, beside another that took turns with it: a row.

round 1   way 0, way 1, way 2      a pair: seconds of two ways in one round
round 2   way 1, way 2, way 0      ratio:  the median of the pairs, and the worst
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

__all__ = ["Told", "Way", "in_turns", "row", "timed"]


class Told(NamedTuple):
    """What a run of a way brings beside its seconds."""

    predicted: int = 0
    """Bytes between workers."""
    counted: int = 0
    """Bytes between workers, as they counted them."""
    transport: str = ""
    how: str = ""
    """Which algorithm, or how it was cut."""


Way = Callable[[], tuple[float, Told]]
"""Seconds, by its own clock, and what else there is to tell."""


def in_turns(ways: Mapping[str, Way], rounds: int) -> dict[str, tuple[list[float], Told]]:
    """By way, the seconds of every round, and what its last run told; one round before warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    told: dict[str, Told] = {}
    names = list(ways)
    for turn in range(-1, rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            took, told[name] = ways[name]()
            if turn >= 0:
                seconds[name].append(took)
    return {name: (seconds[name], told[name]) for name in names}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, what ``work()`` returned)."""
    begun = perf_counter()
    made = work()
    return perf_counter() - begun, made


def row(
    part: str,
    work: str,
    way: str,
    found: tuple[Sequence[float], Told],
    against: tuple[str, Sequence[float]] | None = None,
    flop: float = 0.0,
) -> dict[str, Any]:
    """A way's row; its ratio is its speed over that of ``against``, which took turns with it.

    >>> row("hosts", "8^3", "two", ([2.0, 1.0], Told(8, 8)), ("one", [1.0, 1.0]))["ratio"]
    0.75
    """
    seconds, told = found
    pairs = (
        [theirs / mine for mine, theirs in zip(seconds, against[1], strict=True)] if against else []
    )
    return {
        "part": part,
        "work": work,
        "way": way,
        "seconds": median(seconds),
        "GFLOP/s": flop / median(seconds) / 1e9,
        "against": against[0] if against else "",
        "ratio": median(pairs) if pairs else None,
        "worst": min(pairs) if pairs else None,
        "bytes predicted": told.predicted,
        "bytes measured": told.counted,
        "transport": told.transport,
        "how": told.how,
        "rounds": len(seconds),
        "all seconds": [round(s, 4) for s in seconds],
    }
