"""The ladder in a terminal: a level with the numbers of a seed, answers to it, and the working."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console

from tiledask.errors import ConfigError
from tiledask.lab.answer_file import answer_of
from tiledask.lab.figure_file import check_figure, save_figure
from tiledask.lab.idle_ladder.ladder import LEVELS, idle_level
from tiledask.lab.idle_ladder.spec import Run
from tiledask.lab.judging.result import WRONG
from tiledask.lab.learner.kept import TASKS, at_terminal, here
from tiledask.lab.puzzles.sketch import letters_a_second, timeline_text
from tiledask.lab.table import Grid, say

__all__ = ["is_of_ladder", "list_all", "play"]


def is_of_ladder(name: str) -> bool:
    """Whether ``name`` is meant for the ladder: "idle-3"."""
    return bool(re.fullmatch(r"idle-\d{1,9}", name))


@at_terminal()
def list_all(console: Console) -> tuple[int, list[dict]]:
    """Print the levels, with the stars of answers so far; (0, what was printed)."""
    known = here().all(TASKS)
    levels = [{"name": f"idle-{n}", "title": title} for n, (title, _) in LEVELS.items()]
    found = [{**each, "stars": known.get(each["name"], {}).get("stars", 0)} for each in levels]
    rows = [(each["name"], each["title"], "★" * each["stars"]) for each in found]
    say(console, "\nThe idle-time ladder: fresh numbers with each --seed", wrap=True)
    console.print(Grid(("name", "title", "stars"), rows, left=(0, 1, 2)))
    return 0, found


@at_terminal()
def play(
    name: str,
    answers: Sequence[str],
    console: Console,
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
            if t.name != WRONG and not t.short:
                say(console, f"  {t.name}: {t.got:g} (target {t.goal})")
        if result.score:
            say(console, result.score)
    hinted = task.hint() if hint else None
    if hinted:
        say(console, str(hinted), wrap=True)
    working = task.working() if any(results) or hinted else None
    if working:
        say(console, str(working), wrap=True)
        if working.lines:
            for run in task.runs:
                drawn = _letters(run)
                if task.sheet.drawn == "timetable":
                    drawn = re.sub(r"0 s to (\d+) s, 1 s is", r"\1 slots, one is", drawn)
                say(console, f"\n{run.facts}\n{drawn}")
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
    said |= {"hint": str(hinted)} if hinted else {}
    said |= {"working": list(working.lines)} if working else {}
    return int(not all(results)), said


def _letters(run: Run) -> str:
    """The run in letters, or where they would jam, a line in words for each worker."""
    timeline = run.timeline
    if median(timeline.end - timeline.start) * letters_a_second(timeline) >= 2:
        return timeline_text(timeline, name="worker", first=1)
    rows = []
    for w, (busy, idle) in enumerate(
        zip(timeline.busy_per_device, timeline.idle_per_device, strict=True)
    ):
        kinds = timeline.kind[timeline.device == w].tolist()
        counts = f"forwards {kinds.count('F')}, backwards {kinds.count('B')}"
        rows.append(f"worker {w + 1}  {counts}: {busy:g} s at work, {idle:g} s idle")
    whole = f"0 s to {timeline.makespan:g} s, too long for letters; --figure FILE draws it"
    return "\n".join([*rows, f"{'':9} {whole}"])
