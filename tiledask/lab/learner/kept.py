"""What outlives a kernel: a file per notebook with the learner's predictions and judged tasks.

    <folder>/03_split_one_product.json    {"predictions": {question: {"value": 8e6, "stars": 1}},
                                           "tasks": {name: {"tries": 2, "stars": 3}}}

The folder is what TILEDASK_PROGRESS names, as `make lab` sets it, or .progress beside a learner's
notebook, where it is there; without one, as under a test or in plain Python, everything is kept as
long as the process lives and no file is read or written.
What the command line does is kept in terminal.json, `at_terminal`: of a learner's folder where it
runs in one or above learn/, so that both count what the other did; else there is one of its own.
"""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiledask.files import atomic_write

__all__ = ["PROGRESS", "TASKS", "Kept", "at_terminal", "here", "notebooks"]

FOLDER = "TILEDASK_PROGRESS"
PROGRESS = ".progress"
"""The folder, in the learner's, of what is kept."""
NEAR = (PROGRESS, f"learn/{PROGRESS}")
"""Where the command line looks for it."""
LOCK = threading.RLock()
"""A field's callbacks may come in a thread of their own, while a cell runs."""
PREDICTIONS, TASKS = "predictions", "tasks"
"""What is kept: a table each."""
DAMAGED = (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError)


class Kept:
    """In two tables: question or name of a task -> what is known of it."""

    def __init__(self, notebook: str, path: Path | None) -> None:
        self.notebook, self.path = notebook, path
        self._known: dict[str, dict[str, dict[str, Any]]] = {PREDICTIONS: {}, TASKS: {}}
        self._read()

    def _read(self) -> None:
        """What another process wrote, too; nothing from a file that is damaged or not there."""
        with suppress(*DAMAGED):
            for table, named in json.loads(self.path.read_bytes()).items() if self.path else ():
                for name, facts in named.items():
                    self._known[table].setdefault(name, {}).update(facts)

    def get(self, name: str, table: str = PREDICTIONS) -> dict[str, Any]:
        """What is known of ``name``: a copy, empty if nothing."""
        return self.all(table).get(name, {})

    def all(self, table: str = PREDICTIONS) -> dict[str, dict[str, Any]]:
        """What is known of each, by its name: copies."""
        with LOCK:
            return {name: dict(facts) for name, facts in self._known[table].items()}

    def put(self, name: str, table: str = PREDICTIONS, **facts: Any) -> None:
        """Keep ``facts`` of ``name``, in the file too, if there is one.

        Where none can be written, as on a full disk, they are known to this process alone.
        """
        with LOCK:
            if facts.items() <= self._known[table].setdefault(name, {}).items():
                return
            self._read()
            self._known[table].setdefault(name, {}).update(facts)
            if self.path:
                # numbers of NumPy, too; what is no JSON at all is known to this process alone
                with suppress(*DAMAGED):
                    text = json.dumps(self._known, default=lambda value: value.tolist(), indent=1)
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    atomic_write(self.path, text.encode())


_open: dict[tuple[str, str], Kept] = {}
_typing: list[bool] = []
"""Not empty while a command is being run."""


@contextmanager
def at_terminal() -> Iterator[None]:
    """Within it `here` is terminal.json, which the next command reads."""
    _typing.append(True)
    try:
        yield
    finally:
        _typing.pop()


def _place() -> tuple[str, str]:
    """(folder, name of the file in it), as far as there are any."""
    folder = os.environ.get(FOLDER, "")
    if _typing:
        state = os.environ.get("XDG_STATE_HOME", "")
        state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
        there = (os.path.abspath(path) for path in NEAR if os.path.isdir(path))
        return folder or next(there, os.path.join(state, "tiledask")), "terminal"
    # the Jupyter server tells each kernel which notebook it is for
    path = Path(os.environ.get("JPY_SESSION_NAME", ""))
    if not folder and path.name and (path.parent / PROGRESS).is_dir():
        folder = str(path.parent / PROGRESS)
    # a second copy, 16_idle_time-2, asks the same
    return folder, re.sub(r"-\d+$", "", path.stem)


def _in(folder: str, notebook: str) -> Kept:
    return Kept(notebook, Path(folder, f"{notebook}.json") if folder and notebook else None)


def here() -> Kept:
    """What is kept for the notebook of this kernel, or for the command line."""
    with LOCK:
        if (place := _place()) not in _open:
            _open[place] = _in(*place)
        return _open[place]


def notebooks() -> list[Kept]:
    """What is kept for all notebooks, by name; of this one as it is now."""
    mine, (folder, _) = here(), _place()
    names = {path.stem for path in Path(folder).glob("*.json")} if folder else set()
    others = [_in(folder, name) for name in names - {mine.notebook}]
    return sorted([mine, *others], key=lambda each: each.notebook)
