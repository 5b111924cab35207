"""Levels 8 and 9: the number of micro-batches that is just enough, and the one that is best."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from random import Random
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder.arithmetic import listed, num, percent
from tiledask.lab.idle_ladder.level import IdleLevel, Line, Run, gaps_of
from tiledask.lab.idle_ladder.numbers import near_or_far
from tiledask.lab.judging import Target
from tiledask.lab.judging.reading import COUNT, SECONDS, parts, read_number
from tiledask.lab.judging.result import WRONG
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["BestNumber", "FewestNumber", "best_with_overhead", "fewest_for_a_share"]

_MOST = 200
"""Micro-batches that are tried at most."""
_TARGETS = (10, 12, 15, 20, 25, 30, 35, 40)
_NEARLY = 1.05


@dataclass(frozen=True)
class FewestNumber:
    """The fewest micro-batches with which the idle share is at most ``wanted``."""

    run: Callable[[int], Timeline]
    wanted: float
    drawn = "fewest"

    def read(self, answer: Any) -> int:
        given = parts(answer)
        if len(given) != 1:
            raise ConfigError(f"one whole number is asked for, as in 150; got {len(given)}")
        m = read_number(given[0], COUNT, "the number of micro-batches")
        if not 1 <= m <= _MOST:
            raise ConfigError(f"there are 1 to {_MOST} micro-batches here; got {m:g}")
        return int(m)

    def least(self) -> int:
        """By trying, one after the other."""
        enough = (m for m in range(1, _MOST) if self.run(m).bubble_fraction <= self.wanted + 1e-9)
        return next(enough)

    def judge(self, answer: Any) -> Sequence[Target]:
        m, least = self.read(answer), self.least()
        share = self.run(m).bubble_fraction
        return [
            Target("idle share", self.wanted, share, None, remarks=(self.remark(m, share),)),
            Target("micro-batches", least, m, least, least=True),
        ]

    def remark(self, m: int, share: float) -> str:
        side = near_or_far(share, self.wanted)
        return f"{m} leave {percent(share)} idle, more than {percent(self.wanted)}{side}"


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
    gaps = tuple(gap for w in range(p) for gap in gaps_of(best, w))
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
            Line(f"Each worker waits {p} - 1 = {p - 1} rounds of F + B", gaps),
            Line(
                f"{p - 1} / (m + {p - 1}) is at most {share}, so m + {p - 1} is at least "
                f"{p - 1} / ({share}) = {num(float(rounds))}"
            ),
            Line(
                f"m is at least {num(float(rounds))} - {p - 1} = {num(float(rounds) - p + 1)}, "
                f"and whole: {m}"
            ),
            Line(
                f"With {m}: {percent((p - 1) / (m + p - 1))} idle; with {m - 1}: "
                f"{percent(float(fewer))}"
            ),
            Line(f"Answer: {m}"),
        ),
    )


@dataclass(frozen=True)
class BestNumber:
    """The number of micro-batches that ends first, and when: within 5 % is two stars."""

    run: Callable[[int], Timeline]
    options: tuple[int, ...]
    drawn = "best"

    def read(self, answer: Any) -> tuple[int, float]:
        given = parts(answer)
        if len(given) != 2:
            raise ConfigError(
                f"the micro-batches and the seconds are asked for, as in '4, 91.7 s'; got "
                f"{len(given)}"
            )
        m = read_number(given[0], COUNT, "the number of micro-batches")
        if m not in self.options:
            raise ConfigError(f"the batch is cut into {listed(self.options)} parts; got {m:g}")
        return int(m), read_number(given[1], SECONDS, "the time for the batch")

    def best(self) -> int:
        """By trying all."""
        return min(self.options, key=lambda m: self.run(m).makespan)

    def judge(self, answer: Any) -> Sequence[Target]:
        m, seconds = self.read(answer)
        own, best = self.run(m).makespan, self.run(self.best()).makespan
        off = not math.isclose(seconds, own, rel_tol=1e-3)
        side = f"too {'low' if seconds < own else 'high'}{near_or_far(seconds, own)}"
        remark = f"with {m} micro-batches the time is not {seconds:g} s: {side}"
        way = "not the best number; others end the batch more than 5 % sooner"
        return [
            Target(WRONG, 0, int(off), 0, remarks=(remark,)),
            Target(
                "seconds for the batch",
                _NEARLY * best,
                own,
                best,
                least=True,
                remarks=(f"{m} is {way}",),
            ),
        ]


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
    gaps = tuple(gap for w in range(p) for gap in gaps_of(best, w))
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
        sheet=BestNumber(run, options),
        runs=(Run(f"1F1B, {p} workers", best),),
        lines=(
            *(
                Line(
                    f"m = {k}: ({k} + {p - 1}) x ({T}/{k} + 2 x {o:g}) = {k + p - 1} x "
                    f"{num(T / k + 2 * o)} = {num(times[k])} s"
                )
                for k in options
            ),
            Line(
                f"The least is {num(times[m])} s, at m = {m}; there a worker waits {p - 1} x "
                f"{step} = {num((p - 1) * (T / m + 2 * o))} s",
                gaps,
            ),
            Line(f"Answer: {m}, {num(times[m])} s"),
        ),
    )
