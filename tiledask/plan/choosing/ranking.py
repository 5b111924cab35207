"""The table of ranked plans: a row each, the axes in which they differ, and what each takes."""

from collections.abc import Sequence
from typing import Any

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.tables import Table, format_value
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["plan_table"]

HEADS = {name: name for name in ("dp", "tp", "pp", "cp", "ep")} | {
    "expert_tp": "expert tp",
    "microbatch": "b",
    "microbatches": "m",
    "interleave": "v",
    "zero": "ZeRO",
    "recompute": "recompute",
    "sequence_parallel": "SP",
    "flash_attention": "flash",
    "schedule": "schedule",
}
"""Field of a layout -> its column."""
LEAST = ("flash", "SP", "expert tp", "v", "ZeRO", "b")
"""The columns that go where 80 characters are not enough for all, in this order."""


def plan_table(plans: Sequence[Any], title: str) -> Table:
    """A row per plan; fields that are the same in all stand in the title. In bold: those that
    cannot be told from the best."""
    columns, same = {"": [f"{n + 1}" for n in range(len(plans))]}, []
    for name, head in HEADS.items():
        values = [str(_word(getattr(plan.layout, name))) for plan in plans]
        if len(set(values)) > 1:
            columns[head] = values
        elif values[0] != str(_word(getattr(Layout(), name))):
            same.append(f"{head} {values[0]}")
    varying = {
        "devices": [f"{plan.layout.devices}" for plan in plans],
        "verdict": [plan.verdict for plan in plans],
    }
    columns |= {name: cells for name, cells in varying.items() if len(set(cells)) > 1}
    columns["a device"] = [format_bytes(plan.peak) for plan in plans]
    timed = [plan.step if plan.verdict != "no" else None for plan in plans]
    if timed[0]:
        columns["a step"] = [format_seconds(step.total) if step else "" for step in timed]
        columns["tokens/s"] = [f"{step.tokens_per_second:,.0f}" if step else "" for step in timed]
        columns["MFU"] = [f"{100 * step.mfu:.1f} %" if step else "" for step in timed]
    title += f"; all: {', '.join(same)}" if same else ""
    left_out = []
    for name in LEAST:
        widths = [max(len(head), *map(len, cells)) for head, cells in columns.items()]
        if sum(widths) + 2 * (len(widths) - 1) > 80 and columns.pop(name, []):
            left_out.append(name)
    title += f"; not shown: {', '.join(left_out)}" if left_out else ""
    left = [i for i, name in enumerate(columns) if name == "verdict"]
    alike = [plan.layout for plan in plans[0].found.alike]
    bold = [n for n, plan in enumerate(plans) if plan.layout in alike and plan.verdict != "no"]
    return Table(tuple(columns), list(zip(*columns.values(), strict=True)), title, left, bold)


def _word(value: Any) -> Any:
    return format_value(value) if isinstance(value, bool) else value
