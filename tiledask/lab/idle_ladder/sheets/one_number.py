"""Sheets for one number of micro-batches: the fewest that will do, and the best there is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder.arithmetic import listed
from tiledask.lab.idle_ladder.sheets.numbers import near_or_far
from tiledask.lab.judging import Target
from tiledask.lab.judging.reading import COUNT, SECONDS, parts, read_number
from tiledask.lab.judging.result import WRONG
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["BestNumber", "FewestNumber"]

_MOST = 200
"""Micro-batches that are tried at most."""
_NEARLY = 1.05
"""Times the best: solved, with two stars."""


@dataclass(frozen=True)
class FewestNumber:
    """The fewest micro-batches with which the idle share is at most ``wanted``."""

    run: Callable[[int], Timeline]
    wanted: float
    drawn = "sheet"

    def read(self, answer: Any) -> int:
        given = parts(answer)
        if len(given) != 1:
            raise ConfigError(f"one whole number is asked for, as in 150; got {len(given)}")
        m = read_number(given[0], COUNT, "the number of micro-batches")
        if not 1 <= m <= _MOST:
            raise ConfigError(f"there are 1 to {_MOST} micro-batches here; got {m:g}")
        return int(m)

    def rows(self, given: int | None) -> list[tuple[str, str, bool]]:
        """(what is asked, what was given, whether that is off)."""
        return [("micro-batches", "?" if given is None else f"{given}", given is not None)]

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
        left, wanted = format_percent(share), format_percent(self.wanted)
        return f"{m} leave {left} idle, more than {wanted}{side}"


@dataclass(frozen=True)
class BestNumber:
    """The number of micro-batches that ends first, and when: within 5 % is two stars."""

    run: Callable[[int], Timeline]
    options: tuple[int, ...]
    mistakes: Callable[[int], Sequence[tuple[float, str]]]
    """Of a number of micro-batches: (the seconds that come of a mistake, in words which)."""
    drawn = "sheet"

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

    def rows(self, given: tuple[int, float] | None) -> list[tuple[str, str, bool]]:
        """(what is asked, what was given, whether that is off)."""
        if given is None:
            return [("micro-batches", "?", False), ("seconds", "?", False)]
        time, number = self.judge(given)
        return [
            ("micro-batches", f"{given[0]}", not number.met),
            ("seconds", f"{given[1]:g} s", not time.met),
        ]

    def best(self) -> int:
        """By trying all."""
        return min(self.options, key=lambda m: self.run(m).makespan)

    def judge(self, answer: Any) -> Sequence[Target]:
        m, seconds = self.read(answer)
        own, best = self.run(m).makespan, self.run(self.best()).makespan
        off = not math.isclose(seconds, own, rel_tol=1e-3)
        side = f"too {'low' if seconds < own else 'high'}{near_or_far(seconds, own)}"
        known = (
            why for value, why in self.mistakes(m) if math.isclose(seconds, value, rel_tol=1e-3)
        )
        side = next(known, side)
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
                almost=f"Close: {100 * (own / best - 1):.0f} % slower than the best m",
            ),
        ]
