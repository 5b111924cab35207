"""What outlives a kernel: a file per notebook with the learner's predictions.

    <folder>/02_split_one_product.json    {"predictions": {question: {"value": 8e6, "stars": 1}}}

The folder is what TILEDASK_PROGRESS names, as `make lab` sets it; without one, as under a test or
in plain Python, everything is kept as long as the process lives and no file is read or written.
"""

import contextlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

from tiledask.lab.report import write_whole

__all__ = ["Kept", "here", "notebooks"]

FOLDER = "TILEDASK_PROGRESS"
_NOTEBOOK = "JPY_SESSION_NAME"
"""The Jupyter server tells each kernel which notebook it is for."""
_LOCK = threading.RLock()
"""A field's callbacks may come in a thread of their own, while a cell runs."""


class Kept:
    """Question -> what is known of the prediction."""

    def __init__(self, notebook: str, path: Path | None) -> None:
        self.notebook, self.path = notebook, path
        self._known: dict[str, dict[str, Any]] = _read(path)

    def __repr__(self) -> str:
        where = self.path or "this process"
        return f"Kept({self.notebook or 'no notebook'}: {len(self._known)} predictions, in {where})"

    def get(self, question: str) -> dict[str, Any]:
        """What is known of ``question``: a copy, empty if nothing."""
        with _LOCK:
            return dict(self._known.get(question, {}))

    def put(self, question: str, **facts: Any) -> None:
        """None, once ``facts`` are known of ``question``, in the file too, if there is one.

        The file is replaced whole: another reader never sees half of it.
        """
        with _LOCK:
            known = self._known.setdefault(question, {})
            if facts.items() <= known.items():
                return
            known.update(facts)
            if self.path is None:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({_TABLE: self._known}, indent=1, ensure_ascii=False)
            write_whole(self.path, text.encode())

    def all(self) -> list[dict[str, Any]]:
        """What is known of each question: copies."""
        with _LOCK:
            return [dict(facts) for facts in self._known.values()]


_TABLE = "predictions"


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    found: Any = {}
    if path is not None:
        with contextlib.suppress(OSError, ValueError):  # none yet, or damaged: begun anew
            found = json.loads(path.read_text("utf-8"))
    table = found.get(_TABLE) if isinstance(found, dict) else None
    items = table.items() if isinstance(table, dict) else ()
    return {question: facts for question, facts in items if isinstance(facts, dict)}


_open: dict[tuple[str, str], Kept] = {}


def here() -> Kept:
    """What is kept for the notebook of this kernel."""
    folder = os.environ.get(FOLDER, "")
    # a corrected walkthrough comes as 08_idle_time-2 and asks the same
    notebook = re.sub(r"-\d+$", "", Path(os.environ.get(_NOTEBOOK, "")).stem)
    with _LOCK:
        if (folder, notebook) not in _open:
            path = Path(folder) / f"{notebook}.json" if folder and notebook else None
            _open[folder, notebook] = Kept(notebook, path)
        return _open[folder, notebook]


def notebooks() -> list[Kept]:
    """What is kept for all notebooks, by name; of this one as it is now."""
    mine = here()
    folder = os.environ.get(FOLDER, "")
    others = (
        Kept(path.stem, path)
        for path in (Path(folder).glob("*.json") if folder else ())
        if path != mine.path
    )
    return sorted([mine, *others], key=lambda kept: kept.notebook)
