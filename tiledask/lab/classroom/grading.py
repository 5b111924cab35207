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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.learner.copies import walkthroughs

__all__ = ["Grade", "as_csv", "grade", "made_for", "task_of", "value_of"]

_NAME = re.compile(r"(\d\d_[a-z0-9_]+?)(?:-\d+)?\.ipynb")


@dataclass(frozen=True)
class Grade:
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
    found: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).rglob("*.ipynb")):
        named = _NAME.fullmatch(path.name)
        if named and named[1] in course and ".ipynb_checkpoints" not in path.parts:
            found.setdefault(named[1], []).append(path)
    if not found:
        raise ConfigError(
            f"there is no walkthrough in {str(folder)!r} or below it; give the folder that has "
            f"learners' notebooks under their own names, such as 16_idle_time.ipynb"
        )
    grades: list[Grade] = []
    for name, paths in found.items():
        written = {str(path.parent.relative_to(folder)): _answers(path) for path in paths}
        with ExitStack() as ended:
            for number, (cell, task, made) in enumerate(_tasks(course[name], ended), 1):
                for learner, answers in written.items():
                    # ids are others where the course was handed out in another version
                    source = answers.get(cell) or answers.get(number, "")
                    grades.append(Grade(learner, name, number, *_judged(task, source, made)))
    return sorted(grades, key=lambda each: (each.learner, each.notebook, each.task))


def as_csv(grades: Iterable[Grade]) -> str:
    """A line for each grade: learner, notebook, task, stars, said."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(field.name for field in fields(Grade))
    writer.writerows(astuple(each) for each in grades)
    return out.getvalue()


def _answers(path: Path) -> dict[int | str, str]:
    """Number of a task, and the id of its cell -> the source of the answer; none of what is no
    notebook."""
    found: dict[int | str, str] = {}
    try:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        asked = [cell for cell in cells if "answer" in cell["metadata"].get("tags", ())]
        for number, cell in enumerate(asked, 1):
            found[number] = found[cell.get("id", number)] = "".join(cell["source"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found


Made = Callable[[set[str]], dict[str, Any]]
"""Names -> what the course gives them, and all that was made before."""


def _tasks(path: Path, ended: ExitStack) -> Iterator[tuple[str, Any, Made]]:
    """Each task of a notebook of the course, with the id of its cell, and what makes the names that
    answers use; ``ended`` closes what was begun for it, such as a cluster."""
    before: list[ast.stmt] = []
    there: dict[str, Any] = {}
    done: set[ast.stmt] = set()

    def made(names: set[str]) -> dict[str, Any]:
        for statement in made_for(names, before):
            if statement not in done:
                done.add(statement)
                with redirect_stdout(io.StringIO()):
                    exec(compile(ast.Module([statement], []), path.name, "exec"), there)
                for value in map(there.get, _bound(statement)):
                    if close := getattr(value, "close", None):
                        ended.callback(close)
        return there

    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code" and "solution" not in tags:
            before += (here := ast.parse("".join(cell["source"])).body)
            if "answer" in tags:
                name = task_of(here)
                yield cell.get("id", ""), made({name})[name], made


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


def _judged(task: Any, source: str, made: Made) -> tuple[int, str]:
    """(stars, the verdict) of the answer in a cell."""
    value, why = value_of(source) if source else ("", "no such cell: it was removed")
    if why:
        return 0, f"not judged: {why}"
    try:
        there = made(_names(ast.parse(value)))
        result = task.result(eval(value, there | {"__builtins__": {}}))
    except Exception as error:  # whatever an answer of the wrong kind leads to
        return 0, f"{type(error).__name__}: {error}"
    return result.stars, result.reason


_MADE = {"Layout", "Shard", "Replicate", "Partial"}
"""Of td, what an answer may be made of."""
_PLAIN = (
    *(ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.keyword),
    *(ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div),
)


def value_of(source: str) -> tuple[str, str]:
    """(the value that a cell gives its answer, as it is written, why there is none).

    >>> value_of('task = make()\\nanswer = "1-6 | 7-12"  # mine')
    ("'1-6 | 7-12'", '')
    >>> value_of("answer = open('x').read()")
    ('', 'an answer that has to run')
    """
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
        return node.attr in _MADE and isinstance(node.value, ast.Name) and node.value.id == "td"
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    return isinstance(node, _PLAIN)
