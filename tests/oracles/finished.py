"""A program run to its end: what it said, and how it ended."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def finished(*words, cwd=ROOT, timeout=240, **settings):
    settings |= {"cwd": cwd, "timeout": timeout, "capture_output": True, "text": True}
    return subprocess.run(list(map(str, words)), **settings)


def python(*words, **settings):
    """The Python that runs this, with ``words``."""
    return finished(sys.executable, *words, **settings)
