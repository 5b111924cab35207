"""A puzzle, read from a file: a task that works out what an answer to it is worth."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.commands.partition import cut_text
from tiledask.lab.course.question import Input
from tiledask.lab.tasks import order, partition
from tiledask.lab.tasks.kind import INPUTS, Inputs, run_text
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.data import Fields, meant, names, read, read_named, shipped_json
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole

__all__ = ["KINDS", "load_puzzle", "puzzle_levels", "puzzle_names"]

_NUMBER = Input(0.0, "a number", 0)
KINDS: dict[str, Any] = {"partition": partition, "order": order}
"""Kind -> the module with its functions, as kind.py says."""


# -- files -----------------------------------------------------------------------------------------


def puzzle_names() -> tuple[str, ...]:
    """Names of the puzzles there are, from easy to hard.

    >>> puzzle_names()[0]
    '24-on-4'
    """
    # by the files alone: making a puzzle of each takes many times as long
    every = names("puzzles")
    return tuple(sorted(every, key=lambda name: read_named("puzzles", name).values["level"]))


def puzzle_levels() -> tuple[JudgedTask, ...]:
    """The puzzles there are, level 1 first."""
    return tuple(map(load_puzzle, puzzle_names()))


def load_puzzle(name: str | int | os.PathLike[str] | Mapping[str, Any]) -> JudgedTask:
    """The puzzle with this name or level, or of a local JSON file (a path, or a name in .json), or
    of the same keys as a mapping: its title is its name then, and it needs no level.

    ConfigError if there is none, or if its file is not a puzzle; the message names the key.
    nbs/README.md says how to write one.

    >>> puzzle = load_puzzle("24-on-4")
    >>> puzzle.check("1-6 | 7-12 | 13-18 | 19-24").reason
    'Solved: every target is met.'
    >>> bool(puzzle.check(None)), puzzle.check(puzzle.solve()).stars
    (False, 3)
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


def _read(name: str, fields: Fields) -> JudgedTask:
    title, kind_name, question = (fields.take(str, key) for key in ("title", "kind", "task"))
    level, hints = fields.take(int, "level"), fields.take(tuple[str, ...], "hints", ())
    fields.take(str, "source", "")
    if kind_name not in KINDS:
        raise fields.fail("kind", f"must be one of {', '.join(KINDS)}, got {short(kind_name)}")
    kind, given, wanted = KINDS[kind_name], fields.object("inputs"), fields.object("targets")
    fields.done()
    about = shipped_json("puzzle_kinds.json")[kind_name]
    known = {key: INPUTS[key] for key in about["needed"] + about["optional"]}
    inputs, measures = _values(given, known, about["needed"]), about["measures"]
    targets = _values(wanted, dict.fromkeys(measures, _NUMBER))
    if not targets:
        raise fields.fail("targets", f"has none of {', '.join(measures)}; add one")
    try:
        kind.check_inputs(inputs)
    except (ConfigError, RuleError) as error:
        raise fields.fail("inputs", f"cannot be a puzzle: {error}") from None
    return JudgedTask(
        name=name,
        title=title,
        question=question,
        form=about["form"],
        hints=hints,
        kind=kind_name,
        level=level,
        inputs=MappingProxyType(inputs),
        targets=MappingProxyType(targets),
        numbers=_in_words(given.values, targets, measures),
        **_functions(kind, inputs, targets, measures),
    )


def _functions(
    kind: Any, inputs: Inputs, targets: Mapping[str, Any], measures: Mapping[str, str]
) -> dict[str, Any]:
    """What judges an answer, finds one and draws one, by fields of a JudgedTask. ``measures``: name
    in the file -> name for people."""
    its_run = getattr(kind, "run", None)

    def judge(answer: Any) -> list[Target]:
        measured = kind.measure(inputs, kind.read(inputs, answer))
        best = kind.best(inputs, targets)
        return [
            Target(measures[measure], most, got, best.get(measure), why=why)
            for measure, most in targets.items()
            for got, why in [measured[measure]]
        ]

    def solve() -> Any:
        answer = kind.solve(inputs, targets)
        return answer if answer and all(target.met for target in judge(answer)) else None

    def shown(answer: Any, layers: Callable[[Any], Any], run: Callable[[Any], Any]) -> Any:
        """The answer, or what the task shows, drawn by ``layers`` or ``run``; None: not at all."""
        answer = inputs.get("shown") if answer is None else answer
        try:
            return run(its_run(inputs, answer)) if its_run else layers(answer)
        except (ConfigError, RuleError):
            return None

    def figure(answer: Any, title: str) -> Any:
        from tiledask.lab.tasks import figures

        layers = partial(figures.draw_layers, inputs, targets, title=title)
        return shown(answer, layers, partial(figures.draw_run, targets=targets, title=title))

    def letters(answer: Any) -> str:
        return shown(answer, partial(cut_text, inputs), run_text) or ""

    return {"judge": judge, "solve": solve, "figure": figure, "letters": letters}


def _values(
    fields: Fields, known: Mapping[str, Input], needed: Iterable[str] = ()
) -> dict[str, Any]:
    """The value of every key, read as what is ``known`` of it says; ConfigError for one that is
    missing, unknown, or refused."""
    found = {}
    for key in [*(key for key in needed if key not in fields.values), *fields.values]:
        if key not in fields.values:
            raise fields.fail(key, "is missing; add it")
        if key not in known:
            others = f"{meant(key, known)}known: {', '.join(sorted(known))}"
            raise fields.fail(key, f"is not known here; {others}")
        try:
            found[key] = known[key].read("", fields.values[key])
        except ConfigError as error:
            raise fields.fail(key, str(error)) from None
    return found


def _in_words(
    given: Mapping[str, Any], targets: Mapping[str, Any], measures: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(name, value) of inputs, as they are ``given``, and of targets."""
    rows = [(name.replace("_", " "), _value(name, value)) for name, value in given.items()]
    return rows + [(measures[name], f"at most {most:g}") for name, most in targets.items()]


def _value(name: str, value: Any) -> str:
    """A value as people write it: "2, 22 x 1, 4"."""
    if isinstance(value, list):
        return ", ".join(_value(name, each) for each in value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{value}"
    if name == "place":
        return f"device {value}"
    return format_bytes(value) if INPUTS.get(name, _NUMBER).unit == "bytes" else f"{value:g}"
