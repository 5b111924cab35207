"""The process of one part: it runs the part with its notes, and leaves without an orderly end.

    python -m tiledask.lab.gpu.child MODULE PART FILE.json

An orderly end would wait for a device, or for workers, that may not answer any more.
"""

import faulthandler
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tiledask.lab.gpu.part import Notes

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Run a part and exit: 0 where `run` came back, 1 where it raised."""
    module, name, file = arguments
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # of a GPU's process it would fill a disk
    given = json.loads(Path(file).read_text())
    notes = Notes(
        name,
        Path(given["journal"]),
        given["until"],
        Path(given["folder"]),
        frozenset(given["before"]),
    )
    status = 0
    try:
        parts = importlib.import_module(module).PARTS
        next(part for part in parts if part.name == name).run(notes)
        notes.end()
    except BaseException as error:  # SystemExit too: a part has no say in how its process ends
        traceback.print_exc()
        notes.end(f"{type(error).__name__}: {error}")
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
