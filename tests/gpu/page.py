"""The record of a GPU, as JSON and as a page: what is fast, what is wrong, part by part."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledask.files import atomic_write
from tiledask.plan.tables import MARKS
from tiledask.plan.units import format_seconds

__all__ = ["GOALS", "page", "write"]

GOALS = {
    "bf16": ("bfloat16 at 8192 x 8192 x 8192, beside cuBLAS", 1.00),
    "fp32": ("float32 at 8192 x 8192 x 8192, beside cuBLAS", 0.95),
    "two-level": ("two-level product at 32768 x 32768 x 32768, beside cupy.matmul", 0.95),
    "host": ("two-level product from host memory, beside its bound", 0.80),
}
"""What comes first: a row with ``goal=`` one of these and ``reached=`` is marked against it."""
COLUMNS = {
    "speed": ("seconds", "TFLOP/s", "ratio", "lower quartile", "upper quartile", "rounds"),
    "product": ("seconds", "ratio", "bytes moved", "bytes read", "peak bytes, predicted",
                "peak bytes"),
    "fit": ("verdict, predicted", "verdict", "capacity bytes", "peak bytes, predicted",
            "peak bytes", "pool bytes"),
    "train": ("error", "seconds", "tokens/s", "share of peak", "simulated idle %",
              "measured idle %"),
    "kernels": ("error", "limit"),
}  # fmt: skip
"""Part -> the measures of its rows that the page shows."""
UNSHOWN = "kind", "name", "described"
"""Of what is known of the device."""


def write(facts: dict[str, Any], folder: Path) -> Path:
    """The page, once the record and it are in ``folder``, named after the device."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", facts["device"]["name"].lower()).strip("-")
    atomic_write(folder / f"{name}.json", (json.dumps(facts, indent=1) + "\n").encode())
    return atomic_write(folder / f"{name}.md", page(facts).encode())


def page(facts: dict[str, Any]) -> str:
    """The page in Markdown."""
    device, rows = facts["device"], facts["rows"]
    known = ", ".join(f"{k} {v}" for k, v in device.items() if k not in UNSHOWN)
    counts = Counter(row["state"] for row in rows)
    goals = [
        (what, row["key"], wanted, row["reached"], MARKS[row["reached"] >= wanted])
        for goal, (what, wanted) in GOALS.items()
        for row in rows
        if row.get("goal") == goal
    ]
    bad = [row for row in rows if row["state"] in ("wrong", "failed")]
    blocks = [
        f"# {device['name']}: what `make gpu` found",
        f"{known}. Measured {facts['date'][:16]} with commit {facts['code']['commit']}.",
        ", ".join(f"{n} {state}" for state, n in counts.items()) + ".",
        "## What is fast",
        _table(("speed", "measurement", "goal", "reached", ""), goals),
        "## What is wrong",
        _table(("part", "measurement", "", "what happened"),
               [(r["part"], r["key"], r["state"], r.get("why", "")) for r in bad[:24]]),
    ]  # fmt: skip
    for part, names in COLUMNS.items():
        own = [row for row in rows if row["part"] == part]
        if shown := [name for name in names if any(row.get(name) is not None for row in own)]:
            cells = [(row["key"], row["state"], *map(row.get, shown)) for row in own]
            blocks += [f"## {part}", _table(("measurement", "", *shown), cells)]
    return "\n\n".join(blocks) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "Nothing."
    cells = [[_cell(*each) for each in zip(head, row, strict=True)] for row in rows]
    lines = [head, [":--"] * len(head), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(name: str, value: Any) -> str:
    if name == "seconds" and value is not None:
        return format_seconds(value)
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return re.sub(r"([\\|<*`_])", r"\\\1", " ".join(text.split())[:240])
