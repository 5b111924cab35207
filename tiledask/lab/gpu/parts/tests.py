"""The tests that need a GPU: a row for each. A test that hangs or dies takes its process along."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import tiledask
from tiledask.lab.gpu.part import GpuPart, Notes, PartTable

__all__ = ["PARTS", "run"]

_ROOT = Path(tiledask.__file__).resolve().parents[1]
_RUNS = (
    ("gpu and not cluster and not slow", 60, 12),
    ("gpu and cluster and not slow", 180, 1),  # their workers take a GPU's whole memory
)
"""Marks, seconds that each test of them may take, processes at most."""
_STATES = {"failure": "wrong", "error": "failed", "skipped": "skipped"}


def run(notes: Notes, arrays: str = "cupy", runs: Sequence[Any] = _RUNS) -> None:
    """Every test that is marked gpu, in pytest's processes; without a GPU they are skipped."""
    if not (_ROOT / "tests").exists():
        notes.add("tests", "skipped", why=f"there are no tests beside the package, in {_ROOT}")
        return
    for which, seconds, most in runs:
        if notes.begin(which, seconds=max(1.0, notes.left())):
            _pytest(notes, which, seconds, min(most, os.cpu_count() or 1))


def _pytest(notes: Notes, which: str, seconds: int, processes: int) -> None:
    report = notes.folder / "report.xml"
    report.unlink(missing_ok=True)
    several = ["-n", str(processes), "--max-worker-restart", "20"] if find_spec("xdist") else []
    patience = ["-o", f"faulthandler_timeout={seconds}"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:nbval", "-m", which]
    done = subprocess.run(
        [*command, *several, *patience, "--junitxml", str(report), "tests"],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    if not report.exists():
        notes.add(which, "failed", why=f"pytest ended with exit code {done.returncode}")
        return
    for case in ElementTree.parse(report).iter("testcase"):
        key = f"{case.get('classname')}::{case.get('name')}"
        bad = next((each for each in case if each.tag in _STATES), None)
        state = "right" if bad is None else _STATES[bad.tag]
        why = "" if bad is None else (bad.get("message") or bad.text or "no message")
        notes.add(key, state, why=why.splitlines()[0] if why else "", took=case.get("time"))
    notes.add(which, "right" if done.returncode in (0, 5) else "wrong", why="see its tests")


def tables(rows: list[dict[str, Any]]) -> list[PartTable]:
    """Files with their counts."""
    files: dict[str, Counter[str]] = {}
    for row in rows:
        files.setdefault(row["key"].partition("::")[0], Counter())[row["state"]] += 1
    states = ("right", "wrong", "failed", "skipped")
    counted = [(file, *(had[state] or "" for state in states)) for file, had in files.items()]
    return [PartTable(("file", *states), counted)]


PARTS = (GpuPart("tests", "the tests that need a GPU", 8, ("cupy", "pytest"), run, tables),)
