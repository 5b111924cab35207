"""Copies of the notebooks for a class: no solutions, and marked as nbgrader wants it."""

import copy
import json
from pathlib import Path
from typing import Any

from tiledask.files import atomic_write
from tiledask.lab.learner.copies import learners, shipped_notebooks

__all__ = ["assigned", "write_assignments"]


def write_assignments(folder: str | Path) -> list[Path]:
    """The files, once ``folder`` has a copy of each notebook for a class; as nbgrader has them,
    one in a folder of its own name. What is there is written over."""
    made = []
    for path in sorted(shipped_notebooks().glob("[0-9]*.ipynb")):
        to = Path(folder) / path.stem / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        notebook = learners(assigned(json.loads(path.read_text("utf-8"))))
        atomic_write(to, json.dumps(notebook, indent=1, ensure_ascii=False).encode())
        made.append(to)
    return made


def assigned(notebook: dict[str, Any]) -> dict[str, Any]:
    """``notebook`` with a cell that raises unless the task is solved in each solution's place; in
    nbgrader's words, answers are solutions of the learner, and those cells are locked tests."""
    cells: list[dict[str, Any]] = []
    for cell in copy.deepcopy(notebook["cells"]):
        tags = cell["metadata"].get("tags", [])
        if "answer" in tags or "attempt" in tags:
            _mark(cell, solution=True)
        elif "solution" in tags:  # the check is right before it
            cell["source"] = "".join(cells[-1]["source"]).split("\n")[-1] + ".require()"
            cell["metadata"] = {"tags": ["grade"]}
            _mark(cell, grade=True, locked=True, points=3)  # as many as there are stars
        cells.append(cell)
    return {**notebook, "cells": cells}


def _mark(cell: dict[str, Any], **what: Any) -> None:
    usual = {"grade": False, "solution": False, "locked": False, "task": False}
    known = {"schema_version": 3, "grade_id": f"cell-{cell['id']}"}
    cell["metadata"]["nbgrader"] = {**usual, **known, **what}
