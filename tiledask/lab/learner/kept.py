"""What outlives a kernel: a file per notebook with the learner's predictions and judged tasks.

    <folder>/03_split_one_product.jsonl    predictions, question: {"value": 8e6}      a line each
                                           predictions, question: {"stars": 1}        time
                                           tasks, name: {"tries": 2, "stars": 3}

The folder is what TILEDASK_PROGRESS names, as `make lab` sets it, or .progress beside a learner's
notebook, where it is there; without one, as under a test or in plain Python, everything is kept as
long as the process lives and no file is read or written.
What the command line does is kept in terminal.jsonl, `at_terminal`: there is always a folder.
"""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["PROGRESS", "TASKS", "Counts", "Kept", "at_terminal", "here", "notebooks"]

FOLDER = "TILEDASK_PROGRESS"
PROGRESS = ".progress"
"""The folder, in the learner's, of what is kept."""
LOCK = threading.RLock()
"""A field's callbacks may come in a thread of their own, while a cell runs."""
PREDICTIONS, TASKS = "predictions", "tasks"
"""What is kept: a table each."""


class Kept:
    """In two tables: question or name of a task -> what is known of it."""

    def __init__(self, notebook: str, path: Path | None) -> None:
        self.notebook, self.path = notebook, path
        self._known: dict[str, dict[str, dict[str, Any]]] = {PREDICTIONS: {}, TASKS: {}}
        written = b""
        if path is not None:
            with suppress(OSError):
                written = path.read_bytes()
        for line in written.split(b"\n"):
            # one that is damaged counts for nothing
            with suppress(ValueError, RecursionError, KeyError, TypeError):
                said = json.loads(line)
                self._known[said["table"]].setdefault(str(said["name"]), {}).update(said["facts"])

    def get(self, name: str, table: str = PREDICTIONS) -> dict[str, Any]:
        """What is known of ``name``: a copy, empty if nothing."""
        with LOCK:
            return dict(self._known[table].get(name, {}))

    def put(self, name: str, table: str = PREDICTIONS, **facts: Any) -> None:
        """Keep ``facts`` of ``name``, in the file too, if there is one.

        Where none can be written, as on a full disk, they are known to this process alone.
        """
        with LOCK:
            known = self._known[table].setdefault(name, {})
            if facts.items() <= known.items():
                return
            known.update(facts)
            if self.path is None:
                return
            said = {"table": table, "name": name, "facts": facts}
            # numbers of NumPy, too; what is no JSON at all is known to this process alone
            with suppress(OSError, TypeError, ValueError, AttributeError):
                line = json.dumps(said, default=lambda value: value.tolist())
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab", buffering=0) as file:
                    # begins anew behind half a line, of a writer that was ended
                    file.write(f"\n{line}\n".encode())

    def all(self, table: str = PREDICTIONS) -> dict[str, dict[str, Any]]:
        """What is known of each, by its name: copies."""
        with LOCK:
            return {name: dict(facts) for name, facts in self._known[table].items()}


class Counts(NamedTuple):
    """Of a notebook, of the command line, or of all."""

    asked: int
    made: int
    exact: int
    stars: int
    """Of predictions, 3 at most for each."""
    tried: int
    """Tasks to which there was an answer."""
    solved: int
    task_stars: int
    """The best that each task tried has had, 3 at most."""

    @classmethod
    def of(cls, kept: Kept) -> "Counts":
        asked = kept.all().values()
        made = [facts for facts in asked if facts.get("value") is not None]
        stars = [facts.get("stars") or 0 for facts in made]
        tried = [facts for facts in kept.all(TASKS).values() if facts.get("tries")]
        solved = sum(bool(facts.get("solved")) for facts in tried)
        of_tasks = len(tried), solved, sum(facts.get("stars") or 0 for facts in tried)
        return cls(len(asked), len(made), stars.count(3), sum(stars), *of_tasks)

    @property
    def cells(self) -> tuple[str, ...]:
        """Predicted, exact, stars; solved, stars."""
        return (
            f"{self.made} of {self.asked}",
            f"{self.exact}",
            f"{self.stars} of {3 * self.asked}",
            f"{self.solved} of {self.tried}",
            f"{self.task_stars} of {3 * self.tried}",
        )

    def __str__(self) -> str:
        predicted, exact, stars, solved, more = self.cells
        of_tasks = f"; {solved} tasks solved, {more} stars" if self.tried else ""
        return f"{predicted} predicted, {exact} exact, {stars} stars{of_tasks}"


_open: dict[tuple[str, str], Kept] = {}
_typing: list[bool] = []
"""Not empty while a command is being run."""


@contextmanager
def at_terminal() -> Iterator[None]:
    """Within it `here` is terminal.jsonl, which the next command reads."""
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
        return folder or os.path.join(state, "tiledask"), "terminal"
    # the Jupyter server tells each kernel which notebook it is for
    path = Path(os.environ.get("JPY_SESSION_NAME", ""))
    if not folder and path.name and (path.parent / PROGRESS).is_dir():
        folder = str(path.parent / PROGRESS)
    # a second copy, 16_idle_time-2, asks the same
    return folder, re.sub(r"-\d+$", "", path.stem)


def here() -> Kept:
    """What is kept for the notebook of this kernel, or for the command line."""
    folder, notebook = _place()
    with LOCK:
        if (folder, notebook) not in _open:
            path = Path(folder) / f"{notebook}.jsonl" if folder and notebook else None
            _open[folder, notebook] = Kept(notebook, path)
        return _open[folder, notebook]


def notebooks() -> list[Kept]:
    """What is kept for all notebooks, by name; of this one as it is now."""
    mine, (folder, _) = here(), _place()
    paths = [path for path in (Path(folder).glob("*.jsonl") if folder else ()) if path != mine.path]
    return sorted([mine, *(Kept(path.stem, path) for path in paths)], key=lambda k: k.notebook)
