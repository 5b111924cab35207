"""The words of `tiledask fit` and `tiledask plan`: verdicts, ledgers, ranked layouts, time."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from math import inf
from typing import Any

from rich.console import Console

from tiledask.lab.table import Grid, say
from tiledask.plan.choosing.critique import PlanCritique
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.choosing.sensitivity import Relaxed
from tiledask.plan.fitting.fit import Fit
from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.fitting.snapshot import BesideSnapshot
from tiledask.plan.frameworks.job import Exported
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.checkpointing import Checkpointing
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = [
    "fit_facts",
    "plan_facts",
    "show_critique",
    "show_export",
    "show_fit",
    "show_plans",
    "show_saving",
    "show_snapshot",
    "show_step",
    "step_facts",
]

MANY_STAGES = 12
"""Above this, only the first, the fullest and the last stages are shown."""


def show_fit(fit: Fit, console: Console) -> None:
    """The verdict, the ledger by stage, and what would fit."""
    say(console, f": {fit.reason}", bold=fit.verdict)
    console.print(_ledger(fit.memory))
    if fit.verdict == "fits":
        return
    if fit.smallest_fix is not None:
        say(console, f": {fit.smallest_fix}", bold="smallest fix")
    alone = {name: fix for name, fix in fit.fixes.items() if fix is not None}
    for name, fix in alone.items():
        say(console, f"  {name} alone: {fix}")
    rest = ", ".join(name for name in fit.fixes if name not in alone)
    say(console, f"  no value is enough of one of these alone: {rest}")


def fit_facts(fit: Fit) -> dict[str, Any]:
    """The facts of a fit as plain values, for JSON."""
    fix = fit.smallest_fix
    return {
        "verdict": fit.verdict,
        "reason": fit.reason,
        "shortfall": fit.shortfall,
        "expected": fit.expected,
        "per_stage": list(fit.memory.per_stage),
        "rows": [vars(row) for row in fit.memory.ledger.rows],
        "smallest_fix": str(fix) if fix else None,
        "fixes": {name: str(each) if each else None for name, each in fit.fixes.items()},
    }


def _ledger(memory: MemoryEstimate) -> Grid:
    """A row per stage, a column per group of tensor classes; alike stages once."""
    ledger = memory.ledger
    states = {state.tensor: state for state in memory.recipe.states}

    def group(tensor: str) -> str:
        if tensor in states:
            optimizer = states[tensor].zero == 1 and tensor != "weights"
            return "optimizer" if optimizer else tensor
        return "activations" if "activation" in tensor or "logit" in tensor else "buffers"

    held: dict[int, dict[str, int]] = {}
    for stage in ledger.places:
        held[stage] = {}
        for tensor, size in ledger.by_tensor(stage).items():
            held[stage][group(tensor)] = held[stage].get(group(tensor), 0) + size
    names = [
        n
        for n in dict.fromkeys(n for each in held.values() for n in each)
        if any(each.get(n) for each in held.values())
    ]
    peaks, rows = ledger.per_place, []
    for first, last in _alike(held):
        moments = ledger.moments(first)
        rows.append(
            (
                f"{first}" if first == last else f"{first} to {last}",
                max(moments, key=moments.__getitem__),
                *(format_bytes(held[first].get(name, 0)) for name in names),
                format_bytes(peaks[first]),
            )
        )
    title = "a device of each stage at its fullest moment (GB = 1e9 bytes)"
    return Grid(("stage", "moment", *names, "in all"), rows, title, left=(0, 1))


def _alike(held: dict[int, dict[str, int]]) -> list[tuple[int, int]]:
    """(first, last) of each run of stages that hold the same; of many runs, the ends and the
    fullest."""
    runs: list[tuple[int, int]] = []
    for stage, tensors in held.items():
        if runs and held[runs[-1][0]] == tensors:
            runs[-1] = (runs[-1][0], stage)
        else:
            runs.append((stage, stage))
    if len(runs) <= MANY_STAGES:
        return runs
    fullest = max(runs, key=lambda run: sum(held[run[0]].values()))
    return sorted({*runs[:3], fullest, *runs[-3:]})


def show_plans(plans: Plans, first: int, console: Console, asked: Sequence[str] = ()) -> None:
    """How many fit, the fastest, and the choice between time, memory and devices.

    asked
        Words after `tiledask fit` that name the model, the cluster and how it is trained.
    """
    counts = ", ".join(f"{n:,} {word}" for word, n in plans.counts.items())
    words = f" of {plans.model.name} on {plans.cluster}: {counts}"
    say(console, words, bold=f"{plans.considered:,} layouts")
    if not plans.considered:
        plans.best  # noqa: B018 -- says why there is none
    shown = plans.settle(first)[:first]
    if plans.best.verdict == "no":
        console.print(_table(shown, "none fits; the nearest", plans))
        return
    sure = "" if plans.best.verdict == "fits" else "none fits for sure; of the tight ones, "
    console.print(_table(shown, f"{sure}fastest first", plans, timed=True))
    if asked:
        words = shlex.join(["tiledask", "fit", *asked, *_options(shown[0].layout)])
        say(console, f"the first one: {words}")
    front = plans.front
    if len(front) > 1:
        chosen = front[:: max(1, len(front) // 6)][:6]
        console.print(_table(chosen, f"no other plan beats these ({len(front)} in all)", plans))


SHORT = {
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "microbatch": "b",
    "microbatches": "m",
    "interleave": "v",
    "zero": "ZeRO",
    "recompute": "recompute",
    "sequence_parallel": "SP",
    "flash_attention": "flash",
    "schedule": "schedule",
    "unshard": "unshard",
}
"""Field of a layout -> its column."""


def _table(plans: Sequence[Plan], title: str, found: Plans, timed: bool = False) -> Grid:
    """A row per plan; fields that are the same in all stand in the title. ``timed``: also by the
    clocks of their programs."""
    fields = {name: {getattr(plan.layout, name) for plan in plans} for name in SHORT}
    default = Layout()
    same = ", ".join(
        f"{SHORT[name]} {_word(*values)}"
        for name, values in fields.items()
        if len(values) == 1 and values != {getattr(default, name)}
    )
    differ = [name for name, values in fields.items() if len(values) > 1]
    tokens = found.global_batch * found.sequence
    columns: dict[str, list[str]] = {"": [f"{n + 1}" for n in range(len(plans))]}
    columns |= {SHORT[f]: [_word(getattr(plan.layout, f)) for plan in plans] for f in differ}
    for name, values in (
        ("devices", [f"{plan.layout.devices}" for plan in plans]),
        ("verdict", [plan.verdict for plan in plans]),
    ):
        if len(set(values)) > 1:
            columns[name] = values
    columns["a device"] = [format_bytes(plan.peak) for plan in plans]
    if plans[0].seconds < float("inf"):
        columns["a step"] = [format_seconds(plan.seconds) for plan in plans]
        by_program = [plan.program_seconds for plan in plans if timed]
        if any(seconds == seconds for seconds in by_program):
            columns["by its program"] = [format_seconds(s) if s == s else "" for s in by_program]
        columns["tokens/s"] = [f"{tokens / plan.seconds:,.0f}" for plan in plans]
    left = [i for i, name in enumerate(columns) if name == "verdict"]
    rows = list(zip(*columns.values(), strict=True))
    return Grid(tuple(columns), rows, f"{title}; all: {same}" if same else title, left)


def _options(layout: Layout) -> list[str]:
    """The layout as `tiledask fit` takes it."""
    words = []
    for field in fields(layout):
        value, name = getattr(layout, field.name), field.name.replace("_", "-")
        if value != field.default:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def show_step(step: StepEstimate, console: Console) -> None:
    """Where the time of a step goes."""
    used = f"MFU {step.mfu:.1%}"
    if step.mfu_causal < 0.95 * step.mfu:
        used += f", {step.mfu_causal:.1%} if only the scores under a causal mask count"
    rows = [
        (row.part, format_seconds(row.seconds), f"{row.seconds / step.total:.1%}", row.formula)
        for row in step.rows
        if row.seconds
    ]
    title = f"where the {format_seconds(step.total)} of a step go, {used}"
    console.print(Grid(("part", "time", "share", "formula"), rows, title, left=(0, 3)))


def show_saving(saving: Checkpointing, console: Console) -> dict[str, Any]:
    """How often to save, in a line; the facts of it for JSON."""
    say(console, saving.line)
    names = ("state_bytes", "bandwidth", "mtbf", "devices", "restart", "cost", "between_failures")
    shares = ("steps", "interval", "saving", "redone", "restarting", "stretch")
    found = {name: getattr(saving, name) for name in (*names, *shares)}
    return {name: None if value == inf else value for name, value in found.items()}


def show_export(exported: Exported, console: Console) -> dict[str, Any]:
    """The configuration as it is, what differs below it; the facts of it for JSON."""
    say(console, "", bold=f"for {exported.framework}")
    console.out(exported.text.rstrip("\n"), highlight=False)
    for note in exported.notes:
        say(console, f"  {note}")
    return {"framework": exported.framework, "text": exported.text, "notes": list(exported.notes)}


def show_snapshot(beside: BesideSnapshot, console: Console) -> dict[str, Any]:
    """What the allocator held beside the ledger, and what is larger; the facts for JSON."""
    rows = [
        (name, *map(format_bytes, (predicted, there, there - predicted)))
        for name, predicted, there in beside.rows
    ]
    title = f"a device of stage {beside.stage}, as its memory snapshot tells by sizes"
    console.print(Grid(("class", "predicted", "in it", "more"), rows, title, left=(0,)))
    for line in (beside.why, *beside.said):
        say(console, f"  {line}")
    return beside.to_dict()


def show_critique(found: PlanCritique, console: Console) -> None:
    """What is wrong with a layout, and which single changes are better."""
    for line in found.lines:
        say(console, f"  {line}")
    for advice in found.advice[:8]:
        say(console, f"  → {advice}")
    if not found.advice and found.step is not None:
        say(console, "  no single change makes it 1 % faster")


def plan_facts(plans: Plans, first: int, relaxed: Sequence[Relaxed] = ()) -> dict[str, Any]:
    """The search as plain values, for JSON."""
    return {
        "considered": plans.considered,
        "counts": plans.counts,
        "plans": [_facts(plan) | _by_program(plan) for plan in plans.settle(first)[:first]],
        "front": [_facts(plan) for plan in plans.front],
        "sensitivity": [
            {
                "limit": each.limit,
                "times": each.times,
                "speedup": each.speedup,
                "changed": each.changed,
            }
            for each in relaxed
        ],
    }


def step_facts(step: StepEstimate) -> dict[str, Any]:
    """Where the time of a step goes, for JSON."""
    return {
        "seconds": step.total,
        "parts": {row.part: row.seconds for row in step.rows},
        "mfu": step.mfu,
        "mfu_causal": step.mfu_causal,
        "hfu": step.hfu,
        "tokens_per_second": step.tokens_per_second,
    }


def _by_program(plan: Plan) -> dict[str, Any]:
    """Seconds of a step by the clock of its program; None without one."""
    seconds = plan.program_seconds
    return {"program_seconds": seconds if seconds > 0 else None}


def _facts(plan: Plan) -> dict[str, Any]:
    runs = plan.seconds < float("inf")
    return {
        "layout": vars(plan.layout),
        "devices": plan.layout.devices,
        "verdict": plan.verdict,
        "peak": plan.peak,
        "seconds": plan.seconds if runs else None,
        "options": shlex.join(_options(plan.layout)),
    }
