"""A sheet with a row per worker and a column per slot: F0, B0, or nothing.

worker 1   F0 .  .  .  .  B0        at most one works: a batch is in one place at a time
worker 2   .  F0 .  .  B0 .
worker 3   .  .  F0 B0 .  .
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.judging import Target
from tiledask.lab.judging.reading import labelled, parts
from tiledask.lab.judging.result import WRONG
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["IDLE", "Timetable"]

IDLE = "."
_EXAMPLE = "F0 . . B0; . F0 B0 ."
_SLOT = re.compile(r"(?:(\d{1,2})\s*[x*]\s*)?(F\d*|B\d*|[.\-_]|idle)", re.IGNORECASE)


@dataclass(frozen=True)
class Timetable:
    """What each worker does in each slot; a slot lasts a second of ``timeline``."""

    timeline: Timeline
    drawn = "timetable"
    words = ("F0", "B0", IDLE)
    """What may stand in a slot."""

    @property
    def workers(self) -> int:
        """How many rows there are; people count them from 1."""
        return self.timeline.devices

    @property
    def slots(self) -> int:
        """How many columns there are; people count them from 1."""
        return round(self.timeline.makespan)

    @cached_property
    def right(self) -> tuple[tuple[str, ...], ...]:
        """By worker and slot, as the simulator says."""
        state = self.timeline.state
        return tuple(
            tuple(state(w, s + 0.5).replace("idle", IDLE) for s in range(self.slots))
            for w in range(self.workers)
        )

    def read(self, answer: Any) -> list[list[str]]:
        """The words given, by worker and slot."""
        labels = [f"{w + 1}" for w in range(self.workers)]
        if isinstance(answer, Mapping):
            answer = parts(answer)
        elif isinstance(answer, str):
            answer = [line for line in re.split(r"[;\n]", answer) if line.strip()]
        rows = list(answer) if hasattr(answer, "__iter__") else [answer]
        if all(isinstance(row, str) for row in rows):
            rows = labelled([row.strip() for row in rows], labels, "worker")
        if len(rows) != self.workers:
            raise ConfigError(
                f"{self.workers} workers need {self.workers} lines (or parts between ;), as in "
                f"'{_EXAMPLE}' for 2; got {len(rows)}"
            )
        return [self._row(w, row) for w, row in enumerate(rows)]

    def _row(self, worker: int, row: Any) -> list[str]:
        words: list[str] = []
        listed = hasattr(row, "__iter__") and not isinstance(row, str)
        text = " ".join(map(str, row)) if listed else str(row)
        end = 0
        for match in _SLOT.finditer(text):
            if text[end : match.start()].strip(" ,|\t"):
                break
            word = match[2].upper()
            if word in ("F1", "B1"):
                raise ConfigError("you counted the batch from 1; it is number 0 here: F0 and B0")
            words += [word[0] + "0" if word[0] in "FB" else IDLE] * int(match[1] or 1)
            end = match.end()
            if word[1:].isdigit() and word not in self.words:
                raise ConfigError(f"worker {worker + 1} has {word}; there is one batch, F0 and B0")
        if text[end:].strip(" ,|\t"):
            raise ConfigError(
                f"worker {worker + 1}: a slot has F0, B0 or a dot for idle, as in '{_EXAMPLE}'; "
                f"got {text[end:].strip()[:20]!r}"
            )
        if len(words) != self.slots:
            raise ConfigError(
                f"worker {worker + 1} has {len(words)} slots filled in, and there are "
                f"{self.slots}: F0, B0 or a dot in each"
            )
        return words

    def wrong(self, given: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        """(slot, worker) of all that is off, in the order of the slots."""
        return [
            (slot, worker)
            for slot in range(self.slots)
            for worker in range(self.workers)
            if given[worker][slot] != self.right[worker][slot]
        ]

    def judge(self, answer: Any) -> Sequence[Target]:
        given = self.read(answer)
        wrong = self.wrong(given)
        remarks: tuple[str, ...] = ()
        if [tuple(row) for row in given[::-1]] == list(self.right):
            remarks = ("the last worker stands in the first line; worker 1 comes first",)
        elif wrong:
            all_slots = self.workers * self.slots
            share = f"{len(wrong)} of {all_slots} slots are off"
            distance = "near, " if len(wrong) <= 0.1 * all_slots else ""
            remarks = (self._why(given, *wrong[0]), f"{distance}{share}")
        return [Target(WRONG, 0, len(wrong), 0, remarks=remarks)]

    def _why(self, given: Sequence[Sequence[str]], slot: int, worker: int) -> str:
        """What is wrong there, the first place that is."""
        word, right = given[worker][slot], self.right[worker][slot]
        where = f"slot {slot + 1} is the first that is off: worker {worker + 1}"
        if word == IDLE:
            return f"{where} idles there with all that it needs"
        if right != IDLE:
            return f"{where} works there, but not on {word}"
        others = [w for w in range(self.workers) if w != worker and given[w][slot] != IDLE]
        if others:
            return (
                f"{where} has {word} while worker {others[0] + 1} works too, and the batch is in "
                f"one place at a time"
            )
        mine = given[worker][:slot]
        done = mine.count(word) >= self.right[worker].count(word)
        return f"{where} {'is done with' if done else 'cannot have begun'} {word} there"
