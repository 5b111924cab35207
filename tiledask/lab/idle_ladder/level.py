"""A level with the numbers of its seed: fields to fill in, who judges them, the working.

worker 1's idle time   [ 10 s ]          a number, a word, or for a timetable a word per slot
worker 2's idle time   [ not 8 s: too low, near ]
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.judging.reading import SECONDS, SHARE, Unit, from_0, labelled, parts, read_number
from tiledask.lab.judging.result import WRONG
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.data import shipped_json
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["IDLE", "Asked", "IdleLevel", "Run", "level_of", "listed", "num", "off_by", "total"]

IDLE = "."
_SLOT = re.compile(r"(?:(\d{1,2})\s*[x*]\s*)?([FB]0?(?!\d)|[.\-_]|idle)[\s,|]*", re.IGNORECASE)
_ROUNDED = 0.02
"""Of a share: who rounds it to whole percents is right."""


def num(value: float) -> str:
    """A number with as many digits as it needs, six at most."""
    return f"{value:.6g}"


def total(values: Sequence[float]) -> str:
    """The sum, written out, and what it makes.

    >>> total([3, 5, 2]), total([3])
    ('3 + 5 + 2 = 10', '3')
    """
    return " + ".join(map(num, values)) + f" = {num(sum(values))}" * (len(values) > 1) or "0"


def listed(values: Iterable[object]) -> str:
    """Values in a sentence.

    >>> listed([3, 5, 2])
    '3, 5 and 2'
    """
    *words, last = [num(v) if isinstance(v, int | float) else str(v) for v in values]
    return f"{', '.join(words)} and {last}" if words else last


def off_by(given: float, right: float) -> str:
    """The side, and whether it is within a tenth or twice as much; never how much.

    >>> off_by(9.5, 10), off_by(30, 10)
    ('too low, near', 'too high, far')
    """
    side = "low" if given < right else "high"
    near = ", near" if abs(given - right) <= 0.1 * abs(right) else ""
    return f"too {side}{near or ', far' * (given >= 2 * right or 2 * given <= right)}"


@dataclass(frozen=True)
class Asked:
    """One thing that is asked for: a number, a word, or the words of a row of slots."""

    what: str
    """ "worker 2's idle time"."""
    right: Any
    """As the simulator says; of a row of slots a tuple."""
    wrong: Sequence[tuple[Any, str]] = ()
    """(what comes of a mistake, in words which)."""
    unit: Unit | Mapping[str, str] = SECONDS
    """Of a number; or the words there are, and a pattern of what else means each."""
    label: str = ""
    """What may stand before it: "2" for worker 2."""

    def read(self, given: str) -> Any:
        """The value of what was written; ConfigError for what is none."""
        if isinstance(self.right, tuple):
            return self._slots(given)
        if isinstance(self.unit, Unit):
            return read_number(given, self.unit, self.what)
        text = re.sub(r"^worker\s*(?=\d)", "", given.strip().lower())
        for word, pattern in self.unit.items():
            if re.fullmatch(pattern, text):
                return word
        if text == "0" and "1" in self.unit:
            raise ConfigError(from_0("worker"))
        raise ConfigError(f"{self.what} is one of {', '.join(self.unit)}; got {short(given)}")

    def _slots(self, left: str) -> tuple[str, ...]:
        words: list[str] = []
        while match := _SLOT.match(left):
            word = match[2].upper()
            words += [f"{word[0]}0" if word[0] in "FB" else IDLE] * int(match[1] or 1)
            left = left[match.end() :]
        if re.match("[FBfb]1", left):
            raise ConfigError("you counted the batch from 1; it is number 0 here: F0 and B0")
        if left:
            rule = "a slot has F0, B0 or a dot for idle"
            raise ConfigError(f"{self.what}: {rule}; got {left[:20]!r}")
        if len(words) != len(self.right):
            there = f"{len(words)} slots filled in, and there are {len(self.right)}"
            raise ConfigError(f"{self.what} has {there}")
        return tuple(words)

    def is_wrong(self, given: Any) -> bool:
        if isinstance(self.right, tuple | str):
            return bool(given != self.right)
        near = _ROUNDED if self.unit is SHARE else 1e-6
        return not math.isclose(given, self.right, rel_tol=near, abs_tol=1e-9)

    def remark(self, given: Any) -> str:
        """What is wrong with ``given``, and never what is right."""
        if isinstance(self.right, tuple):
            slot = [a == b for a, b in zip(given, self.right, strict=True)].index(False)
            return f"slot {slot + 1} of {self.what} is the first that is off: {given[slot]} there"
        number = isinstance(self.unit, Unit)
        alike = math.isclose if number else lambda a, b, rel_tol: a == b
        known = (words for value, words in self.wrong if alike(given, value, rel_tol=2e-3))
        why = next(known, off_by(given, self.right) if number else "")
        return f"{self.what} is not {self.shown(given)}{': ' * bool(why)}{why}"

    def shown(self, given: Any) -> str:
        if self.unit is SHARE:
            return f"{100 * given:.4g} %"
        number = f"{given:g}" if isinstance(self.unit, Unit) else repr(given)
        return number + " s" * (self.unit is SECONDS)


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
    targets: Callable[[list[Any]], Sequence[Target]] | None = None
    """Who judges all of it together; None: each field is right or wrong by itself."""
    shows_run: bool = False
    """Whether the question is about the run, which is drawn in letters beside it."""

    def read(self, answer: Any) -> list[Any]:
        """What was filled in; ConfigError for what is no answer."""
        text, labels = _typed(answer), [field.label for field in self.fields]
        if isinstance(self.fields[0].right, tuple):
            words: Sequence[Any] = [row.strip() for row in re.split(r"[;\n]", text) if row.strip()]
        elif isinstance(self.fields[0].unit, Unit):
            words = parts(text)
        elif all(labels):  # "A warm up B drain": each label begins one
            words = parts(re.sub(r"[,;\s]+(?=[A-E]\b[\s:=)])", ", ", text.strip()))
        else:  # no word has a blank, but "worker 3"
            text = re.sub(r"(?i)\bworker\s+(?=\d)", "worker", text)
            words = re.split(r"[,;\s]+", text.strip(",; \n"))
        if all(labels):
            words = labelled(words, labels, "worker" if labels[0].isdigit() else "gap")
        if len(words) != len(self.fields):
            raise ConfigError(f"{len(labels)} are asked for: {self.form}; got {len(words)}")
        return [field.read(word) for field, word in zip(self.fields, words, strict=True)]

    def judge(self, answer: Any) -> Sequence[Target]:
        given = self.read(answer)
        if self.targets:
            return self.targets(given)
        pairs = zip(self.fields, given, strict=True)
        wrong = [field.remark(value) for field, value in pairs if field.is_wrong(value)]
        remarks = wrong[:1] + [f"{len(wrong)} of {len(given)} are off"] * (len(wrong) > 1)
        return [Target(WRONG, 0, len(wrong), 0, why="; ".join(remarks))]

    def figure(self, answer: Any) -> Figure:
        """The fields as they are filled in; once all is right, the runs."""
        from tiledask.lab.idle_ladder.figures import draw_level

        return draw_level(self, answer, self.result(answer))

    def working(self) -> str:
        """How it is worked out, a numbered line for each step; the last one is the answer."""
        return "\n".join(f"{n}. {line}" for n, line in enumerate(self.lines, 1))

    def __repr__(self) -> str:
        """The question alone: fields and runs hold what is right."""
        return f"{self.heading}. {self.question} Answer with {self.form}."

    @property
    def heading(self) -> str:
        return f"Level {self.level}. {self.title}"


def _typed(answer: Any, between: str = "; ") -> str:
    """The answer as if it had been typed: rows between semicolons, words between blanks."""
    if isinstance(answer, Mapping):
        answer = [f"{key}: {value}" for key, value in answer.items()]
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        return str(answer)
    return between.join(_typed(each, " ") for each in answer)


def level_of(
    head: Mapping[str, Any],
    words: Mapping[str, Any],
    lines: Iterable[str],
    fields: Iterable[Asked],
    *runs: Run,
    **judge: Any,
) -> IdleLevel:
    """A level with ``words`` put into its texts in data/ladder.json; ``lines``: the working."""
    texts = shipped_json("ladder.json")[f"{head['level']}"]
    return IdleLevel(
        **head,
        question=texts["question"].format(**words),
        form=texts["form"].format(**words),
        hints=tuple(hint.format(**words) for hint in texts["hints"]),
        fields=tuple(fields),
        runs=runs,
        lines=tuple(lines),
        **judge,
    )
