"""What the answers in learners' notebooks are worth.

    learners' notebooks --- the answers, as they are written ---.
                                                                v
    the course's own notebook ------ runs, once ------> its tasks judge them ------> stars

What learners wrote beside their answers never runs, nor do their stored outputs count. An answer
that is a function has to run: that is asked for, and done where its writer may do what he likes.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.lab.learner.copies import walkthroughs

__all__ = ["Grade", "as_csv", "grade"]

_NAME = re.compile(r"(\d\d_[a-z0-9_]+?)(?:-\d+)?\.ipynb")
_MARK = "graded: "
"""How a line begins that a judge's cell prints."""
_LIMIT = 600
"""Seconds that a cell of the course's own notebook may take."""


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


def grade(
    folder: str | Path, *, runs_code: bool = False, progress: Callable[[str], None] | None = None
) -> list[Grade]:
    """A Grade for each task in each notebook below ``folder``, learner by learner.

    Each of the course's notebooks that is there runs once, for all learners: a minute or so. With
    ``runs_code`` answers run that are more than a value, such as functions: only where it does no
    harm. ``progress`` is told the name of each notebook as it begins. ConfigError where there is
    no notebook of the course.
    """
    with needed_for("grading"):
        import nbclient  # noqa: F401
    found: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).rglob("*.ipynb")):
        if (named := _NAME.fullmatch(path.name)) and ".ipynb_checkpoints" not in path.parts:
            found.setdefault(named[1], []).append(path)
    there = {path.stem for path in walkthroughs().glob("[0-9]*.ipynb")}
    found = {name: paths for name, paths in found.items() if name in there}
    if not found:
        raise ConfigError(
            f"there is no walkthrough in {str(folder)!r} or below it; give the folder that has "
            f"learners' notebooks under their own names, such as 16_idle_time.ipynb"
        )
    grades: list[Grade] = []
    for name, paths in found.items():
        if progress is not None:
            progress(name)
        course = (walkthroughs() / f"{name}.ipynb").read_text("utf-8")
        written = {str(path.parent.relative_to(folder)): _answers(path) for path in paths}
        grades += _graded(name, course, written, runs_code)
    return sorted(grades, key=lambda each: (each.learner, each.notebook, each.task))


def as_csv(grades: Iterable[Grade]) -> str:
    """A line for each grade: learner, notebook, task, stars, said."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(field.name for field in fields(Grade))
    writer.writerows(astuple(each) for each in grades)
    return out.getvalue()


def _answers(path: Path) -> dict[str, str]:
    """Id of a cell, and its place among the answers -> its source; none of what is no notebook."""
    try:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        found = [
            (cell.get("id", ""), "".join(cell["source"]))
            for cell in cells
            if "answer" in cell["metadata"].get("tags", ())
        ]
        # ids are others where the course was handed out in another version
        return {f"{n} of {len(found)}": text for n, (_, text) in enumerate(found, 1)} | dict(found)
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


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


_JUDGE = """\
import json as _json
def _judged(task, written):
    for learner, value, source in written:
        there = dict(globals())
        try:
            exec(source, there)
            result = task.result(eval(value, there))
            yield learner, result.stars, result.reason
        except BaseException as error:
            yield learner, 0, f"{{type(error).__name__}}: {{error}}"
for _each in _judged({task}, {written!r}):
    print({mark!r} + _json.dumps([{number}, *_each]))
"""


def _graded(
    name: str, course: str, written: Mapping[str, Mapping[str, str]], runs_code: bool
) -> Iterable[Grade]:
    """The grades of one notebook: the course's own runs, with a judge's cell after each answer."""
    import nbformat
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    whole: Any = nbformat.reads(course, as_version=4)
    cells: list[Any] = []
    number, of = 0, sum("answer" in cell.metadata.get("tags", ()) for cell in whole.cells)
    for cell in whole.cells:
        tags = cell.metadata.get("tags", ())
        if "solution" in tags:
            continue
        cells.append(cell)
        if "answer" not in tags:
            continue
        number += 1
        task, answer = _names(cell.source)
        judged = []
        for learner, answers in written.items():
            source = answers.get(cell.id) or answers.get(f"{number} of {of}", "")
            value, why = value_of(source) if source else ("", "no such cell: it was removed")
            if not why:
                judged.append((learner, value, ""))
            elif runs_code and source:
                judged.append((learner, answer, source))
            else:
                yield Grade(learner, name, number, 0, f"not judged: {why}")
        facts = {"task": task, "written": judged, "number": number, "mark": _MARK}
        cells.append(new_code_cell(_JUDGE.format(**facts)))
    whole.cells = cells
    client: Any = NotebookClient(whole, timeout=_LIMIT)
    client.execute()
    text = "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", ()))
    for line in text.splitlines():
        if line.startswith(_MARK):
            number, learner, stars, said = json.loads(line.removeprefix(_MARK))
            yield Grade(learner, name, number, stars, said)


def _names(source: str) -> tuple[str, str]:
    """What an answer's cell calls its task, and its answer."""
    targets = [
        line.targets[0].id
        for line in ast.parse(source).body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    ]
    return targets[-2], targets[-1]
