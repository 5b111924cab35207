"""What outlives a kernel: a file per notebook with the learner's predictions and judged tasks.

    <folder>/03_split_one_product.jsonl    predictions, question: {"value": 8e6}      a line each
                                           predictions, question: {"stars": 1}        time
                                           tasks, name: {"tries": 2, "stars": 3}

The folder is what TILEDASK_PROGRESS names, as `make lab` sets it, or .progress beside a learner's
notebook, whoever opened it; without one, as under a test or in plain Python, everything is kept as
long as the process lives and no file is read or written.
What the command line does is kept in terminal.jsonl, `at_terminal`: there is always a folder.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError

__all__ = ["GIVEN", "PROGRESS", "TASKS", "Kept", "at_terminal", "here", "notebooks"]

FOLDER = "TILEDASK_PROGRESS"
PROGRESS = ".progress"
"""The folder, in the learner's, of what is kept."""
GIVEN = ".given.json"
"""In the learner's folder, which is known by it: notebook -> the digests of what was handed out."""
_NOTEBOOK = "JPY_SESSION_NAME"
"""The Jupyter server tells each kernel which notebook it is for."""
_LOCK = threading.RLock()
"""A field's callbacks may come in a thread of their own, while a cell runs."""


PREDICTIONS, TASKS = "predictions", "tasks"
"""What is kept: a table each."""


class Kept:
    """In two tables: question or name of a task -> what is known of it."""

    def __init__(self, notebook: str, path: Path | None) -> None:
        self.notebook, self.path = notebook, path
        self._known: dict[str, dict[str, dict[str, Any]]] = {PREDICTIONS: {}, TASKS: {}}
        lines: list[dict[str, Any]] = []
        if path is not None:
            with contextlib.suppress(OSError):
                lines = _read(path)
        for line in lines:
            table, name, facts = (line.get(word) for word in ("table", "name", "facts"))
            if table in (PREDICTIONS, TASKS) and isinstance(name, str) and isinstance(facts, dict):
                self._known[table].setdefault(name, {}).update(facts)

    def __repr__(self) -> str:
        where = self.path or "this process"
        counted = ", ".join(f"{len(known)} {table}" for table, known in self._known.items())
        return f"Kept({self.notebook or 'no notebook'}: {counted}, in {where})"

    def get(self, name: str, table: str = PREDICTIONS) -> dict[str, Any]:
        """What is known of ``name``: a copy, empty if nothing."""
        with _LOCK:
            return dict(self._known[table].get(name, {}))

    def put(self, name: str, table: str = PREDICTIONS, **facts: Any) -> None:
        """None, once ``facts`` are known of ``name``, in the file too, if there is one.

        Where none can be written, as on a full disk, they are known to this process alone.
        """
        with _LOCK:
            known = self._known[table].setdefault(name, {})
            if facts.items() <= known.items():
                return
            known.update(facts)
            if self.path is None:
                return
            with contextlib.suppress(OSError, ConfigError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _append(self.path, {"table": table, "name": name, "facts": facts})

    def all(self, table: str = PREDICTIONS) -> dict[str, dict[str, Any]]:
        """What is known of each, by its name: copies."""
        with _LOCK:
            return {name: dict(facts) for name, facts in self._known[table].items()}


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that is damaged counts for nothing."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            facts = json.loads(line)
            if isinstance(facts, dict):
                found.append(facts)
    return found


def _append(path: Path, facts: dict[str, Any]) -> None:
    """None, once ``facts`` are a line of the file; OSError where it is as it was before."""
    try:
        line = json.dumps(facts, default=lambda value: value.tolist()).encode()  # of NumPy
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"only numbers, words, lists and dicts can be saved: {error}") from None
    with open(path, "ab+", buffering=0) as file:
        size = file.tell()
        file.seek(max(0, size - 1))
        half = file.read(1) not in (b"", b"\n")  # of a writer that was ended
        whole = b"\n" * half + line + b"\n"
        if file.write(whole) < len(whole):
            file.truncate(size)
            raise OSError("the disk is full")


_open: dict[tuple[str, str], Kept] = {}
_typing: ContextVar[bool] = ContextVar("_typing", default=False)
"""Whether a command is being run."""


@contextlib.contextmanager
def at_terminal() -> Iterator[None]:
    """None; within it `here` is terminal.jsonl, which the next command reads."""
    token = _typing.set(True)
    try:
        yield
    finally:
        _typing.reset(token)


def _place() -> tuple[str, str]:
    """(folder, name of the file in it), as far as there are any."""
    folder = os.environ.get(FOLDER, "")
    if _typing.get():
        state = os.environ.get("XDG_STATE_HOME", "")
        state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
        return folder or os.path.join(state, "tiledask"), "terminal"
    path = Path(os.environ.get(_NOTEBOOK, ""))
    if not folder and path.name and (path.parent / GIVEN).exists():
        folder = str(path.parent / PROGRESS)
    # a corrected walkthrough comes as 16_idle_time-2 and asks the same
    return folder, re.sub(r"-\d+$", "", path.stem)


def here() -> Kept:
    """What is kept for the notebook of this kernel, or for the command line."""
    folder, notebook = _place()
    with _LOCK:
        if (folder, notebook) not in _open:
            path = Path(folder) / f"{notebook}.jsonl" if folder and notebook else None
            _open[folder, notebook] = Kept(notebook, path)
        return _open[folder, notebook]


def notebooks() -> list[Kept]:
    """What is kept for all notebooks, by name; of this one as it is now."""
    mine, (folder, _) = here(), _place()
    others = (
        Kept(path.stem, path)
        for path in (Path(folder).glob("*.jsonl") if folder else ())
        if path != mine.path
    )
    return sorted([mine, *others], key=lambda kept: kept.notebook)
