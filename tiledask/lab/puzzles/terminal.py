"""Puzzles in a terminal: the levels, a level with its numbers, and what answers are worth."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console

from tiledask.lab.answer_file import answer_of
from tiledask.lab.figure_file import check_figure, save_figure
from tiledask.lab.judging.result import LEAST, WRONG, Result
from tiledask.lab.learner.kept import TASKS, at_terminal, here
from tiledask.lab.puzzles.puzzle import KINDS, Puzzle, load_puzzle, puzzle_levels
from tiledask.lab.puzzles.sketch import sketch
from tiledask.lab.table import Grid, say
from tiledask.plan.units import format_bytes

__all__ = ["list_all", "play"]

_BYTES = {"memory", "capacity", "weights", "activations"}


@at_terminal()
def list_all(console: Console) -> tuple[int, list[dict]]:
    """Print the levels, with the stars of answers so far; (0, what was printed)."""
    levels, known = puzzle_levels(), here().all(TASKS)
    found = [{**_head(p), "stars": known.get(p.name, {}).get("stars", 0)} for p in levels]
    solved = sum(known.get(p.name, {}).get("solved", False) for p in levels)
    rows = [(*list(each.values())[:4], "★" * each["stars"]) for each in found]
    console.print(Grid(("level", "name", "title", "kind", "stars"), rows, left=(1, 2, 3, 4)))
    say(console, f"{solved} of {len(levels)} solved")
    return 0, found


def _head(puzzle: Puzzle) -> dict:
    return {
        "level": puzzle.level,
        "name": puzzle.name,
        "title": puzzle.title,
        "kind": puzzle.kind,
    }


@at_terminal()
def play(
    name: str,
    answers: Sequence[str],
    console: Console,
    hint: bool = False,
    figure: str | None = None,
    verify: bool = False,
) -> tuple[int, dict]:
    """Show a puzzle, or judge answers to it; (1 if one is refused or does not solve it, all said).

    An answer may be a file's name, or "-" for standard input. ``hint``: one more than last time.
    ``verify`` looks at the puzzle itself, and 1 then says that it can not be set.
    """
    if figure:
        check_figure(figure)
    puzzle = load_puzzle(name)
    results = [puzzle.check(answer_of(word)) for word in answers]
    if not results:
        _print_puzzle(puzzle, console)
        drawing = sketch(puzzle)
        if drawing:
            say(console, f"\n{drawing}")
    for word, result in zip(answers, results, strict=True):
        if len(answers) > 1:
            say(console, "", bold=word)
        _print_result(puzzle, answer_of(word), result, console)
    hinted = puzzle.hint() if hint else None
    if hinted:
        say(console, str(hinted), wrap=True)
    wrong = puzzle.verify() if verify else ()
    for sentence in wrong or (("it can be set: solvable, and not at once",) if verify else ()):
        say(console, f"{puzzle.name}: {sentence}")
    if figure:
        save_figure(puzzle.draw(answer_of(answers[-1]) if answers else None), figure)
    said = {
        **_head(puzzle),
        "task": puzzle.question,
        "inputs": dict(puzzle.inputs),
        "targets": dict(puzzle.targets),
        "results": [result.to_dict() for result in results],
    }
    said |= {"hint": str(hinted)} if hinted else {}
    said |= {"wrong": list(wrong)} if verify else {}
    return int(bool(wrong) or not all(results)), said


def _print_puzzle(puzzle: Puzzle, console: Console) -> None:
    """The task, its numbers, its targets and how to answer."""
    title = f"Level {puzzle.level}: {puzzle.title}"
    say(console, f"\n\n{puzzle.question}\n", bold=title, wrap=True)
    measures = KINDS[puzzle.kind].measures
    # the inputs in words
    facts = (
        []
        if puzzle.kind == "question"
        else [(name.replace("_", " "), _value(name, v)) for name, v in puzzle.inputs.items()]
    )
    rows = [
        *facts,
        *[
            (measures[name], "the least that will do" if wanted == LEAST else f"at most {wanted:g}")
            for name, wanted in puzzle.targets.items()
        ],
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        say(console, f"  {name:{width}}  {first}")
        for line in more:
            say(console, f"  {'':{width}}  {line}")
    say(console, f"\nAnswer with {KINDS[puzzle.kind].how}.", wrap=True)


def _print_result(puzzle: Puzzle, answer: Any, result: Result, console: Console) -> None:
    """The answer drawn in letters, and what it is worth."""
    drawing = sketch(puzzle, answer)
    if drawing:
        say(console, drawing)
    say(console, "", bold=result.reason, colour="green" if result else "red", wrap=True)
    first = next((t for t in result.targets if not t.met), None)  # which the reason has said
    for t in result.targets:
        if t.name == WRONG:
            continue
        best = f", best {t.beside}" if t.beside and result else ""
        off = f": {t.offence}" if t.offence and t is not first else ""
        say(console, f"  {t.name}: {t.got:g} (target {t.goal}{best}){off}", wrap=True)
    if result.score:
        say(console, result.score)


def _value(name: str, value: Any) -> str:
    """A value as people write it: "2, 22 x 1, 4"."""
    if isinstance(value, dict):
        parts = (
            f"{key} {v['from']} to {v['to']}"
            if isinstance(v, dict)
            else f"{key} {', '.join(map(str, v))}"
            for key, v in value.items()
        )
        return "; ".join(parts)
    if isinstance(value, list):
        runs = ((key, len(list(same))) for key, same in groupby(value))
        return ", ".join(
            f"{n} x {_value(name, key)}" if n > 2 else ", ".join([_value(name, key)] * n)
            for key, n in runs
        )
    if name in _BYTES:
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
