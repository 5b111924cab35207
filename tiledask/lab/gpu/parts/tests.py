"""The tests that need a GPU, in several processes, then the notebooks: a row for each.

This module is a plugin of pytest too: it notes every test as it ends, and what hangs or dies takes
one test along, in pytest-xdist's processes or in one that is started again.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiledask
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.table import Grid

__all__ = ["PARTS"]

_ROOT = Path(tiledask.__file__).resolve().parents[1]
_GIVEN = "TILEDASK_GPU_TESTS"
_RUNS = (
    ("gpu and not cluster and not slow", 60, 12),
    ("gpu and cluster and not slow", 180, 1),  # their workers take a GPU's whole memory
)
"""Marks, seconds that each test of them may take, processes at most."""
_NOTEBOOK = 600
"""Seconds of a notebook, at most."""


def run(notes: Notes) -> None:
    """Every test that is marked gpu, then every notebook."""
    files = sorted(
        str(path)
        for path in (_ROOT / "tests").rglob("test_*.py")
        if re.search(r"mark\.gpu|\bxp\b", path.read_text())
    )
    why = "" if files else f"there are no tests beside the package, in {_ROOT}"
    if why := why or _lacks("hypothesis", "threadpoolctl"):
        notes.add("tests", "skipped", why=why)
    else:
        for which, seconds, processes in _RUNS:
            _pytest(notes, files, which, seconds, min(processes, os.cpu_count() or 1))
    lacks = _lacks("nbval", "ipykernel")
    for path in sorted((_ROOT / "nbs").glob("*.ipynb")):
        if lacks:
            notes.add(path.name, "skipped", why=lacks)
        elif notes.begin(path.name, seconds=_NOTEBOOK):
            _notebook(notes, path)


def _lacks(*names: str) -> str:
    missing = [name for name in names if find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _pytest(notes: Notes, files: Sequence[str], which: str, seconds: int, processes: int) -> None:
    """Tests of ``files`` that ``which`` marks choose, in ``processes`` if that is possible."""
    several = processes > 1 and not _lacks("xdist")
    ended = notes.folder / "ended"
    ended.unlink(missing_ok=True)
    (notes.folder / "before").write_text(json.dumps(sorted(notes.before)))
    given = {
        "journal": str(notes.journal),
        "folder": str(notes.folder),
        "seconds": seconds,
        "several": several,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "--tb=line",
        "-rN",
        "-m",
        which,
        "-p",
        "no:nbval",
        "-p",
        "no:cacheprovider",
        "-p",
        __name__,
        "--continue-on-collection-errors",
        "-o",
        f"faulthandler_timeout={seconds}",
        "-o",
        "faulthandler_exit_on_timeout=true",
        *(["-n", str(processes)] if several else []),
        *files,
    ]
    done = subprocess.run(
        command,
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, _GIVEN: json.dumps(given), "OPENBLAS_NUM_THREADS": "1"},
    )
    if done.returncode == 4:
        notes.add(which, "failed", why="pytest could not begin: its last lines above say why")
    elif not ended.exists():  # a test ended the process: the part goes on behind it in a new one
        raise RuntimeError(f"pytest ended with exit code {done.returncode} before its end")


class _Reporter:
    """Notes of every test, taken where pytest reports them."""

    def __init__(self, given: dict[str, Any], worker: bool) -> None:
        folder = Path(given["folder"])
        self.ended = folder / "ended"
        self.before = frozenset(json.loads((folder / "before").read_text()))
        self.notes = Notes("tests", Path(given["journal"]), 0.0, folder)
        self.begins = 0 if given["several"] else given["seconds"] + 15
        self.worker = worker

    def pytest_collection_modifyitems(self, config: Any, items: list) -> None:
        done = [item for item in items if item.nodeid in self.before]
        items[:] = [item for item in items if item.nodeid not in self.before]
        if done:
            config.hook.pytest_deselected(items=done)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.worker:
            self.notes.add(report.nodeid, "failed", why=_last(report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.begins:
            self.notes.begin(nodeid, seconds=self.begins)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.worker or (report.when != "call" and report.passed):
            return
        facts = {"took": round(report.duration, 3)}
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
            self.notes.add(report.nodeid, "skipped", why=why.removeprefix("Skipped: "), **facts)
        elif report.passed:
            self.notes.add(report.nodeid, "right", **facts)
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash else _last(report.longreprtext)
            wrong = report.when == "call" and why.startswith(("assert", "AssertionError"))
            self.notes.add(report.nodeid, "wrong" if wrong else "failed", why=why, **facts)

    def pytest_sessionfinish(self) -> None:
        if not self.worker:
            self.ended.touch()


def pytest_configure(config: Any) -> None:
    if _GIVEN in os.environ:
        config.pluginmanager.register(
            _Reporter(
                json.loads(os.environ[_GIVEN]),
                hasattr(
                    config, "workerinput"
                ),  # not by the environment, which a run within has too
            )
        )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _notebook(notes: Notes, path: Path) -> None:
    """Every cell runs and says what it said before, but for numbers that differ by nature."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
            "--nbval-lax",
            "--nbval-current-env",
            "--nbval-cell-timeout=240",
            str(path),
        ],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        notes.add(path.name, "right")
        return
    cells = re.findall(r"^(?:FAILED|ERROR) \S*?::(Cell \d+)", done.stdout, re.MULTILINE)
    said = _last(done.stdout + done.stderr)
    why = f"{', '.join(cells[:8])}: {said}" if cells else said
    notes.add(path.name, "failed", why=why, cells=cells)


def tables(rows: list[dict[str, Any]]) -> Sequence[Grid]:
    """Files with their counts, then what failed, by name, those with one cause together."""
    files: dict[str, Counter] = {}
    causes: dict[str, list[str]] = {}
    for row in rows:
        file, _, name = row["key"].partition("::")
        files.setdefault(file, Counter())[row["state"]] += 1
        if row["state"] in ("wrong", "failed"):
            causes.setdefault(row.get("why", ""), []).append(name or file)
    states = ("right", "wrong", "failed", "skipped")
    counted = [(file, *(had[state] or "" for state in states)) for file, had in files.items()]
    bad = [(why, len(names), ", ".join(names)) for why, names in causes.items()]
    return [
        Grid(("file", *states), counted),
        Grid(("what happened", "tests", "which"), bad, left=(0, 2)),
    ]


PARTS = (
    GpuPart(
        "tests",
        "the tests that need a GPU, and the notebooks",
        12,
        1,
        ("cupy", "pytest"),
        run,
        tables,
    ),
)
