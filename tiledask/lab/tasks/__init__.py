"""Tasks that judge answers: puzzles, the idle-time ladder, and the walkthroughs' exercises.

    task = td.task("24-on-4")         # a puzzle; or a level of theirs, or a JSON file of one's own
    task = td.task("idle-3", seed=7)  # a level of the idle-time ladder: fresh numbers
    task = td.task("cannon")          # an exercise, with what it is about, as in
    task = td.task("hybrid-lenet", devices=4)
    task.draw(answer)
    task.check(answer)                # a Result: quiet if not attempted
    task.hint()                       # one more hint than before
    task.check(answer).require()      # raises unless every target is met

No answer is stored; the best one is found by trying or by proof. terminal has the words of
`tiledask puzzle`.
"""

import re
from importlib import import_module
from typing import Any

from tiledask.extras import needed_for
from tiledask.lab.idle_ladder import idle_level
from tiledask.lab.judging import JudgedTask
from tiledask.lab.puzzles import load_puzzle, puzzle_levels, puzzle_names
from tiledask.plan.data import shipped_json

__all__ = [
    "exercise_names",
    "idle_level",
    "load_puzzle",
    "puzzle_levels",
    "puzzle_names",
    "task",
]


def exercise_names() -> tuple[str, ...]:
    """Names of the exercises, for `task`."""
    return tuple(shipped_json("exercises.json"))


def task(name: Any, *about: Any, seed: int = 0, **named: Any) -> JudgedTask:
    """A task by its name: of a puzzle, of a level of the ladder, of an exercise.

    Parameters
    ----------
    name
        "24-on-4", or what `load_puzzle` takes; "idle-1" to "idle-12"; one of `exercise_names`.
    about, named
        What an exercise is about: its arguments.
    seed
        Draws the numbers of a level, and what an exercise draws.

    >>> task("24-on-4").check("1-6 | 7-12 | 13-18 | 19-24").stars
    3
    >>> task("idle-3", seed=7).hint().of, task("cannon").name
    (3, 'Cannon by shifts')
    """
    if isinstance(name, str) and (level := re.fullmatch(r"idle-(\d{1,9})", name)):
        return idle_level(int(level[1]), seed)
    exercises = shipped_json("exercises.json")
    if name not in exercises:
        return load_puzzle(name, *about, **named)
    with needed_for(f"td.task({name!r})"):
        home = import_module(f"tiledask.lab.exercises.{exercises[name]['module']}")
    drawn = {"seed": seed} if seed else {}
    made: JudgedTask = getattr(home, name.replace("-", "_"))(*about, **named, **drawn)
    return made
