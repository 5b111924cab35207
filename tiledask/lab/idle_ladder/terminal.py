"""The ladder in a terminal: a level with the numbers of a seed, answers to it, and the working."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.lab.figure_file import check_figure, save_figure
from tiledask.lab.idle_ladder.ladder import LEVELS, idle_level
from tiledask.lab.judging.result import WRONG
from tiledask.lab.learner.kept import at_terminal
from tiledask.lab.puzzles.sketch import timeline_text
from tiledask.lab.puzzles.terminal import answer_of
from tiledask.lab.table import say

if TYPE_CHECKING:
    from rich.console import Console

    from tiledask.lab.idle_ladder.level import Run

__all__ = ["is_of_ladder", "play", "rows"]


def is_of_ladder(name: str) -> bool:
    """Whether ``name`` is meant for the ladder: "idle-3"."""
    return bool(re.fullmatch(r"idle-\d{1,9}", name))


def rows() -> list[dict]:
    """The levels, to be listed."""
    return [
        {"level": f"idle-{n}", "name": f"idle-{n}", "title": title, "kind": "idle time"}
        for n, (title, _) in LEVELS.items()
    ]


@at_terminal()
def play(
    name: str,
    answers: Sequence[str],
    console: "Console",
    hint: bool = False,
    figure: str | None = None,
    verify: bool = False,
    seed: int = 0,
) -> tuple[int, dict]:
    """Show a level, or judge answers to it; (1 if one is refused or does not solve it, all said).

    The working follows a right answer, or the last hint.
    """
    if figure:
        check_figure(figure)
    if verify:
        raise ConfigError("--verify looks at a puzzle's file; the levels of the ladder have none")
    task = idle_level(int(name.removeprefix("idle-")), seed)
    results = [task.check(answer_of(word)) for word in answers]
    if not results:
        head = f"Level {task.name}, seed {seed}: {task.title}"
        say(console, f"\n\n{task.question}\n", bold=head, wrap=True)
        if task.sheet.drawn == "gaps":  # the question is about what is drawn
            say(console, f"{_letters(task.runs[0])}\n")
        say(console, f"Answer with {task.form}.", wrap=True)
    for word, result in zip(answers, results, strict=True):
        if len(answers) > 1:
            say(console, "", bold=word)
        say(console, "", bold=result.reason, colour="green" if result else "red", wrap=True)
        for t in result.targets:
            if t.name != WRONG:
                say(console, f"  {t.name}: {t.got:g} (target {t.goal})")
        if result.score:
            say(console, result.score)
    given = str(task.hint()) if hint else ""
    if given:
        say(console, given, wrap=True)
    working = task.working()
    if any(results) or given:
        say(console, str(working), wrap=True)
        if working.lines:
            for run in task.runs:
                say(console, f"\n{run.facts}\n{_letters(run)}")
    if figure:
        save_figure(task.draw(answer_of(answers[-1]) if answers else None), figure)
    said: dict[str, Any] = {
        "level": task.name,
        "name": task.name,
        "seed": seed,
        "title": task.title,
        "kind": "idle time",
        "task": task.question,
        "form": task.form,
        "results": [result.to_dict() for result in results],
    }
    said |= {"hint": given} if given else {}
    said |= {"working": list(working.lines)} if working.lines and (any(results) or given) else {}
    return int(not all(results)), said


def _letters(run: "Run") -> str:
    return timeline_text(run.timeline, name="worker", first=1)
