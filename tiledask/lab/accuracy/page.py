"""`python -m tiledask.lab.accuracy.page`: every published number beside ours, as a page.

published cases  ->  groups of rows  ->  build/accuracy.md
                     fitted | checked    goals, rows, other planners (frozen), what is not modelled
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tiledask.lab.accuracy import exact, sources
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.searched import searched
from tiledask.plan.data import data_file
from tiledask.plan.judged import MARKS
from tiledask.plan.whole import is_whole

__all__ = ["groups", "main", "page"]

NOT_MODELLED = (
    "Training programs without a file in data/calibration/framework, and releases of those that "
    "have one: NeMo's and Megatron-Bridge's differ by up to 18 % with identical inputs.",
    "Devices without a row (GB300, MI300X, L40S, V100, RTX 4090, TPU): default shares, a wide bar.",
    "Head widths that are no multiple of 8, heads too few to fill a device, an allocator that "
    "runs short and cleans up, stragglers, data loading, checkpoints, failures.",
    "GPU hours of whole trainings whose layout is not published.",
    "Rings of attention over many pieces of a sequence in PyTorch, which are twice as slow.",
    "How unevenly experts are visited: evenly, unless the model's `imbalance` says more; exchanges "
    "in 8 bits.",
    "Memory: activations of implementations that keep more than fused kernels need; the host.",
)


@cache
def groups() -> tuple[PublishedSource, ...]:
    """All groups, from exact counts to measured times."""
    return (
        exact.counts(),
        exact.states(),
        exact.activations(),
        *sources.measured(),
        *sources.verdicts(),
        *sources.times(),
        sources.rankings(),
        *searched(),
    )


def page() -> str:
    """The page in Markdown."""
    parts = [
        "# Accuracy of the planner",
        "Made from plan.json, plan2.json and the package. "
        "Errors are ours / published - 1. *Fitted* rows set constants of the model "
        "(data/calibration and tiledask/plan/timing/calibration.py) and show how well it can "
        "bend; *check* rows had no part in that. *Left out*: each model estimated by a fit that "
        "had none of its rows.",
        _table(
            ("source", "goal", "all rows", "signed", "fitted", "check", "left out", ""),
            (
                [
                    *(g.name, g.goal, g.reached, g.signed),
                    *(_errors(g.part(True)), _errors(g.part(False)), _left_out(g), _tick(g)),
                ]
                for g in groups()
            ),
        ),
        _together(),
        "## Beside other tools",
        data_file("published", "other-planners.md").read_text("utf-8").strip(),
        "## What is not modelled",
        "\n".join(f"- {line}" for line in NOT_MODELLED),
    ]
    for group in groups():
        parts.append(f"## {group.name}")
        if group.remark:
            parts.append(group.remark)
        for title, rows in (("Fitted", group.part(True)), ("Check", group.part(False))):
            if rows:
                parts += [f"### {title}" if group.part(True) else "", _rows(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _left_out(group: PublishedSource) -> str:
    """The errors where a model's rows had no part in the fit that estimates them."""
    found = sources.left_out().get(group.name)
    return f"{100 * found[1]:.1f} %, worst {100 * found[2]:.1f} % ({found[0]:.0f})" if found else ""


def _tick(group: PublishedSource) -> str:
    if group.mean == float("inf"):
        return ""
    return MARKS[group.met]


def _together() -> str:
    """Over the step times of plan.json with a goal, which share their constants."""
    timed = [g for g in sources.times() if g.mean is not None and g.mean < 1]
    rows = [row for group in timed for row in group.rows if row.case in published()]
    check = [row for row in rows if not row.calibration]
    said = f"{_errors(rows)}; check rows {_errors(check)}"
    return f"All step and layer times of plan.json with a goal: {said}."


def _errors(rows: Sequence[PublishedRow]) -> str:
    if not rows:
        return ""
    if all(row.exact is not None for row in rows):
        return f"{sum(bool(row.exact) for row in rows)} of {len(rows)}"
    sizes = [abs(row.error) for row in rows]
    return f"{100 * sum(sizes) / len(sizes):.1f} %, worst {100 * max(sizes):.1f} % ({len(rows)})"


def _rows(rows: Iterable[PublishedRow]) -> str:
    return _table(
        ("case", "", "published", "ours", "error", "note"),
        (
            [
                row.case,
                row.quantity,
                f"{_number(row.published)} {row.unit}".strip(),
                f"{_number(row.ours)} {row.unit}".strip(),
                f"{100 * row.error:+.1f} %" if row.exact is None else MARKS[row.exact],
                row.note,
            ]
            for row in rows
        ),
    )


def _number(value: float) -> str:
    return f"{value:,}" if is_whole(value) else f"{value:,.5g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def main() -> int:
    """Write the page and the errors of memory that ``fits`` counts with; print the goals. 1 where
    those errors are to be checked and differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=Path("build") / "accuracy.md")
    parser.add_argument("--check", action="store_true", help="compare the errors, write no data")
    args = parser.parse_args()
    args.page.parent.mkdir(parents=True, exist_ok=True)
    args.page.write_text(page(), encoding="utf-8")
    errors = json.dumps(sources.memory_errors(), indent=1) + "\n"
    file = data_file("calibration", "memory_errors.json")
    differ = file.read_text(encoding="utf-8") != errors
    if differ and not args.check:
        file.write_text(errors, encoding="utf-8")
    table = Table(title="accuracy against published numbers")
    for name in ("source", "goal", "all rows", "check rows", ""):
        table.add_column(name)
    for group in groups():
        table.add_row(
            group.name,
            group.goal,
            group.reached,
            _errors(group.part(False)),
            _tick(group),
        )
    Console().print(table)
    Console().print(f"{_together()}\nevery row: {args.page}", highlight=False)
    if differ:
        Console().print(f"{file}: the errors of memory {'differ' if args.check else 'are new'}")
    return int(differ and args.check)


if __name__ == "__main__":
    raise SystemExit(main())
