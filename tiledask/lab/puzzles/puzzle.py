"""A puzzle, read from a file, and the check that works out what an answer to it is worth."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.judging.result import LEAST, OPTIMUM, Target
from tiledask.lab.placing import PlacedAnswer
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.puzzles.choices import CHOICE
from tiledask.lab.puzzles.compositions import COMPOSITION
from tiledask.lab.puzzles.cuts import CUT
from tiledask.lab.puzzles.fields import text, texts, whole
from tiledask.lab.puzzles.kind import Kind, PuzzleSpec
from tiledask.lab.puzzles.orders import ORDER
from tiledask.plan.data import Fields, meant, names, read, read_named
from tiledask.plan.whole import is_whole

__all__ = ["KINDS", "Puzzle", "load_puzzle", "puzzle_levels", "puzzle_names"]

KINDS: dict[str, Kind] = {
    "partition": CUT,
    "choice": CHOICE,
    "order": ORDER,
    "composition": COMPOSITION,
}
_KEYS = {"level", "title", "kind", "task", "inputs", "targets"}
_MAY = {"hints", "source"}


class Puzzle(PuzzleSpec):
    """A task, its numbers, and the targets that an answer has to meet."""

    def judge(self, answer: Any) -> list[Target]:
        """The targets that ``answer`` meets or misses; ConfigError or RuleError if it is none."""
        kind = KINDS[self.kind]
        measured = kind.measure(self.inputs, kind.read(self.inputs, answer))
        limits = self._limits()
        # beside a number that stays unsaid, the best of the others would say it
        unsaid = any(
            wanted == LEAST and measured.values[name] != limits[name]
            for name, wanted in self.targets.items()
        )
        best = {} if unsaid else kind.best(self.inputs, limits)
        return [
            Target(
                kind.measures[name],
                limits[name],
                measured.values[name],
                best[name].value if name in best else None,
                best[name].yardstick if name in best else OPTIMUM,
                wanted == LEAST,
                measured.remarks,
                measured.where.get(name, ""),
            )
            for name, wanted in self.targets.items()
        ]

    def figure(self, answer: Any) -> Figure:
        """A figure of ``answer``, right or wrong; of the empty task for None."""
        from tiledask.lab.puzzles import figures

        return getattr(figures, f"draw_{self.kind}")(self, answer, self.result(answer))

    def place(self) -> PlacedAnswer:
        """The answer as something that is moved with mouse and keyboard in JupyterLab.

        Raises ConfigError for a kind of puzzle whose answer is typed.
        """
        kind = KINDS[self.kind]
        if not kind.page:
            placed = ", ".join(name for name, each in KINDS.items() if each.page)
            raise ConfigError(
                f"{self.name} is a {self.kind}, and only {placed} are placed; type {kind.how}"
            )
        return PlacedAnswer(self.name, kind.how, kind.page, kind.setup(self.inputs, self._limits()))

    def solve(self) -> Any:
        """An answer that meets every target, found by the exact methods; None if there is none.

        >>> puzzle = load_puzzle("24-on-4")
        >>> puzzle.check(puzzle.solve()).stars
        3
        """
        return KINDS[self.kind].solve(self.inputs, self._limits())

    def _limits(self) -> dict[str, float]:
        """The targets as numbers; what is to be the least is worked out, inf if nothing will do."""
        limits = {n: math.inf if w == LEAST else w for n, w in self.targets.items()}
        least = [name for name, wanted in self.targets.items() if wanted == LEAST]
        best = KINDS[self.kind].best(self.inputs, limits) if least else {}
        return limits | {name: best[name].value for name in least if name in best}

    @property
    def heading(self) -> str:
        return self.title


def puzzle_names() -> tuple[str, ...]:
    """Names of the puzzles there are, from easy to hard.

    >>> puzzle_names()[0]
    '24-on-4'
    """
    return tuple(name for _, name in _by_level())


def puzzle_levels() -> tuple[Puzzle, ...]:
    """The puzzles there are, level 1 first."""
    return tuple(map(load_puzzle, puzzle_names()))


def _by_level() -> list[tuple[int, str]]:
    """(level, name) by the files alone: making a puzzle of each takes many times as long."""
    return sorted((read_named("puzzles", name).values["level"], name) for name in names("puzzles"))


def load_puzzle(name: str | int | os.PathLike | Mapping[str, Any]) -> Puzzle:
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
        return _read(str(name.get("title", "a puzzle")), {"level": 1, **name}, "the puzzle")
    if isinstance(name, os.PathLike) or str(name).endswith(".json"):
        fields = read(name)
        return _read(Path(name).stem, fields.values, fields.where)
    if is_whole(name) or re.fullmatch(r"\d{1,9}", str(name)):
        level = int(name)
        levels = dict(_by_level())
        if level not in levels:
            raise ConfigError(f"there is no level {level}; the levels are 1 to {max(levels)}")
        return load_puzzle(levels[level])
    return _read(str(name), read_named("puzzles", str(name)).values)


def _read(name: str, values: dict, where: str = "") -> Puzzle:
    fields = Fields(values, where or f"puzzle {name!r}")
    for key in sorted(set(values) ^ _KEYS):
        if key in _KEYS:
            raise fields.fail(key, "is missing; add it")
        if key not in _MAY:
            raise fields.fail(key, f"is not known here; {_near(key, _KEYS | _MAY)}")
    kind = KINDS.get(fields.text("kind"))
    if kind is None:
        raise fields.fail("kind", f"is {short(values['kind'])}; there are {', '.join(KINDS)}")
    inputs = fields.object("inputs")
    for key in inputs.values:
        if key not in kind.readers:
            raise inputs.fail(key, f"is not known here; {_near(key, kind.readers)}")
    for key in kind.needed:
        if key not in inputs.values:
            raise inputs.fail(key, "is missing; add it")
    read_inputs = {key: _take(inputs, key, kind.readers[key]) for key in inputs.values}
    targets = _read_targets(fields, kind)
    try:
        kind.ready(read_inputs)
    except (ConfigError, RuleError) as error:
        raise fields.fail("inputs", f"cannot be a puzzle: {error}") from None
    hints = _take(fields, "hints", texts) if "hints" in values else []
    return Puzzle(
        name=name,
        question=_take(fields, "task", text),
        form=kind.how,
        hints=tuple(hints),
        source=_take(fields, "source", text) if "source" in values else "",
        level=_take(fields, "level", whole(1, 999)),
        title=_take(fields, "title", text),
        kind=values["kind"],
        inputs=MappingProxyType(read_inputs),
        targets=MappingProxyType(targets),
    )


def _take(fields: Fields, key: str, reader: Any) -> Any:
    try:
        return reader(fields.values[key])
    except ValueError as error:
        shown = repr(fields.values[key])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise fields.fail(key, f"{error}; got {shown}") from None


def _read_targets(fields: Fields, kind: Kind) -> dict[str, float]:
    targets = fields.object("targets")
    if not targets.values:
        raise fields.fail("targets", f"needs one or more of {', '.join(kind.measures)}")
    for key in targets.values:
        if key not in kind.measures:
            raise targets.fail(key, f"is not known here; {_near(key, kind.measures)}")
    for key, value in targets.values.items():
        if value == LEAST:
            if key not in fields.values["inputs"].get("open", {}):
                raise targets.fail(key, f"may be {LEAST!r} only where {key} is what is chosen")
            continue
        targets.number(key)
    return dict(targets.values)


def _near(key: str, known: Any) -> str:
    return f"{meant(key, known)}known: {', '.join(sorted(known))}"
