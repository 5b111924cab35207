"""The record of a GPU as one page: what is fast, what is wrong, what ran, part by part."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tiledask.lab.gpu.part import STATES, GpuPart, PartTable
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["GOALS", "goals", "page"]

Row = dict[str, Any]

GOALS = {
    "bf16": ("bfloat16 at 8192 x 8192 x 8192, beside cuBLAS", 1.00),
    "fp32": ("float32 at 8192 x 8192 x 8192, beside cuBLAS", 0.95),
    "two-level": ("two-level product at 32768 x 32768 x 32768, beside cupy.matmul", 0.95),
    "host": ("two-level product from host memory, beside its bound", 0.80),
}
"""What is asked first, as ratios of speeds: a row with ``goal=`` one of these and ``reached=`` is
marked against the number."""
_MOST_ROWS = 24
_LONGEST = 240
_DEVICE = ("compute capability", "memory", "driver", "CUDA", "CuPy", "GPUs")


def goals(rows: Sequence[Row]) -> PartTable:
    """Every goal beside what was reached."""
    cells = []
    for goal, (what, wanted) in GOALS.items():
        for row in [row for row in rows if row.get("goal") == goal and "reached" in row] or [{}]:
            reached = row.get("reached")
            said = "not measured" if reached is None else MARKS[reached >= wanted]
            cells.append((what, row.get("key", ""), f"{wanted:.2f}", _number(reached), said))
    return PartTable(("speed", "measurement", "goal", "reached", ""), cells, left=(0, 1))


def page(facts: Row, parts: Sequence[GpuPart]) -> str:
    """The page in Markdown."""
    device, rows = facts["device"], facts["rows"]
    known = {name: device[name] for name in _DEVICE if device.get(name)}
    if "memory" in known:
        known["memory"] = format_bytes(known["memory"])
    counted = Counter(row["state"] for row in rows)
    bad = [row for row in rows if row["state"] in ("wrong", "failed")]
    ended = {row["part"]: row for row in facts["parts"]}
    blocks = [
        f"# {device['name']}: what `make gpu` found",
        f"{', '.join(f'{name} {value}' for name, value in known.items())}. "
        f"Measured {facts.get('date', '')[:16]} with commit {facts['code']['commit']}.",
        _table(PartTable(STATES, [[counted[state] for state in STATES]], left=())),
        "## What is fast",
        _table(goals(rows)),
        "## What is wrong",
        _table(_causes(bad)) if bad else "Nothing that was asked.",
        "## What ran",
        _table(
            PartTable(
                ("part", "", "took", "why"),
                [(p["part"], p["state"], format_seconds(p["took"]), p["why"])
                 for p in ended.values()],
                left=(0, 1, 3),
            )
        ),
    ]  # fmt: skip
    for part in parts:
        own = [row for row in rows if row["part"] == part.name]
        if own:
            blocks.append(f"## {part.name}: {part.title}")
            for table in (table for table in part.tables(own) if table.rows):
                blocks += [f"**{table.title}**"] * bool(table.title) + [_table(table)]
    return "\n\n".join(blocks) + "\n"


def _causes(rows: Sequence[Row]) -> PartTable:
    """What happened, once for all of a part that say the same but for numbers."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        words = re.sub(r"[\d.]+(e[-+]\d+)?", "#", row.get("why", ""))[-80:]  # a case comes first
        found.setdefault((row["part"], row["state"], words), []).append(row)
    cells = [
        (part, state, len(same), same[0]["key"], same[0].get("why", ""))
        for (part, state, _), same in found.items()
    ]
    head = ("part", "", "how many", "the first of them", "what happened")
    return PartTable(head, cells[:_MOST_ROWS], left=(0, 1, 3, 4))


def _table(table: PartTable) -> str:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(map(_cell, cells)) + " |"

    rule = [":--" if column in table.left else "--:" for column in range(len(table.head))]
    return "\n".join([line(table.head), "|" + "|".join(rule) + "|", *map(line, table.rows)])


def _cell(value: Any) -> str:
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    for character in ("\\", "|", "<", "*", "`", "_"):
        text = text.replace(character, "\\" + character)
    return text


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
