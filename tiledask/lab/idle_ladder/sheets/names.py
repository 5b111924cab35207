"""A sheet of words: which worker, which kind of gap; a worker's number, or a word of a list."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.judging import Target
from tiledask.lab.judging.reading import from_0, labelled, parts
from tiledask.lab.judging.result import WRONG

__all__ = ["Name", "NameSheet"]


@dataclass(frozen=True)
class Name:
    """One word that is asked for."""

    what: str
    """ "worker 2 at 5.5 s"."""
    right: str
    mistakes: tuple[tuple[str, str], ...] = ()
    """(what comes of a mistake, in words which)."""


@dataclass(frozen=True)
class NameSheet:
    """The words that are asked for, in order, each one of ``words`` or of its synonyms."""

    asked: tuple[Name, ...]
    words: Mapping[str, tuple[str, ...]]
    """Word -> what else means the same, as a regular expression each."""
    example: str
    labels: tuple[str, ...] = ()
    """Before each, if one likes: "A"."""
    gaps: tuple[Any, ...] = ()
    """What the labels stand for, where they stand in a drawing of the run."""

    @property
    def drawn(self) -> str:
        return "gaps" if self.gaps else "sheet"

    def read(self, answer: Any) -> list[str]:
        """The words given, each as ``words`` has it."""
        if isinstance(answer, str) and self.labels:  # "A warm up B drain": each label begins one
            answer = re.sub(rf"[,;\s]+(?=[{''.join(self.labels)}]\b[\s:=)])", ", ", answer.strip())
        elif isinstance(answer, str):  # no word has a blank, but "worker 3"
            words = re.sub(r"(?i)\bworker\s+(?=\d)", "worker", answer)
            answer = ", ".join(re.split(r"[,;\s]+", words.strip(",; \n")))
        nested = not isinstance(answer, str | Mapping) and hasattr(answer, "__iter__")
        flat = [w for part in answer for w in parts(part)] if nested else parts(answer)
        given = labelled(flat, self.labels, "gap") if self.labels else flat
        if len(given) != len(self.asked):
            raise ConfigError(
                f"{len(self.asked)} words are asked for, as in '{self.example}'; got {len(given)}"
            )
        return [self._word(w, name) for w, name in zip(given, self.asked, strict=True)]

    def _word(self, given: Any, name: Name) -> str:
        text = re.sub(r"^worker\s*(?=\d)", "", str(given).strip().lower())
        for word, also in self.words.items():
            if any(re.fullmatch(each, text) for each in (re.escape(word), *also)):
                return word
        numbers = [word for word in self.words if word.isdigit()]
        if numbers and text == "0":
            raise ConfigError(from_0("worker") + f", up to {numbers[-1]}")
        raise ConfigError(
            f"{name.what} is one of {', '.join(self.words)}, as in '{self.example}'; got "
            f"{short(given)}"
        )

    def rows(self, given: Sequence[str] | None) -> list[tuple[str, str, bool]]:
        """(what is asked, what was given, whether it is the first that is off)."""
        wrong = self.wrong(given)[:1] if given else []
        return [
            (name.what, given[i] if given else "?", i in wrong) for i, name in enumerate(self.asked)
        ]

    def wrong(self, given: Sequence[str]) -> list[int]:
        """Which of the words given are off."""
        pairs = zip(self.asked, given, strict=True)
        return [i for i, (name, word) in enumerate(pairs) if word != name.right]

    def judge(self, answer: Any) -> Sequence[Target]:
        given = self.read(answer)
        wrong = self.wrong(given)
        remarks: tuple[str, ...] = ()
        if wrong:
            name, word = self.asked[wrong[0]], given[wrong[0]]
            why = dict(name.mistakes).get(word)
            off = f"{len(wrong)} of {len(given)} are off"
            rest = off if len(wrong) > 1 else "the others are right"
            remarks = (f"{name.what} is not {word!r}{f': {why}' if why else ''}; {rest}",)
            if self._one_less(given):
                remarks = (from_0("worker"),)
        return [Target(WRONG, 0, len(wrong), 0, remarks=remarks)]

    def _one_less(self, given: Sequence[str]) -> bool:
        pairs = [(n.right, g) for n, g in zip(self.asked, given, strict=True) if n.right.isdigit()]
        return bool(pairs) and all(g.isdigit() and int(g) + 1 == int(right) for right, g in pairs)
