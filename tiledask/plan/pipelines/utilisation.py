"""How many micro-batches reach a utilisation, compared as fractions: 0.9 is 27 of 30, not nearly.

With equal stages and no transfers u = m / (m + p - 1), and for 4 devices and 0.9 the least m is 27.
Any other schedule, times and transfers are simulated in whole units, so that no sum is rounded.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.bound import lower_bound
from tiledask.plan.pipelines.costs import costs_of
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate

__all__ = ["FewestMicrobatches", "fewest_microbatches"]

Exact = Fraction | Sequence[Fraction]
MOST, TRIED = 1_000_000, 100_000
"""Actions of one schedule; and of all that are simulated one after the other, some seconds."""


class FewestMicrobatches(NamedTuple):
    """The share of device-time in which the devices compute."""

    microbatches: int
    utilisation: Fraction


def fewest_microbatches(
    make: Callable[[int], Schedule], wanted: Fraction, times: Mapping[str, Exact]
) -> list[FewestMicrobatches]:
    """What a number of micro-batches reaches that falls short, and what one more does, which
    reaches ``wanted``; the first is left out if that is one. Where none is found, only what the
    last reaches that was tried.

    make        the schedule of a number of micro-batches
    times       seconds by `simulate`'s names, exactly

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> times = {"forward": Fraction(1), "backward": Fraction(2)}
    >>> found = fewest_microbatches(lambda m: schedule("1f1b", 4, m), Fraction("0.9"), times)
    >>> [(m, str(u)) for m, u in found]
    [(26, '26/29'), (27, '9/10')]
    """
    every = [x for each in times.values() for x in (each if isinstance(each, Sequence) else [each])]
    unit = 2 * lcm(*(x.denominator for x in every))  # halves of a backward are whole, too
    units = {
        name: [float(x * unit) for x in each] if isinstance(each, Sequence) else float(each * unit)
        for name, each in times.items()
    }

    def at_most(m: int) -> Fraction:
        """No order of the same actions is busier."""
        made = make(m)
        costs = costs_of(made, **units)
        bound = Fraction(lower_bound(made, costs).seconds)
        busy = Fraction(float(costs.of_actions(made).sum()))
        return busy / (made.devices * bound) if bound else Fraction(1)

    def reached(m: int) -> FewestMicrobatches:
        t = simulate(make(m), **units)
        if not 0 < t.makespan < 2**53:
            raise ConfigError(
                f"a step takes {t.makespan:g} of the smallest unit in which all times are whole, "
                f"and what is added without rounding is above 0 and below 2^53; give times above "
                f"0, of fewer digits"
            )
        return FewestMicrobatches(m, Fraction(t.busy) / (t.devices * Fraction(t.makespan)))

    # what the bound allows grows with m: no fewer than the first that it allows will do
    below, m, size = 0, 1, len(make(1))
    while at_most(m) < wanted:
        below, m = m, 2 * m
        if m * size > MOST:
            return [reached(below)]
    m = bisect_left(range(m), wanted, below + 1, key=at_most)
    tried, left = [reached(k) for k in (m - 1, m) if k], TRIED
    while tried[-1].utilisation < wanted and left > 0:
        m, left = m + 1, left - m * size
        tried = [tried[-1], reached(m)]
    return tried if tried[-1].utilisation >= wanted else tried[-1:]
