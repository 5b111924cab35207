"""The learner's copies of the notebooks: what is run and saved there leaves nbs/ as it is.

    tiledask notebooks learn

A copy, once there, is the learner's: it is neither overwritten nor removed. Who deletes one gets a
fresh one, with what was corrected since.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from platform import python_version
from typing import Any

from tiledask.files import atomic_write
from tiledask.lab.learner.kept import PROGRESS
from tiledask.plan.data import shipped

__all__ = ["copy_notebooks", "learners", "refresh", "shipped_notebooks"]

PAGES = ("glossary.md", "questions.md")
"""Pages beside the notebooks."""
WIDGET = "application/vnd.jupyter.widget-view+json"
FACTS = {"nbval-check-output", "keep_output"}
"""Tags that say what a test compares."""
STAYS = (
    "The cluster stays, so that you can go on looking at its page: it ends with this notebook's "
    "kernel (*Kernel*, *Shut Down Kernel*)."
)


def shipped_notebooks() -> Path:
    """The folder of the notebooks."""
    return shipped("nbs")


def copy_notebooks(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[str]:
    """Copy each notebook of ``source`` that ``folder`` lacks; a sentence for each that is new in a
    folder that was in use. The pages beside them are the course's own, and written anew."""
    source, folder = Path(source), Path(folder)
    (folder / PROGRESS).mkdir(parents=True, exist_ok=True)
    missing = [p for p in sorted(source.glob("[0-9]*.ipynb")) if not (folder / p.name).exists()]
    in_use = any(folder.glob("*.ipynb"))
    for path in missing:
        _write(folder / path.name, learners(json.loads(path.read_text("utf-8"))))
    for path in (source / name for name in PAGES):
        if path.exists():
            atomic_write(folder / path.name, path.read_bytes())
    return [f"{folder / path.name} is new." for path in missing if in_use]


def refresh(folder: str | os.PathLike[str]) -> None:
    """Leave no copy in ``folder`` that waits for a kernel of yesterday; for when none runs.

    What a field leaves in a saved notebook is the number of a widget that ended with its kernel,
    shown as an error, and its text: the text stays. A notebook without fields is not written.
    """
    for path in Path(folder).glob("*.ipynb"):
        # one that is no notebook is the learner's own, whatever it is
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            notebook = json.loads(path.read_text("utf-8"))
            outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
            fields = [out["data"] for out in outputs if WIDGET in out.get("data", ())]
            for data in fields:
                del data[WIDGET]
            if fields:
                _write(path, notebook)


def learners(notebook: dict[str, Any]) -> dict[str, Any]:
    """``notebook`` as a learner gets it.

    Without outputs and counts, which would answer before anything is asked; solutions as Markdown
    that is folded and not run; and without the last line that closes the cluster, so that its page
    can still be looked at after everything has run. With the version of this Python, which
    JupyterLab would otherwise add when it opens the file, and call that a change.
    """
    metadata = notebook["metadata"]
    language = {**metadata.get("language_info", {}), "version": python_version()}
    cells = [_learners_cell(cell) for cell in notebook["cells"]]
    return {**notebook, "cells": cells, "metadata": {**metadata, "language_info": language}}


def _learners_cell(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["cell_type"] != "code":
        return cell
    source, tags = "".join(cell["source"]), cell["metadata"].get("tags", ())
    words = ""
    if "solution" in tags:
        code = re.sub(r"\A.*\n|\n+td\.task\(judge\)\.result\(\w+\)\.require\(\)\Z", "", source)
        fence = f"```python\n{code}\n```"
        words = f"<details><summary>Show a solution</summary>\n\n{fence}\n\n</details>"
    elif re.fullmatch(r"\s*\w+\.close\(\)\s*", source):
        words = STAYS
    if words:
        named = {"id": cell["id"]} if "id" in cell else {}
        lines = words.splitlines(keepends=True)
        return {"cell_type": "markdown", **named, "metadata": {}, "source": lines}
    metadata = {k: v for k, v in cell["metadata"].items() if k not in ("tags", "scrolled")}
    if left := [tag for tag in tags if tag not in FACTS]:
        metadata["tags"] = left
    return {**cell, "metadata": metadata, "outputs": [], "execution_count": None}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole: an interrupted copy would pass for the learner's."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    atomic_write(path, text.encode("utf-8", "backslashreplace"))
