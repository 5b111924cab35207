"""Levels 8 and 9: the number of micro-batches that is just enough, and the one that is best."""

import math
from fractions import Fraction
from functools import cache, partial
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, num
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.one_number import BestNumber, FewestNumber
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["best_with_overhead", "fewest_for_a_share"]

_TARGETS = (10, 12, 15, 20, 25, 30, 35, 40)


@cache
def _run(p: int, m: int) -> Timeline:
    return simulate(schedule("1f1b", p, m), 1.0, 2.0)


def fewest_for_a_share(head: dict, rng: Random) -> IdleLevel:
    """m for a target idle share."""
    p, target = rng.randint(3, 9), rng.choice(_TARGETS)
    share = Fraction(target, 100)

    rounds = (p - 1) / share
    m = math.ceil(rounds) - (p - 1)
    best = _run(p, m)
    fewer = Fraction(p - 1, m + p - 2)
    return IdleLevel(
        **head,
        question=(
            f"{p} equal stages, one on each worker, run 1F1B; a backward takes twice as long as a "
            f"forward, transfers nothing. At most {target} % of all worker-time may be idle. How "
            f"many micro-batches does that need? Give the fewest."
        ),
        form="a whole number, for example '150'",
        hints=(
            "Each worker waits for p - 1 micro-batches' time, however many there are.",
            "So m rounds of work stand beside p - 1 rounds of waiting: the idle share is "
            "(p - 1) / (m + p - 1).",
            f"{p - 1} / (m + {p - 1}) must be at most {share}. Then m + {p - 1} is at least "
            f"{p - 1} divided by {share}; a fraction is rounded up.",
        ),
        sheet=FewestNumber(partial(_run, p), float(share)),
        runs=(Run(f"1F1B, {p} workers", best),),
        lines=(
            f"Each worker waits {p} - 1 = {p - 1} rounds of F + B",
            (
                f"{p - 1} / (m + {p - 1}) is at most {share}, so m + {p - 1} is at least "
                f"{p - 1} / ({share}) = {num(float(rounds))}"
            ),
            (
                f"m is at least {num(float(rounds))} - {p - 1} = {num(float(rounds) - p + 1)}, "
                f"and whole: {m}"
            ),
            (
                f"With {m}: {format_percent((p - 1) / (m + p - 1))} idle; with {m - 1}: "
                f"{format_percent(float(fewer))}"
            ),
            f"Answer: {m}",
        ),
    )


def best_with_overhead(head: dict, rng: Random) -> IdleLevel:
    """The best m where every action costs something, however small it is."""
    options = (1, 2, 4, 8, 16, 32)
    while True:
        p, F, o = rng.randint(3, 6), rng.choice((8, 16, 24, 32)), rng.choice((0.25, 0.5, 1, 2))
        T = 3 * F
        times = {m: (m + p - 1) * (T / m + 2 * o) for m in options}
        m = min(times, key=times.__getitem__)
        second = sorted(times.values())[1]
        if m not in (options[0], options[-1]) and second > 1.01 * times[m]:
            break

    @cache
    def run(m: int) -> Timeline:
        return simulate(schedule("1f1b", p, m), F / m + o, 2 * F / m + o)

    best = run(m)
    step = num(T / m + 2 * o)
    return IdleLevel(
        **head,
        question=(
            f"{p} equal stages run 1F1B. The whole batch takes a stage {F} s forward and {2 * F} s "
            f"back; cut into m micro-batches, each takes 1/m of that, and every action costs "
            f"{o:g} s more, however small it is. Transfers take nothing. Which m of "
            f"{listed(options)} ends the batch first, and after how many seconds?"
        ),
        form="the micro-batches and the seconds, for example '4, 91.7 s'",
        hints=(
            "More micro-batches shorten the wait, and pay the cost of an action more often: the "
            "best is somewhere between.",
            "m + p - 1 rounds, and a round is a forward and a backward: both cost extra.",
            f"(m + {p - 1}) ({T}/m + 2 x {o:g}) seconds: for m = 1 that is {p} x "
            f"{num(T + 2 * o)} = {num(times[1])}. Work out the others; the best has about as much "
            f"waiting as extra cost.",
        ),
        sheet=BestNumber(
            run,
            options,
            lambda k: (
                ((k + p - 1) * T / k, "that is without the cost of an action"),
                ((k + p - 1) * (T / k + o), "a round has two actions, and each costs extra"),
                (k * (T / k + 2 * o), "that is the work of one worker, without any waiting"),
            ),
        ),
        runs=(Run(f"1F1B, {p} workers", best),),
        lines=(
            *(
                (
                    f"m = {k}: ({k} + {p - 1}) x ({T}/{k} + 2 x {o:g}) = {k + p - 1} x "
                    f"{num(T / k + 2 * o)} = {num(times[k])} s"
                )
                for k in options
            ),
            (
                f"The least is {num(times[m])} s, at m = {m}; there a worker waits {p - 1} x "
                f"{step} = {num((p - 1) * (T / m + 2 * o))} s"
            ),
            f"Answer: {m}, {num(times[m])} s",
        ),
    )
