"""A sheet of numbers: seconds, shares and counts, in order; who is off is told where, and why.

A share may be rounded: within 0.2 % it is exact, within 2 % it is solved with two stars.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder.arithmetic import listed
from tiledask.lab.judging import Target
from tiledask.lab.judging.reading import SECONDS, SHARE, Unit, labelled, parts, read_number
from tiledask.lab.judging.result import WRONG

__all__ = ["Asked", "NumberSheet", "near_or_far"]

_EXACT, _ROUNDED = 2e-3, 2e-2
"""Relative."""


@dataclass(frozen=True)
class Asked:
    """One number that is asked for."""

    what: str
    """ "worker 2's idle time"."""
    right: float
    """As the simulator says."""
    unit: Unit = SECONDS
    worker: int | None = None
    """Whose, counted from 0; None: nobody's alone."""
    mistakes: tuple[tuple[float, str], ...] = ()
    """(what comes of a mistake, in words which)."""

    def off(self, given: float) -> float:
        """How far off, as a share of what is right; 0 where it is as good as exact."""
        error = abs(given - self.right) / (abs(self.right) or 1.0)
        return error if error > (_EXACT if self.unit is SHARE else 1e-6) else 0.0

    def wrong(self, given: float) -> bool:
        return self.off(given) > (_ROUNDED if self.unit is SHARE else 0.0)

    def remark(self, given: float) -> str:
        """What is wrong with ``given``, and never what is right."""
        for value, words in self.mistakes:
            if math.isclose(given, value, rel_tol=_EXACT):
                return f"{self.what} is not {self.shown(given)}: {words}"
        side = "low" if given < self.right else "high"
        return f"{self.what} is not {self.shown(given)}: too {side}{near_or_far(given, self.right)}"

    def shown(self, given: float) -> str:
        if self.unit is SHARE:
            return f"{100 * given:.4g} %"
        return f"{given:g}{' s' if self.unit is SECONDS else ''}"


def near_or_far(given: float, right: float) -> str:
    """ ", near" within a tenth, ", far" from twice or half on, else nothing."""
    if abs(given - right) <= 0.1 * abs(right):
        return ", near"
    return ", far" if given >= 2 * right or 2 * given <= right else ""


@dataclass(frozen=True)
class NumberSheet:
    """The numbers that are asked for, in order."""

    asked: tuple[Asked, ...]
    drawn = "sheet"

    def read(self, answer: Any) -> list[float]:
        """The numbers given, seconds and shares of 1."""
        words, asked = parts(answer), self.asked
        workers = [f"{a.worker + 1}" for a in asked if a.worker is not None]
        if len(workers) == len(asked):
            words = labelled(words, workers, "worker")
        if len(words) != len(asked):
            several = len(asked) > 1
            example = ", ".join(a.unit.example.partition(" or ")[0].split(",")[0] for a in asked)
            raise ConfigError(
                f"{len(asked)} number{'s are' if several else ' is'} asked for"
                f"{', between commas' if several else ''}, as in '{example}', and a decimal has a "
                f"point; got {len(words)}"
            )
        return [read_number(w, a.unit, a.what) for w, a in zip(words, asked, strict=True)]

    def rows(self, given: Sequence[float] | None) -> list[tuple[str, str, bool]]:
        """(what is asked, what was given, whether that is off)."""
        if given is None:
            return [(a.what, "?", False) for a in self.asked]
        return [
            (
                a.what,
                a.remark(g).removeprefix(f"{a.what} is ") if a.wrong(g) else a.shown(g),
                a.wrong(g),
            )
            for a, g in zip(self.asked, given, strict=True)
        ]

    def judge(self, answer: Any) -> Sequence[Target]:
        given = self.read(answer)
        pairs = list(zip(self.asked, given, strict=True))
        wrong = [a.remark(g) for a, g in pairs if a.wrong(g)]
        remarks = wrong[:1] + [f"{len(wrong)} of {len(given)} are off"] * (len(wrong) > 1)
        judged = [Target(WRONG, 0, len(wrong), 0, remarks=tuple(remarks))]
        rounded = [(a, a.off(g)) for a, g in pairs if a.off(g)]
        if rounded and not wrong:  # right, so what is exact may be said
            exact = (
                f"{Fraction(a.right).limit_denominator(1000)} or {a.shown(a.right)}"
                for a, _ in rounded
            )
            words = f"Right, rounded: the third star takes {listed(exact)}"
            off = max(share for _, share in rounded)
            judged.append(Target("rounded off by a share of", _ROUNDED, off, 0, almost=words))
        return judged
