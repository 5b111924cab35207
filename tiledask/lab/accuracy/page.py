"""`python -m tiledask.lab.accuracy.page`: every published number beside ours, as a page.

published cases  ->  groups of rows  ->  build/accuracy.md
                     fitted | checked    goals, rows, other planners (frozen), what is not modelled
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

from tiledask.lab.accuracy.evaluate import (
    LEFT_OUT,
    PublishedRow,
    PublishedSource,
    exact,
    measured,
    memory_errors,
    rankings,
)
from tiledask.lab.accuracy.exact import EXACT
from tiledask.lab.accuracy.runs import run_rows
from tiledask.lab.accuracy.searched import searched
from tiledask.plan.data import data_file
from tiledask.plan.judged import MARKS
from tiledask.plan.whole import is_whole

__all__ = ["groups", "main", "page"]

PAGES = {"Beside other tools": "other-planners.md", "What is not modelled": "not-modelled.txt"}
"""Sections that are files of data/published."""
HEAD = """# Accuracy of the planner

Made from data/published and the package. Errors are ours / published - 1. *Fitted* rows \
set constants of the model (data/calibration and tiledask/plan/timing/calibration.py) and show \
how well it can bend; *check* rows had no part in that. *Left out*: each model estimated by a fit \
that had none of its rows."""


@cache
def groups() -> tuple[PublishedSource, ...]:
    """All groups, from exact counts to measured times."""
    return (*map(exact, EXACT), *map(measured, run_rows()), rankings(), *searched())


def page() -> str:
    """The page in Markdown."""
    parts = [HEAD, summary()]
    for title, name in PAGES.items():
        text = data_file("published", name).read_text("utf-8").strip()
        parts += [f"## {title}", text]
    for group in groups():
        parts += [f"## {group.name}", group.remark]
        for title, rows in (("Fitted", group.part(True)), ("Check", group.part(False))):
            if rows:
                parts += [f"### {title}" if group.part(True) else "", _rows(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary() -> str:
    """A row for each group."""
    head = ("source", "goal", "all rows", "signed", "fitted", "check", "left out", "")
    return _table(head, map(_group, groups()))


def _group(group: PublishedSource) -> Sequence[str]:
    signed = f"{100 * mean(row.error for row in group.rows):+.1f} %"
    mark = MARKS[group.met]
    if group.mean is None:
        goal, signed = "every row to its printed digits", ""
    elif group.mean == float("inf"):
        goal, mark = "none, reported", ""
    else:
        worst = "" if group.worst is None else f", worst <= {100 * group.worst:.0f} %"
        goal = f"mean error <= {100 * group.mean:g} %{worst}"
    out = LEFT_OUT.get(group.name)
    without = f"{100 * out[1]:.1f} %, worst {100 * out[2]:.1f} % ({out[0]:.0f})" if out else ""
    parts = (_errors(group.part(True)), _errors(group.part(False)))
    return (group.name, goal, _errors(group.rows), signed, *parts, without, mark)


def _errors(rows: Sequence[PublishedRow]) -> str:
    if not rows:
        return ""
    if all(row.exact is not None for row in rows):
        return f"{sum(bool(row.exact) for row in rows)} of {len(rows)}"
    sizes = [abs(row.error) for row in rows]
    return f"{100 * mean(sizes):.1f} %, worst {100 * max(sizes):.1f} % ({len(rows)})"


def _rows(rows: Iterable[PublishedRow]) -> str:
    lines = []
    for row in rows:
        numbers = [f"{x:,}" if is_whole(x) else f"{x:,.5g}" for x in (row.published, row.ours)]
        error = f"{100 * row.error:+.1f} %" if row.exact is None else MARKS[row.exact]
        shown = (f"{number} {row.unit}".strip() for number in numbers)
        lines.append((row.case, row.quantity, *shown, error, row.note))
    return _table(("case", "", "published", "ours", "error", "note"), lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> int:
    """Write the page and the errors of memory that ``fits`` counts with; print the goals. 1 where
    those errors are to be checked and differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=Path("build") / "accuracy.md")
    parser.add_argument("--check", action="store_true", help="compare the errors, write no data")
    args = parser.parse_args()
    args.page.parent.mkdir(parents=True, exist_ok=True)
    args.page.write_text(page(), encoding="utf-8")
    errors = json.dumps(memory_errors(), indent=1) + "\n"
    file = data_file("calibration", "memory_errors.json")
    differ = file.read_text(encoding="utf-8") != errors
    if differ and not args.check:
        file.write_text(errors, encoding="utf-8")
    print(f"{summary()}\nevery row: {args.page}")
    if differ:
        print(f"{file}: the errors of memory {'differ' if args.check else 'are new'}")
    return int(differ and args.check)


if __name__ == "__main__":
    raise SystemExit(main())
