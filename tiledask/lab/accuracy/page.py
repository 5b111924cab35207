"""`python -m tiledask.lab.accuracy.page`: every published number beside ours, in build/accuracy.md,
and the errors of memory that ``fits`` counts with.

published cases  ->  groups of rows  ->  goals, rows, other planners (frozen), what is not modelled
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tiledask.lab.accuracy import evaluate
from tiledask.lab.accuracy.evaluate import PublishedGroup, PublishedRow
from tiledask.lab.accuracy.runs import published_runs
from tiledask.plan.data import data_file, shipped_json
from tiledask.plan.judged import MARKS
from tiledask.plan.whole import is_whole

__all__ = ["groups", "main", "page"]

HEAD = """# Accuracy of the planner

Made from data/published and the package. Errors are ours / published - 1. *Fitted* rows \
set constants of the model (data/calibration and tiledask/plan/timing/calibration.py) and show \
how well it can bend; *check* rows had no part in that. *Left out*: each model estimated by a fit \
that had none of its rows, as it was when the constants were fitted."""


@cache
def groups() -> tuple[PublishedGroup, ...]:
    """All groups, from exact counts to measured times."""
    measured = map(evaluate.measured, published_runs())
    return (*evaluate.exact(), *measured, evaluate.ranking())


def page() -> str:
    """The page in Markdown."""
    other = data_file("published", "other-planners.md").read_text("utf-8").strip()
    missing = data_file("published", "not-modelled.txt").read_text("utf-8").strip()
    parts = [HEAD, summary(), "## Beside other tools", other, "## What is not modelled", missing]
    for group in groups():
        lines = []
        for row in group.rows:
            numbers = [f"{x:,}" if is_whole(x) else f"{x:,.5g}" for x in (row.published, row.ours)]
            error = f"{100 * row.error:+.1f} %" if row.exact is None else MARKS[row.exact]
            shown = (f"{number} {row.unit}".strip() for number in numbers)
            kind = "fitted" if row.calibration else "check"
            lines.append((row.case, row.quantity, *shown, error, kind, row.note))
        head = "case", "", "published", "ours", "error", "", "note"
        parts += [f"## {group.name}", group.remark, _table(head, lines)]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary() -> str:
    """A row for each group."""
    left_out, lines = shipped_json("calibration", "left_out.json"), []
    for group in groups():
        mark, goal = MARKS[group.met], "every row to its printed digits"
        if group.mean == float("inf"):
            mark, goal = "", "none, reported"
        elif group.mean is not None:
            goal = f"mean error <= {100 * group.mean:g} %"
            goal += f", worst <= {100 * group.worst:.0f} %" if group.worst else ""
        fitted, check = (
            _errors([row for row in group.rows if row.calibration == part])
            for part in (True, False)
        )
        without = _sizes(*left_out[group.name]) if group.name in left_out else ""
        lines.append((group.name, goal, _errors(group.rows), fitted, check, without, mark))
    return _table(("source", "goal", "all rows", "fitted", "check", "left out", ""), lines)


def _errors(rows: Sequence[PublishedRow]) -> str:
    if not rows:
        return ""
    if all(row.exact is not None for row in rows):
        return f"{sum(bool(row.exact) for row in rows)} of {len(rows)}"
    return _sizes(len(rows), *PublishedGroup("", tuple(rows)).errors)


def _sizes(count: int, mean: float, worst: float) -> str:
    return f"{100 * mean:.1f} %, worst {100 * worst:.1f} % ({count:.0f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Write the page and the errors of memory; print the goals."""
    file = Path("build", "accuracy.md")
    file.parent.mkdir(exist_ok=True)
    file.write_text(page(), encoding="utf-8")
    errors = json.dumps(evaluate.memory_errors(), indent=1) + "\n"
    data_file("calibration", "memory_errors.json").write_text(errors, encoding="utf-8")
    print(f"{summary()}\nevery row: {file}")


if __name__ == "__main__":
    main()
