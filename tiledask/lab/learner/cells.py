"""Which question the row of a cell is about: that of its first run, also when it runs again.

The notebooks give all predictions one name, so a cell that is run again finds the latest one there.
JupyterLab tells the kernel which cell it runs; elsewhere nothing is known, and nothing is kept.
"""

import sys
from collections.abc import Hashable
from typing import TypeVar

__all__ = ["about"]

T = TypeVar("T", bound=Hashable)

_first: dict[tuple[str, str, int], Hashable] = {}
"""(cell, its code, which of its rows) -> what the row was about at first."""
_cells: dict[Hashable, str] = {}
"""Question -> the cell of its row."""
_run: dict[str, int] = {}
"""The latest run -> its rows until now."""


def about(question: T, fits: bool) -> tuple[T, bool]:
    """(what the row that is made now is about, whether this cell is the one of its row).

    It is about ``question``, unless an earlier run of this cell was about another. It is
    remembered for later runs if the answer ``fits`` and no other cell has a row of it.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    parent = getattr(shell, "get_parent", dict)()
    cell = parent.get("metadata", {}).get("cellId")
    if not cell:  # as under nbval
        return question, True
    run = parent["header"]["msg_id"]
    if run not in _run:
        _run.clear()
    row = _run[run] = _run.get(run, 0) + 1
    place = (cell, parent["content"]["code"], row)
    if place not in _first and fits and _cells.setdefault(question, cell) == cell:
        _first[place] = question
    first: T = _first.get(place, question)  # type: ignore[assignment]
    return first, _cells.get(first, cell) == cell
