"""Tasks in a terminal: all of them, one with its numbers, what answers are worth, the working."""

import re
from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.files import answer_of, check_figure, save_figure
from tiledask.lab.idle_ladder import LEVELS, idle_level
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.judging.result import LEAST, WRONG, Result
from tiledask.lab.learner.kept import TASKS, at_terminal, here
from tiledask.lab.puzzles.puzzle import KINDS, Puzzle, load_puzzle, puzzle_levels
from tiledask.lab.puzzles.sketch import letters_a_second, sketch, timeline_text
from tiledask.plan.tables import Console, Table
from tiledask.plan.units import format_bytes

__all__ = ["list_all", "numbers_of", "play"]

_BYTES = {"memory", "capacity", "weights", "activations"}


Task = Puzzle | IdleLevel


@at_terminal()
def list_all(console: Console) -> tuple[int, list[dict[str, Any]]]:
    """Print puzzles and levels, with the stars of answers so far; (0, what was printed)."""
    known = here().all(TASKS)

    def starred(head: dict[str, Any]) -> dict[str, Any]:
        return {**head, "stars": known.get(head["name"], {}).get("stars", 0)}

    puzzles = [starred(_head(puzzle)) for puzzle in puzzle_levels()]
    ladder = [starred({"name": f"idle-{n}", "title": title}) for n, (title, _) in LEVELS.items()]
    solved = sum(known.get(each["name"], {}).get("solved", False) for each in puzzles)
    for shown in (puzzles, ladder):
        rows = [(*list(each.values())[:-1], "★" * each["stars"]) for each in shown]
        left = [i for i, name in enumerate(shown[0]) if name != "level"]
        console.print(Table(tuple(shown[0]), rows, left=left))
        if shown is puzzles:
            ladder_title = "The idle-time ladder: fresh numbers with each --seed"
            console.print(f"{solved} of {len(puzzles)} solved", "", ladder_title)
    return 0, [*puzzles, *ladder]


def _head(puzzle: Puzzle) -> dict[str, Any]:
    return {name: getattr(puzzle, name) for name in ("level", "name", "title", "kind")}


@at_terminal()
def play(
    name: str,
    answers: Sequence[str],
    console: Console,
    hint: bool = False,
    figure: str | None = None,
    seed: int | None = None,
) -> tuple[int, dict[str, Any]]:
    """Show a task, or judge answers to it; (1 if one is refused or does not solve it, all said).

    An answer may be a file's name, or "-" for standard input. ``hint``: one more than last time.
    The working of a level of the ladder follows a right answer, or the last hint; ``seed`` draws
    its numbers.
    """
    level = re.fullmatch(r"idle-(\d{1,9})", name)
    if seed is not None and not level:
        raise ConfigError(f"a seed draws the numbers of idle-1 to idle-12, not of {name!r}")
    if figure:
        check_figure(figure)
    task: Task = idle_level(int(level[1]), seed or 0) if level else load_puzzle(name)
    typed = [answer_of(word) for word in answers]
    results = [task.check(answer) for answer in typed]
    if not results:
        _print_task(task, console)
    for word, answer, result in zip(answers, typed, results, strict=True):
        if len(answers) > 1:
            console.print((word, ""))
        _print_result(task, answer, result, console)
    said = _said(task) | {"results": [result.to_dict() for result in results]}
    hinted = task.hint() if hint else None
    if hinted:
        console.print(str(hinted))
        said["hint"] = str(hinted)
    if isinstance(task, IdleLevel) and (any(results) or (hinted and hinted.number == hinted.of)):
        said["working"] = _print_working(task, console)
    if figure:
        save_figure(task.draw(typed[-1] if typed else None), figure)
    return int(not all(results)), said


def _said(task: Task) -> dict[str, Any]:
    """What a task is, for JSON."""
    if isinstance(task, Puzzle):
        numbers = {"inputs": dict(task.inputs), "targets": dict(task.targets)}
        return {**_head(task), "task": task.question, **numbers}
    head = {"level": task.name, "name": task.name, "seed": task.seed, "title": task.title}
    return head | {"kind": "idle time", "task": task.question, "form": task.form}


def _print_task(task: Task, console: Console) -> None:
    """The task, its numbers, its targets and how to answer, and what is drawn of it."""
    seed = f", seed {task.seed}" if isinstance(task, IdleLevel) else ""
    head = f"Level {task.name if seed else task.level}{seed}"
    console.print((f"{head}: {task.title}", ""), "", task.question, "")
    if isinstance(task, IdleLevel) and task.shows_run:  # it is asked about
        console.print(f"{_letters(task.runs[0])}\n")
    if isinstance(task, Puzzle):
        rows = numbers_of(task)
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            console.print(f"  {name:{width}}  " + value.replace("\n", f"\n{'':{width + 4}}"))
        console.print("")
    console.print(f"Answer with {task.form}.")
    if isinstance(task, Puzzle) and (drawing := sketch(task)):
        console.print(f"\n{drawing}")


def numbers_of(task: Puzzle) -> list[tuple[str, str]]:
    """The inputs and targets of a puzzle, (name, value in words)."""
    rows = [(name.replace("_", " "), _value(name, v)) for name, v in task.inputs.items()]
    for name, wanted in task.targets.items():
        most = "the least that will do" if wanted == LEAST else f"at most {wanted:g}"
        rows.append((KINDS[task.kind].measures[name], most))
    return rows


def _print_result(task: Task, answer: Any, result: Result, console: Console) -> None:
    """The answer drawn in letters, and what it is worth."""
    puzzle = isinstance(task, Puzzle)
    if isinstance(task, Puzzle) and (drawing := sketch(task, answer)):
        console.print(drawing)
    console.print((result.reason, ""))
    first = next((t for t in result.targets if not t.met), None)  # which the reason has said
    for t in result.targets:
        if t.name == WRONG:
            continue
        best = f", best {t.beside}" if puzzle and t.beside and result else ""
        off = f": {t.offence}" if puzzle and t.offence and t is not first else ""
        console.print(f"  {t.name}: {t.got:g} (target {t.goal}{best}){off}")
    if result.score:
        console.print(result.score)


def _print_working(task: IdleLevel, console: Console) -> list[str]:
    """The lines of the working, and with them the runs."""
    console.print(*task.working().split("\n"))
    for run in task.runs:
        console.print(f"\n{run.facts}\n{_letters(run)}")
    return list(task.lines)


def _letters(run: Run) -> str:
    """The run in letters, where they would not jam."""
    timeline = run.timeline
    if median(timeline.end - timeline.start) * letters_a_second(timeline) >= 2:
        return timeline_text(timeline, name="worker")
    return f"0 s to {timeline.makespan:g} s, too long for letters; --figure FILE draws it"


def _value(name: str, value: Any) -> str:
    """A value as people write it: "2, 22 x 1, 4"."""
    if name == "place" and value != "free":
        return ", ".join(f"device {d + 1}" for d in value)
    if isinstance(value, dict):
        return "; ".join(f"{key} {_value(key, each)}" for key, each in value.items())
    if isinstance(value, list):
        parts: list[str] = []
        for key, same in groupby(value):
            each, n = _value(name, key), len(list(same))
            parts += [f"{n} x {each}"] if n > 2 else [each] * n
        return ", ".join(parts)
    if name in _BYTES:
        return format_bytes(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
