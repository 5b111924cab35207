"""What the answers in learners' notebooks are worth.

    learners' notebooks --- the answers, as they are written ---.
                                                                v
    the course's own notebook --- what makes its tasks ---> they judge them ---> stars

Nothing that learners wrote runs: an answer that is more than a value, such as a function, is for
whoever teaches to run, or for nbgrader.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.learner.copies import walkthroughs

__all__ = ["Grade", "as_csv", "grade", "judged", "made_for", "task_of"]

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
    course = {path.stem: path for path in walkthroughs().glob("[0-9]*.ipynb")}
    handed_in: dict[str, dict[str, dict[int | str, str]]] = {}
    for path in sorted(Path(folder).rglob("*.ipynb")):
        named = _NAME.fullmatch(path.name)
        if named and named[1] in course and ".ipynb_checkpoints" not in path.parts:
            learner = str(path.parent.relative_to(folder))
            handed_in.setdefault(named[1], {})[learner] = _answers(path)
    if not handed_in:
        raise ConfigError(
            f"there is no walkthrough in {str(folder)!r} or below it; give the folder that has "
            f"learners' notebooks under their own names, such as 16_idle_time.ipynb"
        )
    return sorted(
        # ids are others where the course was handed out in another version
        Grade(learner, name, n, *judged(task, answers.get(cell) or answers.get(n, "")))
        for name, learners in handed_in.items()
        for n, (cell, task) in enumerate(_tasks(course[name]), 1)
        for learner, answers in learners.items()
    )


def as_csv(grades: Iterable[Grade]) -> str:
    """A line for each grade: learner, notebook, task, stars, said."""
    out = io.StringIO()
    csv.writer(out).writerows([Grade._fields, *grades])
    return out.getvalue()


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
    """Of each task in a notebook of the course: the id of its cell, and the task, made by those
    statements before it that it comes from."""
    before: list[ast.stmt] = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code" and "solution" not in tags:
            before += (here := ast.parse("".join(cell["source"])).body)
            if "answer" in tags:
                name, there = task_of(here), dict[str, Any]()
                exec(compile(ast.Module(made_for(name, before), []), path.stem, "exec"), there)
                yield cell.get("id", ""), there[name]


def task_of(cell: Iterable[ast.stmt]) -> str:
    """The name of the task in an answer's cell: it is the last that is assigned before the answer.

    >>> task_of(ast.parse("data = 1; exercise = make(data); answer = None").body)
    'exercise'
    """
    return [ast.unparse(each.targets[0]) for each in cell if isinstance(each, ast.Assign)][-2]


def made_for(name: str, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Those of ``statements``, imports, functions and assignments, that ``name`` comes from.

    >>> lines = ast.parse("a = 1; b = a + 1; print(b); c = 3; d = b * 2").body
    >>> [ast.unparse(each) for each in made_for("d", lines)]
    ['a = 1', 'b = a + 1', 'd = b * 2']
    """
    needed, found = {name}, list[ast.stmt]()
    for statement in reversed([*statements]):
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {each.asname or each.name.split(".")[0] for each in statement.names}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            bound = {statement.name}
        if bound & needed:
            found.insert(0, statement)
            needed |= {node.id for node in names}
    return found


def judged(task: Any, source: str) -> tuple[int, str]:
    """(stars, the verdict) of the value that the last line of a cell gives its answer."""
    if not source:
        return 0, "not judged: no such cell: it was removed"
    try:
        value = ast.literal_eval(ast.parse(source).body[-1].value)  # type: ignore[attr-defined]
    except (SyntaxError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return 0, "not judged: an answer that has to run"
    try:
        result = task.result(value)
    except Exception as error:  # whatever an answer of the wrong kind leads to
        return 0, f"{type(error).__name__}: {error}"
    return result.stars, result.reason
