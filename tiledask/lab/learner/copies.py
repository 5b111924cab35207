"""The learner's copies of the walkthroughs: what is run and saved there leaves nbs/ as it is.

    tiledask notebooks learn

A copy, once there, is the learner's: it is neither overwritten nor removed. A walkthrough that was
corrected since arrives as a new file beside it, once: 16_idle_time-2.ipynb.
"""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from platform import python_version
from typing import Any

from tiledask.files import atomic_write
from tiledask.lab.learner.kept import GIVEN
from tiledask.plan.data import shipped

__all__ = ["copy_walkthroughs", "learners", "refresh", "walkthroughs"]

PAGES = ("glossary.md", "questions.md")
"""Pages beside the walkthroughs."""
WIDGET = "application/vnd.jupyter.widget-view+json"
FACTS = {"nbval-check-output", "keep_output"}
"""Tags that say what a test compares."""
STAYS = (
    "The cluster stays, so that you can go on looking at its page: it ends with this notebook's "
    "kernel (*Kernel*, *Shut Down Kernel*)."
)


def walkthroughs() -> Path:
    """The folder of the walkthroughs."""
    return shipped("nbs")


def copy_walkthroughs(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[str]:
    """Copy each notebook of ``source`` that ``folder`` lacks; a sentence for what is new in a
    folder that was in use. The pages beside them are the course's own, and written anew.

    A notebook whose cells differ from all that were handed out is copied too, to the next free
    name with a number, and what the learner has stays as it is.
    """
    source, folder = Path(source), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    given = _handed_out(folder)
    in_use, said = bool(given), []
    for path in sorted(source.glob("[0-9]*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        # the digest is of what a learner reads and runs, without stored outputs and counts
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
        digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()
        had = given.setdefault(path.name, [])
        target = folder / path.name
        if target.exists():
            if digest in had:
                continue
            number = 2
            while (target := folder / f"{path.stem}-{number}.ipynb").exists():
                number += 1
            said.append(f"{path.name} was corrected: see {target}; your copy is as you left it.")
        elif in_use:
            said.append(f"{target} is new.")
        _write(target, learners(notebook))
        given[path.name] = [*had, digest]
    _write(folder / GIVEN, given)
    for name in PAGES:
        if (source / name).exists():
            atomic_write(folder / name, (source / name).read_bytes())
    return said


def _handed_out(folder: Path) -> dict[str, list[str]]:
    """What `GIVEN` says; nothing, where it is not there or is damaged."""
    found: object = None
    with suppress(FileNotFoundError, ValueError, RecursionError):
        found = json.loads((folder / GIVEN).read_text("utf-8"))
    return {
        name: [digest for digest in digests if isinstance(digest, str) and digest.isascii()]
        for name, digests in (found.items() if isinstance(found, dict) else ())
        if isinstance(digests, list) and name.isascii()
    }


def refresh(folder: str | os.PathLike[str]) -> None:
    """Leave no copy in ``folder`` that waits for a kernel of yesterday; for when none runs.

    What a field leaves in a saved notebook is the number of a widget that ended with its kernel,
    shown as an error, and its text: the text stays. The version of Python becomes that of the
    kernels to come. Nothing else changes, and a notebook without these is not written.
    """
    for path in Path(folder).glob("*.ipynb"):
        # one that is no notebook is the learner's own, whatever it is
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            notebook = json.loads(path.read_text("utf-8"))
            outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
            fields = [out["data"] for out in outputs if WIDGET in out.get("data", ())]
            language = notebook["metadata"].get("language_info", {})
            if fields or language.get("version", python_version()) != python_version():
                for data in fields:
                    del data[WIDGET]
                language["version"] = python_version()
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
        code = source.partition("\n")[2]  # its first line says that it is one
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
