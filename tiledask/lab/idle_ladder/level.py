"""A level with the numbers of its seed: fields to fill in, who judges them, the working.

worker 1's idle time   [ 10 s ]          a number, a word, or for a timetable a word per slot
worker 2's idle time   [ not 8 s: too low, near ]
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.judging.reading import (
    SECONDS,
    SHARE,
    Unit,
    from_0,
    labelled,
    parts,
    read_number,
)
from tiledask.lab.judging.result import WRONG
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.pipelines.timeline import Timeline

__all__ = [
    "IDLE",
    "Asked",
    "IdleLevel",
    "Run",
    "first_off",
    "level_of",
    "listed",
    "num",
    "off_by",
    "plus",
    "total",
]

IDLE = "."
_SLOT = re.compile(r"(?:(\d{1,2})\s*[x*]\s*)?(F\d*|B\d*|[.\-_]|idle)[\s,|]*", re.IGNORECASE)
_EXACT, _ROUNDED = 2e-3, 2e-2
"""Relative: a share within the first is exact, within the second it is solved with two stars."""


# -- sums as people write them ---------------------------------------------------------------------


def num(value: float) -> str:
    """A number with as many digits as it needs, six at most.

    >>> num(3.0), num(0.25), num(2 / 3)
    ('3', '0.25', '0.666667')
    """
    return f"{value:.6g}"


def plus(values: Iterable[float]) -> str:
    """The sum, written out.

    >>> plus([3, 5, 2])
    '3 + 5 + 2'
    """
    return " + ".join(map(num, values))


def total(values: Sequence[float]) -> str:
    """The sum and what it makes.

    >>> total([3, 5, 2]), total([3])
    ('3 + 5 + 2 = 10', '3')
    """
    return f"{plus(values)} = {num(sum(values))}" if len(values) > 1 else plus(values) or "0"


def listed(values: Iterable[object]) -> str:
    """Values in a sentence.

    >>> listed([3, 5, 2])
    '3, 5 and 2'
    """
    words = [num(v) if isinstance(v, int | float) else str(v) for v in values]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def off_by(given: float, right: float) -> str:
    """The side, and whether it is within a tenth or twice as much; never how much.

    >>> off_by(9.5, 10), off_by(30, 10)
    ('too low, near', 'too high, far')
    """
    side = "low" if given < right else "high"
    near = ", near" if abs(given - right) <= 0.1 * abs(right) else ""
    return f"too {side}{near or ', far' * (given >= 2 * right or 2 * given <= right)}"


def first_off(given: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> tuple[int, int]:
    """(slot, row) of the first slot in which rows of words differ."""
    return min(
        (slot, row)
        for row, words in enumerate(right)
        for slot, word in enumerate(words)
        if given[row][slot] != word
    )


# -- what is filled in -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One thing that is asked for: a number, a word, or the words of a row of slots."""

    what: str
    """ "worker 2's idle time"."""
    right: Any
    """As the simulator says; of a row of slots a tuple."""
    unit: Unit | Mapping[str, str] = SECONDS
    """Of a number; or the words there are, and a pattern of what else means each."""
    wrong: Sequence[tuple[Any, str]] = ()
    """(what comes of a mistake, in words which)."""
    label: str = ""
    """What may stand before it: "2" for worker 2."""

    def read(self, given: Any) -> Any:
        """The value of what was written; ConfigError for what is none."""
        if isinstance(self.right, tuple):
            return self._slots(given)
        if isinstance(self.unit, Unit):
            return read_number(given, self.unit, self.what)
        text = re.sub(r"^worker\s*(?=\d)", "", str(given).strip().lower())
        for word, pattern in self.unit.items():
            if re.fullmatch(pattern, text):
                return word
        if text == "0" and "1" in self.unit:
            raise ConfigError(from_0("worker"))
        raise ConfigError(f"{self.what} is one of {', '.join(self.unit)}; got {short(given)}")

    def _slots(self, given: Any) -> tuple[str, ...]:
        several = hasattr(given, "__iter__") and not isinstance(given, str)
        left, words = (" ".join(map(str, given)) if several else str(given)).strip(), list[str]()
        while match := _SLOT.match(left):
            word = match[2].upper()
            if word in ("F1", "B1"):
                raise ConfigError("you counted the batch from 1; it is number 0 here: F0 and B0")
            if word not in ("F", "B", "F0", "B0", IDLE, "-", "_", "IDLE"):
                raise ConfigError(f"{self.what} has {word}; there is one batch, F0 and B0")
            words += [f"{word[0]}0" if word[0] in "FB" else IDLE] * int(match[1] or 1)
            left = left[match.end() :]
        if left:
            raise ConfigError(
                f"{self.what}: a slot has F0, B0 or a dot for idle; got {left[:20]!r}"
            )
        if len(words) != len(self.right):
            raise ConfigError(
                f"{self.what} has {len(words)} slots filled in, and there are {len(self.right)}"
            )
        return tuple(words)

    def error(self, given: Any) -> float:
        """How far off, as a share of what is right; 0 where it is as good as exact."""
        if not isinstance(self.unit, Unit) or isinstance(self.right, tuple):
            return float(given != self.right)
        error = abs(given - self.right) / (abs(self.right) or 1.0)
        return error if error > (_EXACT if self.unit is SHARE else 1e-6) else 0.0

    def is_wrong(self, given: Any) -> bool:
        return self.error(given) > (_ROUNDED if self.unit is SHARE else 0.0)

    def remark(self, given: Any) -> str:
        """What is wrong with ``given``, and never what is right."""
        number = isinstance(self.unit, Unit)
        known = (
            words
            for value, words in self.wrong
            if given == value or (number and math.isclose(given, value, rel_tol=_EXACT))
        )
        why = next(known, off_by(given, self.right) if number else "")
        return f"{self.what} is not {self.shown(given)}{': ' * bool(why)}{why}"

    def shown(self, given: Any) -> str:
        if not isinstance(self.unit, Unit):
            return repr(given)
        if self.unit is SHARE:
            return f"{100 * given:.4g} %"
        return f"{given:g}{' s' * (self.unit is SECONDS)}"


class Run(NamedTuple):
    """A simulated run, and what may be said of it before it is solved."""

    facts: str
    """Without any answer: "GPipe, 4 workers"."""
    timeline: Timeline


@dataclass(frozen=True, kw_only=True)
class IdleLevel(JudgedTask):
    """A level with the numbers of its seed; what is right, the simulator says."""

    level: int
    """From 1, the easiest."""
    seed: int
    title: str
    fields: tuple[Asked, ...]
    runs: tuple[Run, ...]
    lines: tuple[str, ...]
    """The working; its last line is the answer."""
    offence: Callable[[list[Any]], str] = lambda given: ""
    """What is wrong with all of it together; empty: the first field that is off says it."""
    targets: Callable[[list[Any]], Sequence[Target]] | None = None
    """Who judges where more than one answer will do; None: each field is right or wrong."""
    shows_run: bool = False
    """Whether the question is about the run, which is drawn in letters beside it."""

    def read(self, answer: Any) -> list[Any]:
        """What was filled in; ConfigError for what is no answer."""
        words, labels = self._words(answer), [field.label for field in self.fields]
        if all(labels):
            words = labelled(words, labels, "worker" if labels[0].isdigit() else "gap")
        if len(words) != len(self.fields):
            raise ConfigError(f"{len(labels)} are asked for: {self.form}; got {len(words)}")
        return [field.read(word) for field, word in zip(self.fields, words, strict=True)]

    def _words(self, answer: Any) -> list[Any]:
        """What stands for each field: between commas, or for rows of slots between semicolons."""
        field, nested = self.fields[0], hasattr(answer, "__iter__")
        if isinstance(answer, Mapping):
            return parts(answer)
        if isinstance(field.right, tuple):
            rows = re.split(r"[;\n]", answer) if isinstance(answer, str) else answer
            rows = list(rows) if hasattr(rows, "__iter__") else [rows]
            return [r.strip() if isinstance(r, str) else r for r in rows if r not in ("", " ")]
        if isinstance(field.unit, Unit):
            return parts(answer)
        if not isinstance(answer, str):
            return [word for each in answer for word in self._words(each)] if nested else [answer]
        if field.label:  # "A warm up B drain": each label begins one
            return parts(re.sub(r"[,;\s]+(?=[A-E]\b[\s:=)])", ", ", answer.strip()))
        words = re.sub(r"(?i)\bworker\s+(?=\d)", "worker", answer)
        return re.split(r"[,;\s]+", words.strip(",; \n"))  # no word has a blank, but "worker 3"

    def judge(self, answer: Any) -> Sequence[Target]:
        given = self.read(answer)
        if self.targets:
            return self.targets(given)
        pairs = list(zip(self.fields, given, strict=True))
        wrong = [(field, value) for field, value in pairs if field.is_wrong(value)]
        remarks = [self.offence(given) or field.remark(value) for field, value in wrong[:1]]
        remarks += [f"{len(wrong)} of {len(given)} are off"] * (len(wrong) > 1)
        judged = [Target(WRONG, 0, len(wrong), 0, remarks=remarks)]
        rounded = [field for field, value in pairs if field.error(value)]
        if rounded and not wrong:  # right, so what is exact may be said
            exact = listed(
                f"{Fraction(field.right).limit_denominator(1000)} or {field.shown(field.right)}"
                for field in rounded
            )
            off = max(field.error(value) for field, value in pairs)
            words = f"Right, rounded: the third star takes {exact}"
            judged.append(Target("rounded off by a share of", _ROUNDED, off, 0, almost=words))
        return judged

    def figure(self, answer: Any) -> Figure:
        """The fields as they are filled in, what is off in red; once it is right, the runs."""
        from tiledask.lab.idle_ladder.figures import draw_level

        return draw_level(self, answer, self.result(answer))

    def first_slot_off(self, given: Sequence[Sequence[str]]) -> tuple[int, int]:
        """(slot, worker) of the first slot of a timetable that is off."""
        return first_off(given, [field.right for field in self.fields])

    def working(self) -> str:
        """How it is worked out, a numbered line for each step; the last one is the answer."""
        return "\n".join(f"{n}. {line}" for n, line in enumerate(self.lines, 1))

    def __repr__(self) -> str:
        """The question alone: fields and runs hold what is right."""
        return f"Level {self.level}. {self.title}. {self.question} Answer with {self.form}."

    @property
    def heading(self) -> str:
        return f"Level {self.level}. {self.title}"


def level_of(
    head: dict[str, Any], page: str, fields: Iterable[Asked], *runs: Run, **judge: Any
) -> IdleLevel:
    """A level whose words stand on a ``page``, each part behind a letter: Q the question, A the
    form of an answer, H a hint, W a line of the working."""
    said: dict[str, list[str]] = {letter: [] for letter in "QAHW"}
    for letter, words in re.findall(r"^ *([QAHW]): ((?:.|\n(?! *[QAHW]: ))*)", page, re.MULTILINE):
        said[letter].append(" ".join(words.split()))
    return IdleLevel(
        **head,
        question=said["Q"][0],
        form=said["A"][0],
        hints=tuple(said["H"]),
        fields=tuple(fields),
        runs=runs,
        lines=tuple(filter(None, said["W"])),
        **judge,
    )
