"""The end of every bench: a table of goals beside what was reached, and its numbers as JSON."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table

from tiledask.lab.doctor import examine
from tiledask.lab.report import library_versions, write_whole
from tiledask.lab.store import Store
from tiledask.plan.judged import MARKS

__all__ = ["goals_table", "record", "resumed"]

UNFINISHED = Path("build") / "bench"
"""Where rows are that a bench has so far."""


def goals_table(goals: Sequence[dict[str, Any]]) -> Table:
    """Goals beside what was reached: a row per goal, a column per key, "met" as a mark."""
    table = Table(title="goals")
    names = [name for name in goals[0] if name != "met"]
    for name in names:
        number = isinstance(goals[0][name], int | float)
        table.add_column(name, justify="right" if number else "left")
    table.add_column("")
    for row in goals:
        cells = (f"{row[n]:.2f}" if isinstance(row[n], float) else str(row[n]) for n in names)
        table.add_row(*cells, MARKS[row["met"]])
    return table


def record(path: Path, module: str, facts: dict[str, Any]) -> None:
    """Keep ``facts`` as JSON, with what they were measured on and with; nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        from threadpoolctl import threadpool_info
    except ImportError:  # a machine that was lent for its GPU has no more than the bench needs
        pools = []
    else:
        pools = threadpool_info()
    names = ("internal_api", "version", "architecture")
    head = {
        "command": f"python -m {module} --record FILE.json",
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": _machine(),
        "processor": platform.processor() or platform.machine(),
        "versions": library_versions(),
        "BLAS": [{name: pool.get(name) for name in names} for pool in pools],
        "environment": {key: os.environ[key] for key in os.environ if "OPENBLAS" in key},
    }
    write_whole(path, (json.dumps(head | facts, indent=1) + "\n").encode())


@contextmanager
def resumed(
    bench: str, say: Callable[[str], object], folder: Path | None = None
) -> Iterator[Store]:
    """Rows that ``bench`` had when it was last interrupted; gone once it has come to its end."""
    with Store((folder or UNFINISHED) / f"{bench}.jsonl") as store:
        if count := len(store.cells()):
            say(
                f"{count} measurements of a run that was interrupted are in {store.path} and not "
                f"made again; remove it to begin anew"
            )
        yield store
        store.path.unlink()


@cache
def _machine() -> dict[str, str]:
    """What was found, asked once: `make gpu` writes its record many times."""
    return {f.name: f.found.replace(os.getcwd(), ".") for f in examine()}
