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

__all__ = ["Grade", "as_csv", "grade", "made_for", "task_of", "value_of"]

_NAME = re.compile(r"(\d\d_[a-z0-9_]+?)(?:-\d+)?\.ipynb")
_PLAIN = (
    *(ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.keyword),
    *(ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div),
)
_MADE = {f"td.{name}" for name in ("Layout", "Shard", "Replicate", "Partial")}
"""What an answer is made of, and may call."""


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
    grades = []
    for name, learners in handed_in.items():
        for number, (cell, task, before) in enumerate(_tasks(course[name]), 1):
            # ids are others where the course was handed out in another version
            values = {
                learner: value_of(answers.get(cell) or answers.get(number, ""))
                for learner, answers in learners.items()
            }
            names = {task}.union(*(_names(ast.parse(value)) for value, _ in values.values()))
            there: dict[str, Any] = {}
            exec(compile(ast.Module(made_for(names, before), []), name, "exec"), there)
            for learner, value in values.items():
                grades.append(Grade(learner, name, number, *_judged(there[task], *value, there)))
    return sorted(grades)


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


def _tasks(path: Path) -> Iterator[tuple[str, str, list[ast.stmt]]]:
    """Of each task in a notebook of the course: the id of its cell, its name, and all code up to it
    but solutions."""
    before: list[ast.stmt] = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code" and "solution" not in tags:
            before += (here := ast.parse("".join(cell["source"])).body)
            if "answer" in tags:
                yield cell.get("id", ""), task_of(here), before


def task_of(cell: Iterable[ast.stmt]) -> str:
    """The name of the task in an answer's cell: it is the last that is assigned before the answer.

    >>> task_of(ast.parse("data = 1; exercise = make(data); answer = None").body)
    'exercise'
    """
    return [ast.unparse(each.targets[0]) for each in cell if isinstance(each, ast.Assign)][-2]


def made_for(names: set[str], statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Those of ``statements`` that ``names`` come from, in their order.

    >>> lines = ast.parse("a = 1; b = a + 1; print(b); c = 3; d = b * 2").body
    >>> [ast.unparse(each) for each in made_for({"d"}, lines)]
    ['a = 1', 'b = a + 1', 'd = b * 2']
    """
    needed, found = set(names), list[ast.stmt]()
    for statement in reversed([*statements]):
        if _bound(statement) & needed:
            found.insert(0, statement)
            needed |= _names(statement)
    return found


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a cell gives something to."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name.split(".")[0] for each in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)}


def _judged(task: Any, value: str, why: str, there: dict[str, Any]) -> tuple[int, str]:
    """(stars, the verdict) of an answer."""
    if why:
        return 0, f"not judged: {why}"
    try:
        result = task.result(eval(value, there | {"__builtins__": {}}))
    except Exception as error:  # whatever an answer of the wrong kind leads to
        return 0, f"{type(error).__name__}: {error}"
    return result.stars, result.reason


def value_of(source: str) -> tuple[str, str]:
    """(the value that a cell gives its answer, as it is written, why there is none).

    >>> value_of('task = make()\\nanswer = "1-6 | 7-12"  # mine')
    ("'1-6 | 7-12'", '')
    >>> value_of("answer = open('x').read()")
    ('', 'an answer that has to run')
    """
    if not source:
        return "", "no such cell: it was removed"
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, IndexError, ValueError, RecursionError):
        return "", "no Python"
    if isinstance(last, ast.Assign) and all(map(_is_plain, ast.walk(last.value))):
        return ast.unparse(last.value), ""
    return "", "an answer that has to run"


def _is_plain(node: ast.AST) -> bool:
    """Whether it does nothing but say a value, a layout or a placement."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in _MADE
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    return isinstance(node, _PLAIN)
