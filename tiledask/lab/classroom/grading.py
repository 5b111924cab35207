"""What the answers in learners' notebooks are worth.

Nothing that learners wrote runs: an answer that is more than a value, such as a function, is for
whoever teaches to run, or for nbgrader.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.learner.copies import shipped_notebooks
from tiledask.lab.tasks import task

__all__ = ["Grade", "grade", "judged"]

_NAME = re.compile(r"(\d\d_[a-z0-9_]+?)(?:-\d+)?\.ipynb")


class Grade(NamedTuple):
    """One learner's answer to one task."""

    learner: str
    """The folder of the notebook, within the one that is graded; "." for that one itself."""
    notebook: str
    task: int
    """Of the notebook, counted from 1."""
    stars: int
    """0 to 3."""
    said: str
    """The verdict in words; why there is none, where the answer could not be judged."""


def grade(folder: str | Path) -> list[Grade]:
    """A Grade for each task in each notebook below ``folder``, learner by learner.

    ConfigError where there is no notebook of the course.
    """
    course = {path.stem: path for path in shipped_notebooks().glob("[0-9]*.ipynb")}
    handed_in: dict[str, dict[str, dict[int | str, str]]] = {}
    for path in sorted(Path(folder).rglob("*.ipynb")):
        named = _NAME.fullmatch(path.name)
        if named and named[1] in course and ".ipynb_checkpoints" not in path.parts:
            learner = str(path.parent.relative_to(folder))
            handed_in.setdefault(named[1], {})[learner] = _answers(path)
    if not handed_in:
        raise ConfigError(
            f"there is no notebook of the course in {str(folder)!r} or below it; give the folder "
            f"that has learners' notebooks under their own names, such as 07_idle_time.ipynb"
        )
    return sorted(
        # ids are others where the course was handed out in another version
        Grade(learner, name, n, *judged(asked, answers.get(cell) or answers.get(n, "")))
        for name, learners in handed_in.items()
        for n, (cell, asked) in enumerate(_tasks(course[name]), 1)
        for learner, answers in learners.items()
    )


def _answers(path: Path) -> dict[int | str, str]:
    """Number of a task, and the id of its cell -> the source of the answer; none of what is no
    notebook."""
    found: dict[int | str, str] = {}
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        asked = [cell for cell in cells if "answer" in cell["metadata"].get("tags", ())]
        for number, cell in enumerate(asked, 1):
            found[number] = found[cell.get("id", number)] = "".join(cell["source"])
    return found


def _tasks(path: Path) -> Iterator[tuple[str, Any]]:
    """Of each answer in a notebook of the course: the id of its cell, and the task that the cell
    makes, by a call of td.task with values alone."""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if "answer" in cell["metadata"].get("tags", ()):
            nodes = ast.walk(ast.parse("".join(cell["source"])))
            call = next(node for node in nodes if isinstance(node, ast.Call))
            given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
            yield cell.get("id", ""), task(*map(ast.literal_eval, call.args), **given)


def judged(asked: Any, source: str) -> tuple[int, str]:
    """(stars, the verdict) of the value that the last line of a cell gives its answer."""
    if not source:
        return 0, "not judged: no such cell: it was removed"
    try:
        value = ast.literal_eval(ast.parse(source).body[-1].value)  # type: ignore[attr-defined]
    except (SyntaxError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return 0, "not judged: an answer that has to run"
    try:
        result = asked.result(value)
    except Exception as error:  # whatever an answer of the wrong kind leads to
        return 0, f"{type(error).__name__}: {error}"
    return result.stars, result.reason
