"""The worth of an answer: its targets, each beside the best there is, and up to three stars."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tiledask.plan.tables import Part, Printable, Table

__all__ = ["WRONG", "Result", "Target", "UnsolvedError", "number", "within"]

_NEAR = 0.1
"""Up to which share above its target an answer is near."""
_FEW = 100
"""Up to here people count, above they compare."""
WRONG = "wrong answers"
"""The measure of what is right or wrong, and nothing between."""


class UnsolvedError(ValueError):
    """A task whose targets are not all met; the message says which and by how much."""


@dataclass(frozen=True)
class Target:
    """One number to stay within, and what the answer reaches."""

    name: str
    """What is measured, with its unit."""
    wanted: float
    """At most this."""
    got: float
    best: float | None = None
    """What any legal answer that meets the other targets may reach; None if not a question, or if
    it would tell a number that is asked for."""
    least: bool = False
    """Asked for is the least there is, and the number is the answer: only who gives it reads it."""
    why: str = ""
    """What is wrong where nothing may be, in the reader's words, said in place of the number; or
    what makes a number so large, which device, stage, layer or tile, said behind it."""

    @property
    def goal(self) -> str:
        """What is asked for, in words."""
        return "the least that will do" if self.least else f"at most {number(self.wanted)}"

    @property
    def met(self) -> bool:
        return within(self.got, self.wanted)

    @property
    def hidden(self) -> bool:
        """Whether the number asked for stays unsaid."""
        return self.least and self.got != (self.wanted if self.best is None else self.best)

    @property
    def gap(self) -> float | None:
        """How far above the best, as a share of it: 0.25 is 25 % more; None without a best,
        and for a number that stays unsaid."""
        if self.hidden or self.best is None:
            return None
        if within(self.got, self.best):
            return 0.0
        return (self.got - self.best) / abs(self.best) if self.best else None

    @property
    def beside(self) -> str:
        """The best in words, for whoever has solved it; empty where it says nothing."""
        says = not self.hidden and self.best is not None and within(self.best, self.got)
        return f"{self.best:g}" if says else ""

    @property
    def offence(self) -> str:
        """What is wrong, or how far from met and why; empty once it is."""
        if self.met:
            return ""
        told = self.why if not self.wanted else ""
        return told or "; ".join(filter(None, (self._distance(), self.why)))

    def _distance(self) -> str:
        over, size = self.got - self.wanted, abs(self.wanted)
        near = "near, " if over <= _NEAR * size else ""
        if self.least:
            return f"{near or 'far, ' * (over > size)}more than is needed"
        if not size or (over == round(over) and self.got <= _FEW):
            return f"{near}{number(over)} too much"
        if over > size:
            return f"far, {self.got / self.wanted:.3g} times as much"
        return f"{near}{100 * over / size:{'.1g' if near else '.0f'}} % too much"

    def __str__(self) -> str:
        if self.why and not self.wanted and not self.met:
            return self.why
        goal = "" if self.least and not self.met else f", target {self.goal}"
        return f"{self.name} {number(self.got)}{goal}: {self.offence or 'met'}"


def number(value: float) -> str:
    """Every digit of a whole number, six of another.

    >>> number(16777216.0), number(0.2727272)
    ('16,777,216', '0.272727')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.6g}"


def within(got: float, wanted: float) -> bool:
    """Whether ``got`` is at most ``wanted``, but for the rounding of sums of seconds."""
    return got <= wanted + 1e-9 * abs(wanted)


@dataclass(frozen=True)
class Result(Printable):
    """What an answer to a task is worth; true once every target is met."""

    puzzle: str
    attempted: bool
    legal: bool
    reason: str
    """A sentence: the rule that is broken, the targets that are missed, or that it is solved."""
    targets: tuple[Target, ...] = ()
    """Empty unless the answer is legal."""
    hints: int = 0
    """How many there are that were not shown yet."""
    hint: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Gives one more of them."""

    def __bool__(self) -> bool:
        return self.legal and all(target.met for target in self.targets)

    @property
    def best(self) -> bool:
        """Whether it is solved and no legal answer does better on any target."""
        return bool(self) and all(t.best is None or within(t.got, t.best) for t in self.targets)

    @property
    def stars(self) -> int:
        """0 for an answer that breaks a rule or is wrong, 1 for a legal one, 2 if solved, 3 if
        the best."""
        wrong = any(t.name == WRONG and not t.met for t in self.targets)
        return 0 if wrong else int(self.legal) + bool(self) + self.best

    @property
    def score(self) -> str:
        """The stars in words, with the largest gap to the best; empty without targets.

        >>> Result("x", True, True, "", (Target("seconds", 18, 17, 16),)).score
        '★★☆ solved; seconds 6.2 % above the best possible'
        """
        if not self.targets:
            return ""
        best = "right" if self.targets[0].name == WRONG else "as good as can be"
        words = ("not yet", "legal", "solved", best)[self.stars]
        gaps = [(t.gap, t.name) for t in self.targets if t.gap]
        if self.stars == 2 and gaps:
            gap, name = max(gaps)
            share = f"{100 * gap:.{int(gap < _NEAR)}f}".removesuffix(".0")
            words += f"; {name} {share} % above the best possible"
        return f"{'★' * self.stars}{'☆' * (3 - self.stars)} {words}"

    def require(self) -> None:
        """UnsolvedError unless every target is met. Nothing comes back: a solution that a notebook
        runs by itself shows no stars under an answer that was not attempted."""
        if not self:
            raise UnsolvedError(f"{self.puzzle}: {self.reason}")

    def to_dict(self) -> dict[str, Any]:
        """Everything in it, as JSON can hold it."""
        targets = [
            {
                "name": t.name,
                "wanted": None if t.hidden else t.wanted,
                "got": t.got,
                "met": t.met,
                "best": t.best if self and not t.hidden else None,
                "gap": t.gap if self else None,
            }
            for t in self.targets
        ]
        said = {"puzzle": self.puzzle, "solved": bool(self), "legal": self.legal}
        said |= {"stars": self.stars, "score": self.score, "reason": self.reason}
        return {**said, "targets": targets}

    def printed(self) -> Iterator[Part]:
        """The verdict, every target, the stars; the best once all are met."""
        yield self.reason, ""
        rows = [
            (t.name, number(t.got), t.goal, *([t.beside] if self else []), t.offence or "met")
            for t in self.targets
            if t.name != WRONG
        ]
        head = ("", "yours", "target", *(["best possible"] if self else []), "")
        if rows[1:] or (rows and self):  # a single miss is all in the verdict
            yield Table(head, rows, left=(0, len(head) - 1))
        yield from filter(None, [self.score])
        if self.hints and not self:
            yield f"One more hint: hint(), or --hint; {self.hints} left."

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        left = 0 if self else self.hints
        return self.bundle(self, replace(self, hints=0)._repr_html_(), left, self.hint)

    @staticmethod
    def bundle(shown: Printable, words: str, left: int, hint: Any) -> dict[str, Any]:
        """The mime bundle of ``shown``: in JupyterLab ``words``, HTML, and a button for the next
        of its hints, if there are any ``left``."""
        plain = {"text/plain": repr(shown), "text/html": shown._repr_html_()}
        try:
            from tiledask.lab.learner.field import with_hints
        except ImportError:  # no widgets here
            return plain
        return (with_hints(words, left, hint) if left and hint else {}) | plain
