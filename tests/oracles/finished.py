"""A program run to its end: what it said, and how it ended."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def finished(*words, cwd=ROOT, timeout=240, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        **settings,
    )


def python(*words, **settings) -> subprocess.CompletedProcess:
    """The Python that runs this, with ``words``."""
    return finished(sys.executable, *words, **settings)


def script(name: str) -> ModuleType:
    """.ci/NAME.py, to call what is in it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
