"""The learner's copies of the walkthroughs: what is run and saved there leaves nbs/ as it is.

    python -m tiledask.lab.learner nbs learn

A copy, once there, is the learner's: it is neither overwritten nor removed. A walkthrough that was
corrected since arrives as a new file beside it, once: 08_idle_time-2.ipynb.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
from platform import python_version

__all__ = ["copy_walkthroughs", "learners"]

_GIVEN = ".given.json"
"""In the learner's folder: notebook -> the digests of what was handed out of it."""


def copy_walkthroughs(source: str | os.PathLike, folder: str | os.PathLike) -> list[str]:
    """Copy each notebook of ``source`` that ``folder`` lacks; a sentence for what is new in a
    folder that was in use.

    A notebook whose cells differ from all that were handed out is copied too, to the next free
    name with a number, and what the learner has stays as it is.
    """
    source, folder = Path(source), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        given = json.loads((folder / _GIVEN).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        given = {}
    in_use, said = bool(given), []
    for path in sorted(source.glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        # the digest is of what a learner reads and runs, without stored outputs and counts
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
        digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()
        had = given.setdefault(path.name, [])
        target = folder / path.name
        if target.exists() and digest in had:
            continue
        if target.exists():
            number = 2
            while (other := target.with_stem(f"{target.stem}-{number}")).exists():
                number += 1
            target = other
            said.append(f"{path.name} was corrected: see {target}; your copy is as you left it.")
        elif in_use:
            said.append(f"{target} is new.")
        _write(target, learners(notebook))
        given[path.name] = [*had, digest]
    _write(folder / _GIVEN, given)
    return said


def learners(notebook: dict) -> dict:
    """``notebook`` as a learner gets it: with the version of this Python, which JupyterLab would
    otherwise add when it opens the file, and call that a change."""
    metadata = notebook["metadata"]
    language = {**metadata.get("language_info", {}), "version": python_version()}
    return {**notebook, "metadata": {**metadata, "language_info": language}}


def _write(path: Path, content: dict) -> None:
    part = path.with_suffix(".part")  # or an interrupted copy would pass for the learner's
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy the walkthroughs into a learner's folder.")
    parser.add_argument("source", help="the folder of the walkthroughs")
    parser.add_argument("folder", help="the learner's folder")
    args = parser.parse_args()
    for sentence in copy_walkthroughs(args.source, args.folder):
        print(sentence)


if __name__ == "__main__":
    main()
