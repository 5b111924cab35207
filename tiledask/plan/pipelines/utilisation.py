"""How many micro-batches reach a utilisation, compared as fractions: 0.9 is 27 of 30, not nearly.

With equal stages and no transfers u = m / (m + p - 1), and for 4 devices and 0.9 the least m is 27.
Any other schedule, times and transfers are simulated in whole units, so that no sum is rounded.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.bound import lower_bound
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import durations, simulate, together
from tiledask.plan.pipelines.transfers.links import Links
from tiledask.plan.pipelines.transfers.rendezvous import work_of

__all__ = ["FewestMicrobatches", "fewest_microbatches"]

Exact = Fraction | Sequence[Fraction]
MOST, TRIED = 4_000_000, 50_000
"""Actions of one schedule; and of all that are simulated one after the other, some seconds."""


class FewestMicrobatches(NamedTuple):
    """The share of device-time in which the devices compute."""

    microbatches: int
    utilisation: Fraction


def fewest_microbatches(
    make: Callable[[int], Schedule], wanted: Fraction, times: Mapping[str, Exact], transfers: str
) -> list[FewestMicrobatches]:
    """What a number of micro-batches reaches that falls short, and what one more does, which
    reaches ``wanted``; the first is left out if that is one. Where none is found, only what the
    last reaches that was tried.

    It is the first that does, unless so many come so near before it that no more are tried one by
    one.

    make        the schedule of a number of micro-batches
    times       seconds by `simulate`'s names, exactly

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> times = {"forward": Fraction(1), "backward": Fraction(2)}
    >>> found = fewest_microbatches(lambda m: schedule("1f1b", 4, m), Fraction("0.9"), times,
    ...                             "overlapped")
    >>> [(m, str(u)) for m, u in found]
    [(26, '26/29'), (27, '9/10')]
    """
    units, size = _whole_units(times), len(make(1))

    def reached(m: int) -> FewestMicrobatches:
        return FewestMicrobatches(m, _utilisation(make(m), units, transfers))

    below, m = 0, 1  # what the bound allows grows with m
    while _at_most(make(m), units, transfers) < wanted:
        below, m = m, 2 * m
        if m * size > MOST:
            return [reached(below)]
    m = _first(below, m, lambda k: _at_most(make(k), units, transfers) >= wanted)
    tried = [reached(k) for k in (m - 1, m) if k]
    left = TRIED
    while tried[-1].utilisation < wanted and left > 0:
        m, left = m + 1, left - m * size
        tried = [tried[-1], reached(m)]
    while tried[-1].utilisation < wanted and 2 * m * size <= TRIED:
        below, m = m, 2 * m
        tried = [reached(m)]
        if tried[-1].utilisation >= wanted:
            m = _first(below, m, lambda k: reached(k).utilisation >= wanted)
            tried = [reached(m - 1), reached(m)]
    return tried if tried[-1].utilisation >= wanted else tried[-1:]


def _first(below: int, above: int, holds: Callable[[int], bool]) -> int:
    """The first number above ``below`` that holds; ``above`` does."""
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above


def _utilisation(made: Schedule, units: Mapping[str, Any], transfers: str) -> Fraction:
    t = simulate(made, **units, transfers=transfers)
    if not 0 < t.makespan < 2**53:
        raise ConfigError(
            f"a step takes {t.makespan:g} of the smallest unit in which all times are whole, and "
            f"what is added without rounding is above 0 and below 2^53; give times above 0, of "
            f"fewer digits"
        )
    return Fraction(t.busy) / (t.devices * Fraction(t.makespan))


def _at_most(made: Schedule, units: Mapping[str, Any], transfers: str) -> Fraction:
    """No order of the same actions is busier."""
    seconds = durations(made, units["forward"], units["backward"], None, None)
    both = together(made, seconds, units.get("overlapped"))
    links = Links.of(made, units.get("latency", 0.0), transfers=transfers)
    bound = Fraction(lower_bound(made, seconds, links, both).seconds)
    busy = Fraction(float(work_of(made, seconds, both).sum()))
    return busy / (made.devices * bound) if bound else Fraction(1)


def _whole_units(times: Mapping[str, Exact]) -> dict[str, Any]:
    """The same in a unit of which all are whole, and halves of a backward too."""
    every = [x for each in times.values() for x in (each if isinstance(each, Sequence) else [each])]
    unit = 2 * lcm(*(x.denominator for x in every))
    return {
        name: [float(x * unit) for x in each] if isinstance(each, Sequence) else float(each * unit)
        for name, each in times.items()
    }
