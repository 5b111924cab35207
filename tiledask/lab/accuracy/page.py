"""`make accuracy`: every published number beside ours, as a page that is kept with the code.

published cases  ->  groups of rows  ->  data/published/ACCURACY.md
                     fitted | checked    goals, rows, peers, what is not modelled
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tiledask.lab.accuracy import exact, memory, stack_memory, time
from tiledask.lab.accuracy.exposures import exposed_shares
from tiledask.lab.accuracy.peers import error
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.searched import searched
from tiledask.lab.accuracy.stacks import stacks
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
        *memory.measured(),
        *stack_memory.stacks_measured(),
        memory.verdicts(),
        stack_memory.ran(),
        *time.times(),
        time.rankings(),
        *stacks(),
        *searched(),
    )


def page() -> str:
    """The page in Markdown."""
    parts = [
        "# Accuracy of the planner",
        "Made by `make accuracy` from plan.json, plan2.json and the package; not written by hand. "
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
        _peers(),
        "## What collectives wait for, beside the streams of programs",
        _exposures(),
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


def _exposures() -> str:
    rows = (
        [
            *(row.case, row.framework, row.kind, f"{row.calibrated.value:.2f}"),
            f"{row.calibrated.low:.2f} .. {row.calibrated.high:.2f}",
            *(f"{row.streams:.2f}", f"{100 * row.of_step:.1f} %", row.why),
        ]
        for row in exposed_shares()
    )
    head = "case", "framework", "", "calibrated", "range", "streams", "all of it", "why they differ"
    return (
        "The part of each kind of collective that is waited for: as the framework's file has it, "
        "and as the clock finds it for the program of the ranks, each kind on its own stream with "
        "nothing else sent. *All of it*: seconds if all were waited for, over the step's without. "
        "Experts' exchange: in the layers of a micro-batch, or of two where the framework has one "
        "hide the other's.\n\n" + _table(head, rows)
    )


def _left_out(group: PublishedSource) -> str:
    """The errors where a model's rows had no part in the fit that estimates them."""
    found = time.left_out().get(group.name)
    return f"{100 * found[1]:.1f} %, worst {100 * found[2]:.1f} % ({found[0]:.0f})" if found else ""


def _tick(group: PublishedSource) -> str:
    if group.mean == float("inf"):
        return ""
    return MARKS[group.met]


def _together() -> str:
    """Over all measured step times with a goal, which share their constants."""
    timed = [g for g in time.times() if g.mean is not None and g.mean < 1]
    rows = [row for group in timed for row in group.rows]
    check = [row for row in rows if not row.calibration]
    return f"All step and layer times with a goal: {_errors(rows)}; check rows {_errors(check)}."


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


WORDS = {
    "parameters": ("parameter counts",),
    "state bytes": ("states",),
    "activation bytes": ("activations",),
    "peak bytes": ("BLOOM-176B log, GB", "torchtitan, GiB", "SimuMax's Megatron-Core, GB"),
    "fits": ("BLOOM-176B log, verdicts",),
    "iteration seconds": (
        "SC21",
        "Korthikanti Table 5",
        "Llama 3",
        "Megatron-Core",
        "MT-NLG",
        "BLOOM-176B log, step",
        "torchtitan, seconds",
        "torchtitan, H100 of",
        "NVIDIA's Megatron",
        "SimuMax's Megatron-Core, B200",
        "AutoModel",
        "llm-foundry",
        "mixtures",
        "MegaScale's",
    ),
    "layer seconds": ("Korthikanti Table 4",),
    "ranking regret": ("vTrain",),
}
"""Quantity in the record of other tools -> how our groups' names begin."""


def _peers() -> str:
    file = data_file("measured", "planner-peers.json")
    if not file.exists():
        return "Not measured: `python -m tiledask.lab.accuracy.peers --help`."
    kept = json.loads(file.read_text(encoding="utf-8"))
    said: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in kept["rows"]:
        said.setdefault((row["quantity"], row["case"], row["peer"]), []).append(row)
    said |= _simumax()
    peers = [*kept["peers"], SIMUMAX]
    lines = [
        line
        for quantity, starts in WORDS.items()
        for group in groups()
        if group.name.startswith(starts)
        for line in _beside(quantity, group, peers, said)
    ]
    commits = ", ".join(f"{name} ({version[:7]})" for name, version in kept["peers"].items())
    return (
        f"The same cases through {commits}, on {kept['date'][:10]}, and the figures that SimuMax "
        f"prints beside its own measurements: how many of our rows a tool can "
        f"express (a tool without a line: none), its errors on them (mean, worst), and ours on the "
        f"same ones. How each was used, "
        f"and each answer: data/measured/planner-peers.json. "
        f"EleutherAI's calculator does not divide states by tp x pp, which is most of its error "
        f"there.\n\n" + _table(("", "tool", "rows", "its error", "ours", "ours, check rows"), lines)
    )


SIMUMAX = "SimuMax"


def _simumax() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """What SimuMax prints beside its own measurements."""
    told = {"iteration seconds": "ms", "peak bytes": "alloc_gib"}
    return {
        (quantity, name, SIMUMAX): [
            {
                "quantity": quantity,
                "value": case["expected"][f"simumax_{unit}"],
                "published": case["expected"][f"measured_{unit}"],
            }
        ]
        for quantity, unit in told.items()
        for name, case in published("plan2").items()
        if f"simumax_{unit}" in case["expected"]
    }


def _beside(
    quantity: str,
    group: PublishedSource,
    peers: Iterable[str],
    said: dict[tuple[str, str, str], list],
) -> Iterable[list[str]]:
    """A line per tool that can express a row of ``group``. Rows of a case stand in one order."""
    for peer in peers:
        both = [
            (row, off)
            for case in dict.fromkeys(row.case for row in group.rows)
            for row, theirs in zip(
                (row for row in group.rows if row.case == case),
                said.get((quantity, case, peer), ()),
                strict=False,
            )
            if (off := error(theirs)) is not None
        ]
        if both:
            yield [
                group.name.split(":")[0],
                peer,
                f"{len(both)} of {len(group.rows)}",
                _off(quantity, [off for _, off in both]),
                _off(quantity, [_error(row) for row, _ in both]),
                _off(quantity, [_error(row) for row, _ in both if not row.calibration]),
            ]


def _error(row: PublishedRow) -> float:
    """A wrong verdict is 1; what is right to the printed digits is 0."""
    return 0.0 if row.exact else abs(row.ours - row.published) if row.exact is False else row.error


def _off(quantity: str, errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    if not sizes:
        return ""
    if quantity == "fits":
        return f"{sum(size == 0 for size in sizes)} of {len(sizes)} right"
    return f"{100 * sum(sizes) / len(sizes):.1f} %, {100 * max(sizes):.1f} %"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def main() -> int:
    """Write the page and the errors of memory that ``fits`` counts with; print the goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", default=str(data_file("published", "ACCURACY.md")))
    parser.add_argument("--check", action="store_true", help="write the page alone")
    args = parser.parse_args()
    Path(args.page).write_text(page(), encoding="utf-8")
    if not args.check:
        kept = json.dumps(stack_memory.errors_kept(), indent=1) + "\n"
        data_file("calibration", "memory_errors.json").write_text(kept, encoding="utf-8")
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
