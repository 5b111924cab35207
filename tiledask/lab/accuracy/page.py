"""`python -m tiledask.lab.accuracy.page`: every group of published numbers beside its goal is
printed, and the errors of memory that ``fits`` counts with are written.

Errors are ours / published - 1: mean, then the worst. *Fitted* rows set constants of the model
(data/calibration), *check* rows had no part in that, and *left out* estimates each model by a fit
that had none of its rows, as it was when the constants were fitted. `evaluate` has the rows.
data/published/not-modelled.txt says what is not modelled, other-planners.md how others fare.
"""

import json
from collections.abc import Sequence
from functools import cache

from tiledask.lab.accuracy import evaluate
from tiledask.lab.accuracy.evaluate import PublishedGroup, PublishedRow
from tiledask.lab.accuracy.runs import published_runs
from tiledask.plan.data import data_file, shipped_json
from tiledask.plan.judged import MARKS
from tiledask.plan.tables import Console, Table

__all__ = ["groups", "main", "summary"]


@cache
def groups() -> tuple[PublishedGroup, ...]:
    """All groups, from exact counts to measured times."""
    return (*evaluate.exact(), *map(evaluate.measured, published_runs()), evaluate.ranking())


def summary() -> Table:
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
    head = "source", "goal", "all rows", "fitted", "check", "left out", ""
    return Table(head, lines, left=range(len(head)))


def _errors(rows: Sequence[PublishedRow]) -> str:
    if not rows:
        return ""
    if all(row.exact is not None for row in rows):
        return f"{sum(bool(row.exact) for row in rows)} of {len(rows)}"
    return _sizes(len(rows), *PublishedGroup("", tuple(rows)).errors)


def _sizes(count: int, mean: float, worst: float) -> str:
    return f"{100 * mean:.1f} %, worst {100 * worst:.1f} % ({count:.0f})"


def main() -> None:
    """Print the goals, and write the errors of memory."""
    errors = json.dumps(evaluate.memory_errors(), indent=1) + "\n"
    data_file("calibration", "memory_errors.json").write_text(errors, encoding="utf-8")
    remarks = (f"{group.name}: {group.remark}" for group in groups() if group.remark)
    Console(width=200).print(summary(), *remarks)


if __name__ == "__main__":
    main()
