"""Tasks in a terminal: all of them, one with its numbers, what answers are worth, the working."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.learner.kept import TASKS, at_terminal, notebooks
from tiledask.lab.tasks import task as task_named
from tiledask.lab.tasks.kind import run_text
from tiledask.lab.tasks.puzzle_file import puzzle_levels
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.data import shipped_json
from tiledask.plan.tables import Table

__all__ = ["list_all", "play"]


@at_terminal()
def list_all(echo: Callable[..., None]) -> tuple[int, list[dict[str, Any]]]:
    """Print puzzles, levels and exercises, with the stars of answers so far, here and in the
    notebooks; (0, what was printed)."""
    known = [each.all(TASKS) for each in notebooks()]
    texts, exercises = shipped_json("ladder.json"), shipped_json("exercises.json")

    def most(name: str, what: str) -> int:
        return max(int(tasks.get(name, {}).get(what) or 0) for tasks in known)

    def starred(head: dict[str, Any]) -> dict[str, Any]:
        return {**head, "stars": most(head["name"], "stars")}

    puzzles = [starred(_head(puzzle)) for puzzle in puzzle_levels()]
    ladder = [starred({"name": f"idle-{n}", "title": texts[n]["title"]}) for n in texts]
    graded = [starred({"name": n, "title": exercises[n]["title"]}) for n in exercises]
    solved = sum(most(each["name"], "solved") for each in puzzles)
    for shown in (puzzles, ladder, graded):
        rows = [(*list(each.values())[:-1], "★" * each["stars"]) for each in shown]
        left = [i for i, name in enumerate(shown[0]) if name != "level"]
        echo(Table(tuple(shown[0]), rows, left=left))
        if shown is puzzles:
            ladder_title = "The idle-time ladder: fresh numbers with each --seed"
            echo(f"{solved} of {len(puzzles)} solved", "", ladder_title)
        if shown is ladder:
            echo("", "Exercises of the notebooks, whose answers are run")
    return 0, [*puzzles, *ladder, *graded]


def _head(task: JudgedTask) -> dict[str, Any]:
    level = task.level if task.seed is None else task.name
    return {"level": level, "name": task.name, "title": task.title, "kind": task.kind}


@at_terminal()
def play(
    name: str,
    answers: Sequence[str],
    echo: Callable[..., None],
    hint: bool = False,
    figure: str | None = None,
    seed: int | None = None,
) -> tuple[int, dict[str, Any]]:
    """Show a task, or judge answers to it; (1 if one is refused or does not solve it, all said).

    An answer may be a file's name, or "-" for standard input. ``hint``: one more than last time.
    The working of a level of the ladder follows a right answer, or the last hint; ``seed`` draws
    its numbers.
    """
    if seed is not None and not re.fullmatch(r"idle-\d{1,9}", name):
        raise ConfigError(f"a seed draws the numbers of idle-1 to idle-12, not of {name!r}")
    task = task_named(name, seed=seed or 0)
    typed = [_typed(word) for word in answers]

    def drawn(answer: Any) -> list[str]:
        return [task.letters(answer)] if task.letters and task.letters(answer) else []

    results = [task.check(answer) for answer in typed]
    for word, answer, result in zip(answers, typed, results, strict=True):
        if len(answers) > 1:
            echo((word, ""))
        echo(*drawn(answer), *result.printed())
    if not results:
        echo(*task.printed(), *drawn(None))
    said: dict[str, Any] = {**_head(task), "task": task.question}
    if task.seed is None:
        said |= {"inputs": dict(task.inputs), "targets": dict(task.targets)}
    else:
        said |= {"seed": task.seed, "form": task.form}
    said["results"] = [result.to_dict() for result in results]
    hinted = task.hint() if hint else None
    if hinted:
        echo(str(hinted))
        said["hint"] = str(hinted)
    if task.lines and (any(results) or (hinted and hinted.number == hinted.of)):
        said["working"] = list(task.lines)
        echo(*task.working().split("\n"))
        for facts, run in task.timelines.items():
            echo("", facts, *run_text(run, "worker").split("\n"))
    if figure:
        Path(figure).write_bytes(task.draw(typed[-1] if typed else None).to_png())
    return int(not all(results)), said


def _typed(word: str) -> str:
    """The answer itself, from a file or standard input ("-") where the word names one."""
    if word == "-":
        return sys.stdin.read()
    try:
        return Path(word).read_text(encoding="utf-8")
    except OSError:  # no file, or too long for a name
        return word
