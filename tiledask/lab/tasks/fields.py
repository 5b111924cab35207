"""A level with the numbers of its seed: fields to fill in, who judges them, the working.

worker 0's idle time   [ 10 s ]          a number, a word, or for a timetable a word per slot
worker 1's idle time   [ not 8 s: too low, near ]
"""

import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.course.words import each_of, filled, lines_of, looked_up
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.quantities import parts, read_number
from tiledask.lab.tasks.kind import run_text
from tiledask.lab.tasks.result import WRONG, Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.data import shipped_json

__all__ = ["IDLE", "Asked", "Names", "level_of"]

IDLE = "."
Names = dict[str, Any]
"""Of the sums of a level; texts and fields in data/ladder.json are made of them."""
_SLOT = re.compile(r"(?:(\d{1,2})\s*[x*]\s*)?([FB]0?(?!\d)|[.\-_]|idle)[\s,|]*", re.IGNORECASE)
_ROUNDED = 0.02
"""Of a share: who rounds it to whole percents is right."""


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
    """ "worker 1's idle time"."""
    right: Any
    """As the simulator says; of a row of slots a list."""
    wrong: Sequence[tuple[Any, str]] = ()
    """(what comes of a mistake, in words which); None: it cannot be made here."""
    unit: str | Mapping[str, str] = "s"
    """Of a number, as in `UNITS`; or the words there are, and a pattern of what else means each."""
    label: str = ""
    """What may stand before it: "A" for gap A."""

    def read(self, given: str) -> Any:
        """The value of what was written; ConfigError for what is none."""
        if isinstance(self.right, list):
            return self._slots(given)
        if isinstance(self.unit, str):
            return read_number(given, self.unit, self.what)
        text = re.sub(r"^worker\s*(?=\d)", "", given.strip().lower())
        for word, pattern in self.unit.items():
            if re.fullmatch(pattern, text):
                return word
        if text.isdecimal() and "0" in self.unit:
            raise ConfigError(f"there is no worker {short(text)}: workers count from 0 here")
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

    def off_at(self, given: Any) -> int | None:
        """The slot in which ``given`` is wrong first, 0 of a number or a word; None if right."""
        if isinstance(self.right, list):
            pairs = enumerate(zip(given, self.right, strict=True))
            return next((slot for slot, (a, b) in pairs if a != b), None)
        if isinstance(self.right, str):
            return None if given == self.right else 0
        near = _ROUNDED if self.unit == "share" else 1e-6
        return None if math.isclose(given, self.right, rel_tol=near, abs_tol=1e-9) else 0

    def remark(self, given: Any) -> str:
        """What is wrong with ``given``, and never what is right."""
        if isinstance(self.right, list):
            slot = self.off_at(given) or 0
            return f"slot {slot} of {self.what} is the first that is off: {given[slot]} there"
        number = isinstance(self.unit, str)
        alike = partial(math.isclose, rel_tol=2e-3) if number else operator.eq
        known = (words for v, words in self.wrong if v is not None and alike(given, v))
        why = next(known, off_by(given, self.right) if number else "")
        (shown,) = self.words(given if number else repr(given))
        return f"{self.what} is not {shown}{': ' * bool(why)}{why}"

    def words(self, given: Any) -> Sequence[str]:
        """What was filled in as people write it, a word for each slot; None: nothing yet."""
        if isinstance(self.right, list):
            return tuple(given or "?" * len(self.right))
        if given is None or isinstance(given, str):
            return [given or "?"]
        if self.unit == "share":
            return [f"{100 * given:.4g} %"]
        return [f"{given:g}" + " s" * (self.unit == "s")]


def _read(fields: Sequence[Asked], form: str, answer: Any) -> list[Any]:
    """What was filled in; ConfigError for what is no answer."""
    text, labels = _typed(answer), [field.label for field in fields]
    if isinstance(fields[0].right, list):
        words = [row.strip() for row in re.split(r"[;\n]", text) if row.strip()]
    elif isinstance(fields[0].unit, str):
        words = parts(text)
    elif all(labels):  # "A warm up B drain": each label begins one
        words = parts(re.sub(r"[,;\s]+(?=[A-E]\b[\s:=)])", ", ", text.strip()))
        found = (re.fullmatch(r"([A-E])[\s:=)]+(.+)", word) for word in words)
        named = {each[1]: each[2] for each in found if each}
        words = [named[label] for label in labels] if sorted(named) == sorted(labels) else words
    else:  # no word has a blank, but "worker 2"
        text = re.sub(r"(?i)\bworker\s+(?=\d)", "worker", text)
        words = re.split(r"[,;\s]+", text.strip(",; \n"))
    if len(words) != len(fields):
        raise ConfigError(f"{len(labels)} are asked for: {form}; got {len(words)}")
    return [field.read(word) for field, word in zip(fields, words, strict=True)]


def _typed(answer: Any, between: str = "; ") -> str:
    """The answer as if it had been typed: rows between semicolons, words between blanks."""
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        return str(answer)
    return between.join(_typed(each, " ") for each in answer)


def _asked(rows: Sequence[Mapping[str, Any]], names: Names) -> Iterator[Asked]:
    """The fields of a level; a row with ``each`` is one for each of what it names."""
    for row in rows:
        for here in each_of(row["each"], names) if "each" in row else [names]:
            right, label = looked_up(row["right"], here), filled(row.get("label", ""), here)
            unit = names[row["choices"]] if "choices" in row else row.get("unit", "s")
            mistakes = row.get("wrong", {}).items()
            wrong = [(looked_up(value, here), filled(why, here)) for value, why in mistakes]
            yield Asked(filled(row["what"], here), right, wrong, unit, label)


def level_of(level: int, seed: int, names: Names) -> JudgedTask:
    """A level with the ``names`` of its sums put into its texts in data/ladder.json.

    Each field is right or wrong by itself, unless a ``judge`` of that name judges them together.
    """
    texts, together = shipped_json("ladder.json")[f"{level}"], names.get("judge")
    form, fields = filled(texts["form"], names), [*_asked(texts["fields"], names)]
    titles = texts["runs"].items() if "runs" in texts else ()
    runs = {filled(title, names): names[run] for run, title in titles} or names["runs"]

    def off(given: list[Any]) -> list[tuple[int, int]]:
        """(field, slot) of each field that is wrong."""
        slots = [field.off_at(value) for field, value in zip(fields, given, strict=True)]
        return [(row, slot) for row, slot in enumerate(slots) if slot is not None]

    def judge(answer: Any) -> list[Target]:
        given = _read(fields, form, answer)
        if together:
            judged: list[Target] = together(given)
            return judged
        rows = [row for row, _ in off(given)]
        remarks = [fields[row].remark(given[row]) for row in rows[:1]]
        remarks += [f"{len(rows)} of {len(given)} are off"] * (len(rows) > 1)
        return [Target(WRONG, 0, len(rows), 0, why="; ".join(remarks))]

    def figure(answer: Any, title: str) -> Figure:
        from tiledask.lab.tasks.figures import draw_fields

        try:
            given = _read(fields, form, answer)
            wrong = [] if together else off(given)
        except ConfigError:
            given, wrong = [None] * len(fields), []
        shown = [field.words(value) for field, value in zip(fields, given, strict=True)]
        return draw_fields([f.what for f in fields], shown, next(iter(wrong), None), title)

    def letters(answer: Any) -> str:
        """The run, where the question is about it."""
        asked = answer is None and texts.get("shows_run")
        return run_text(next(iter(runs.values())), "worker") if asked else ""

    return JudgedTask(
        name=f"idle-{level}",
        title=texts["title"],
        question=filled(texts["question"], names),
        form=form,
        judge=judge,
        hints=tuple(filled(hint, names) for hint in texts["hints"]),
        kind="idle time",
        level=level,
        seed=seed,
        lines=tuple(lines_of(texts["working"], names)),
        timelines=runs,
        figure=figure,
        letters=letters,
    )
