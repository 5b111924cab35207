"""Tasks that judge answers: puzzles, the idle-time ladder, and the notebooks' exercises.

    task = td.task("24-on-4")         # a puzzle; or a level of theirs, or a JSON file of one's own
    task = td.task("idle-3", seed=7)  # a level of the idle-time ladder: fresh numbers
    task = td.task("cannon")          # an exercise
    task.draw(answer)
    task.check(answer)                # a Result: quiet if not attempted
    task.hint()                       # one more hint than before
    task.check(answer).require()      # raises unless every target is met

No answer is stored; the best one is found by trying or by proof.

task, result     what a task is; what an answer to it is worth: targets met and missed, stars
puzzle_file      a puzzle from its file; kind: what a kind of puzzle is; one in each of
                 partition, order
ladder, fields   twelve levels of idle time; what is filled in
exercises        judges that run an answer
figures          answers drawn
play             the words of `tiledask puzzle`
"""

import re
from importlib import import_module
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.extras import needed_for
from tiledask.lab.tasks.ladder import LEVELS, idle_level
from tiledask.lab.tasks.puzzle_file import load_puzzle, puzzle_levels, puzzle_names
from tiledask.lab.tasks.task import JudgedTask, task_of
from tiledask.plan.data import meant, shipped_json

__all__ = ["exercise_names", "idle_level", "load_puzzle", "puzzle_levels", "puzzle_names", "task"]


def exercise_names() -> tuple[str, ...]:
    """Names of the exercises, for `task`."""
    return tuple(shipped_json("exercises.json"))


def task(name: Any, seed: int = 0) -> JudgedTask:
    """A task by its name: of a puzzle, of a level of the ladder, of an exercise.

    Parameters
    ----------
    name
        "24-on-4", or what `load_puzzle` takes; "idle-1" to "idle-12"; one of `exercise_names`; or a
        function that asserts what holds of an answer and returns in words what is right.
    seed
        Draws the numbers of a level, and what an exercise draws.

    >>> task("24-on-4").check("1-6 | 7-12 | 13-18 | 19-24").stars
    3
    >>> task("idle-3", seed=7).hint().of, task("cannon").name
    (3, 'Cannon by shifts')
    """
    if callable(name):
        return task_of(name)
    if isinstance(name, str) and (level := re.fullmatch(r"idle-(\d{1,9})", name)):
        return idle_level(int(level[1]), seed)
    if isinstance(name, str) and name in exercise_names():
        with needed_for(f"td.task({name!r})"):
            exercises = import_module("tiledask.lab.tasks.exercises")
        made: JudgedTask = getattr(exercises, name.replace("-", "_"))(seed=seed)
        return made
    levels = [f"idle-{n}" for n in range(1, 1 + len(LEVELS))]
    known = [*puzzle_names(), *levels, *exercise_names()]
    if isinstance(name, str) and not re.search(r"^\d+$|\.json$", name) and name not in known:
        raise ConfigError(
            f"no task is called {short(name)}; {meant(name, known)}`tiledask puzzle` lists them: "
            f"puzzles such as {known[0]}, idle-1 to {levels[-1]}, {', '.join(exercise_names())}"
        )
    return load_puzzle(name)
