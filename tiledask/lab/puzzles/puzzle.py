"""A puzzle, read from a file, and the check that works out what an answer to it is worth."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.judging.placed import PlacedAnswer
from tiledask.lab.judging.result import LEAST, Target
from tiledask.lab.judging.task import JudgedTask
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.puzzles.choices import CHOICE
from tiledask.lab.puzzles.compositions import COMPOSITION
from tiledask.lab.puzzles.inputs import INPUTS, number, read_values
from tiledask.lab.puzzles.kind import Kind
from tiledask.lab.puzzles.orders import ORDER
from tiledask.lab.puzzles.partitions import PARTITION
from tiledask.plan.data import Fields, names, read, read_named
from tiledask.plan.whole import is_whole

__all__ = ["KINDS", "Puzzle", "load_puzzle", "puzzle_levels", "puzzle_names"]

KINDS: dict[str, Kind] = {
    "partition": PARTITION,
    "choice": CHOICE,
    "order": ORDER,
    "composition": COMPOSITION,
}


@dataclass(frozen=True, kw_only=True)
class Puzzle(JudgedTask):
    """A task, its numbers, and the targets that an answer has to meet."""

    level: int
    """From easy to hard, counted from 1."""
    title: str
    kind: str
    """A name in KINDS."""
    inputs: MappingProxyType[str, Any]
    targets: MappingProxyType[str, Any]
    """The most that each measure may be, or LEAST: as little as the other targets let it be."""

    def judge(self, answer: Any) -> list[Target]:
        """The targets that ``answer`` meets or misses; ConfigError or RuleError if it is none."""
        kind, limits = KINDS[self.kind], self._limits()
        measured = kind.measure(self.inputs, kind.read(self.inputs, answer))
        # beside a number that stays unsaid, the best of the others would say it
        unsaid = any(
            wanted == LEAST and measured[name][0] != limits[name]
            for name, wanted in self.targets.items()
        )
        best = {} if unsaid else kind.best(self.inputs, limits)
        return [
            Target(
                kind.measures[name],
                limits[name],
                measured[name][0],
                best.get(name),
                kind.yardstick,
                wanted == LEAST,
                measured[name][1],
            )
            for name, wanted in self.targets.items()
        ]

    def figure(self, answer: Any) -> Figure:
        """A figure of ``answer``, right or wrong; of the empty task for None."""
        from tiledask.lab.judging.figure import titled
        from tiledask.lab.puzzles.figures import DRAWINGS

        title = partial(titled, self, self.result(answer))
        return DRAWINGS[self.kind](self.inputs, self.targets, answer, title)

    def place(self) -> PlacedAnswer:
        """The cuts as handles that are moved with mouse and keyboard in JupyterLab; ConfigError
        for a kind of puzzle whose answer is typed."""
        kind = KINDS[self.kind]
        if kind.board is None:
            raise ConfigError(f"only cuts are placed, and {self.name} is typed: {kind.how}")
        return PlacedAnswer(self.name, kind.how, kind.board(self.inputs, self._limits()))

    def solve(self) -> Any:
        """An answer that meets every target, found by the exact methods; None if there is none.

        >>> puzzle = load_puzzle("24-on-4")
        >>> puzzle.check(puzzle.solve()).stars
        3
        """
        found = KINDS[self.kind].solve(self.inputs, self._limits())
        return found if found and self.result(found) else None

    def _limits(self) -> dict[str, float]:
        """The targets as numbers; what is to be the least is worked out, inf if nothing will do."""
        limits = {name: math.inf if w == LEAST else w for name, w in self.targets.items()}
        least = [name for name, wanted in self.targets.items() if wanted == LEAST]
        best = KINDS[self.kind].best(self.inputs, limits) if least else {}
        return limits | {name: best.get(name, math.inf) for name in least}

    @property
    def heading(self) -> str:
        return self.title


# -- files -----------------------------------------------------------------------------------------


def puzzle_names() -> tuple[str, ...]:
    """Names of the puzzles there are, from easy to hard.

    >>> puzzle_names()[0]
    '24-on-4'
    """
    # by the files alone: making a puzzle of each takes many times as long
    every = names("puzzles")
    return tuple(sorted(every, key=lambda name: read_named("puzzles", name).values["level"]))


def puzzle_levels() -> tuple[Puzzle, ...]:
    """The puzzles there are, level 1 first."""
    return tuple(map(load_puzzle, puzzle_names()))


def load_puzzle(name: str | int | os.PathLike[str] | Mapping[str, Any]) -> Puzzle:
    """The puzzle with this name or level, or of a local JSON file (a path, or a name in .json), or
    of the same keys as a mapping: its title is its name then, and it needs no level.

    ConfigError if there is none, or if its file is not a puzzle; the message names the key.
    nbs/README.md says how to write one.

    >>> puzzle = load_puzzle("24-on-4")
    >>> puzzle.check("1-6 | 7-12 | 13-18 | 19-24").reason
    'Solved: every target is met.'
    >>> bool(puzzle.check(None))
    False
    >>> load_puzzle(1).name
    '24-on-4'
    """
    if isinstance(name, Mapping):
        return _read(str(name.get("title", "a puzzle")), Fields({"level": 1, **name}, "the puzzle"))
    if isinstance(name, os.PathLike) or str(name).endswith(".json"):
        path = Path(str(name))
        return _read(path.stem, read(path))
    if is_whole(name) or re.fullmatch(r"\d{1,9}", str(name)):
        levels = puzzle_names()
        if not 1 <= int(name) <= len(levels):
            raise ConfigError(f"there is no level {name}; the levels are 1 to {len(levels)}")
        name = levels[int(name) - 1]
    return _read(str(name), Fields(read_named("puzzles", str(name)).values, f"puzzle {name!r}"))


def _read(name: str, fields: Fields) -> Puzzle:
    head = {key: fields.text(key) for key in ("title", "kind", "task")}
    level, hints = fields.integer("level"), fields.texts("hints", ())
    source = fields.text("source", "")
    if head["kind"] not in KINDS:
        raise fields.fail("kind", f"must be one of {', '.join(KINDS)}, got {short(head['kind'])}")
    kind, given, wanted = KINDS[head["kind"]], fields.object("inputs"), fields.object("targets")
    fields.done()
    readers = {key: INPUTS[key] for key in (*kind.needed, *kind.optional)}
    readers |= dict.fromkeys(kind.single, number)
    inputs = read_values(given, readers, kind.needed)
    chosen = inputs.get("open", {})
    readers = {key: partial(_target, key in chosen) for key in kind.measures}
    targets = read_values(wanted, readers)
    if not targets:
        raise fields.fail("targets", f"has none of {', '.join(kind.measures)}; add one")
    try:
        kind.validate(inputs)
    except (ConfigError, RuleError) as error:
        raise fields.fail("inputs", f"cannot be a puzzle: {error}") from None
    return Puzzle(
        name=name,
        question=head["task"],
        form=kind.how,
        hints=hints,
        source=source,
        level=level,
        title=head["title"],
        kind=head["kind"],
        inputs=MappingProxyType(inputs),
        targets=MappingProxyType(targets),
    )


def _target(chosen: bool, value: Any) -> Any:
    """The most that a measure may be, or LEAST for what is ``chosen``."""
    if chosen and value == LEAST:
        return value
    read = number(value)
    return read if isinstance(value, str) else value
