"""The words of `tiledask fit` and `plan`: verdicts, ledgers, ranked layouts, time and bytes."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tiledask.lab.table import Grid, say
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.fitting.fit import Fit
from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.frameworks.job import Exported
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.axis_bytes import AXES
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tiledask.plan.choosing.critique import PlanCritique

__all__ = [
    "TIGHT",
    "plan_table",
    "show_bytes",
    "show_critique",
    "show_export",
    "show_fit",
    "show_plans",
    "show_speed",
    "show_step",
    "used",
]

TIGHT = (
    "tight: what is counted fits, but not with all of the overhead, or not if the estimate is as "
    "far off as half of the published runs"
)
"""What the verdict between "fits" and "no" means."""
MANY_STAGES = 12
"""Above this, only the first, the fullest and the last stages are shown."""


def used(layout: Layout, devices: int) -> str:
    """What of a cluster a layout leaves unused, behind a verdict; nothing where it uses all.

    >>> used(Layout(dp=8), 64), used(Layout(dp=8), 8)
    (' on 8 of the 64 devices', '')
    """
    fewer = layout.devices < devices
    return f" on {layout.devices:,} of the {devices:,} devices" if fewer else ""


def show_fit(
    fit: Fit, console: Console, step: StepEstimate | None = None, way_out: str = ""
) -> None:
    """The verdict, the seconds of a step, the ledger by stage, and what would fit. ``way_out``:
    what a step of a batch that nobody gave stands for."""
    if fit.layout.devices > fit.cluster.devices:
        say(console, f": {fit.reason}", bold=fit.verdict, wrap=True)
        if fit.smallest_fix is not None and not fit.lacks_devices_only:
            say(console, f": {fit.smallest_fix}", bold="smallest fix", wrap=True)
        return
    verdict = fit.verdict + used(fit.layout, fit.cluster.devices)
    say(console, f": {fit.reason}", bold=verdict, wrap=True)
    if fit.verdict == "tight":
        say(console, TIGHT, wrap=True)
    if step is not None:
        show_speed(step, console, way_out)
    console.print(_ledger(fit.memory))
    for place, ledger in fit.memory.offloaded.items():
        where = "the host's memory" if place == "cpu" else "the disks"
        say(console, f"each device keeps {format_bytes(ledger.peak)} in {where}")
    for note in fit.notes:
        say(console, note, wrap=True)
    if fit.verdict == "fits":
        return
    if fit.smallest_fix is not None:
        say(console, f": {fit.smallest_fix}", bold="smallest fix", wrap=True)
    alone = {name: fix for name, fix in fit.fixes.items() if fix is not None}
    for name, fix in alone.items():
        if str(fix) != str(fit.smallest_fix):
            say(console, f"  {name} alone: {fix}", wrap=True)
    if rest := ", ".join(name for name in fit.fixes if name not in alone):
        say(console, f"  no value is enough of one of these alone: {rest}", wrap=True)


def show_speed(step: StepEstimate, console: Console, way_out: str = "") -> None:
    """Seconds, tokens/s and MFU, in a line."""
    layout = step.layout
    many = f"{layout.sequences:,} sequence{'s' * (layout.sequences > 1)}"
    many += f" of {step.sequence:,} tokens"
    if layout.pp > 1 and layout.microbatches < layout.pp:
        many += f" ({layout.microbatches} of {layout.pp} micro-batches that would fill its stages)"
    elif layout.microbatches > 1:
        many += f" ({layout.microbatches:,} micro-batches a copy)"
    speed = f"{step.tokens_per_second:,.0f} tokens/s, MFU {100 * step.mfu:.1f} %"
    words = f"a step of {many} takes {format_seconds(step.total)}"
    say(console, f"{words}: {speed}, within {100 * step.error:.0f} %{way_out}", wrap=True)


def show_bytes(step: StepEstimate, console: Console) -> None:
    """What each axis of more than one device moves."""
    rows = [
        (name, f"{getattr(step.layout, name)}", format_bytes(moved), AXES[name])
        for name, moved in step.moved.items()
    ]
    title = "what a device sends in a step, on the stage that sends most"
    if rows:
        console.print(Grid(("axis", "of", "bytes", "what"), rows, title, left=(0, 3)))


def _ledger(memory: MemoryEstimate) -> Grid:
    """A row per stage, a column per group of tensor classes; alike stages once."""
    ledger = memory.ledger
    states = {state.tensor: state for state in memory.recipe.states}

    def group(tensor: str) -> str:
        if tensor in states:
            return "optimizer" if states[tensor].of_optimizer else tensor
        if tensor == "key-value cache":
            return "KV cache"
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
    peaks, rows, before = ledger.per_place, [], -1
    for first, last in _alike(held):
        if first > before + 1:
            left_out = _span(before + 1, first - 1)
            most = max(peaks[stage] for stage in range(before + 1, first))
            rows.append((left_out, "...", *("" for _ in names), f"to {_gb(most)}"))
        before = last
        moments = ledger.moments(first)
        rows.append(
            (
                _span(first, last),
                max(moments, key=moments.__getitem__),
                *(_gb(held[first].get(name, 0)) for name in names),
                _gb(peaks[first]),
            )
        )
    title = "GB (1e9 bytes) on a device of each stage at its fullest moment"
    return Grid(("stage", "moment", *names, "in all"), rows, title, left=(0, 1))


def _span(first: int, last: int) -> str:
    """Stages as people count them, from 1."""
    return f"{first + 1}" if first == last else f"{first + 1} to {last + 1}"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.4g}" if size else ""


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


def show_plans(
    plans: Plans,
    first: int,
    console: Console,
    asked: Sequence[str] = (),
) -> None:
    """How many fit, the fastest, and the choice between time, memory and devices.

    asked
        Words after `tiledask fit` that name the model, the cluster and how it is trained.
    """
    counts = ", ".join(f"{n:,} {word}" for word, n in plans.counts.items())
    words = f" of {plans.model.name} on {plans.cluster}: {counts}"
    say(console, words, bold=f"{plans.considered:,} layouts", wrap=True)
    for note in filter(None, [plans.cluster.uneven]):
        say(console, f"  {note}", wrap=True)
    for why, many in plans.left_out.items():
        say(console, f"  not considered: {why} ({many:,} layouts)")
    if not plans.considered:
        plans.best  # noqa: B018 -- says why there is none
    shown = plans.settle(first)[:first]
    if plans.best.verdict == "no":
        console.print(plan_table(shown, "none fits; the nearest", plans))
        return
    sure = "" if plans.best.verdict == "fits" else "none fits for sure; of the tight ones, "
    console.print(plan_table(shown, f"{sure}fastest first", plans))
    if asked:
        words = shlex.join(["tiledask", "fit", *asked, *shown[0].layout.options])
        say(console, f"the first one:\n  {words}")
    say(console, plans.told_apart, wrap=True)
    front = plans.front
    if len(front) > 1:
        chosen = front[:: max(1, len(front) // 6)][:6]
        console.print(plan_table(chosen, f"no other plan beats these ({len(front)} in all)", plans))


SHORT = {
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
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


def plan_table(plans: Sequence[Plan], title: str, found: Plans) -> Grid:
    """A row per plan; fields that are the same in all stand in the title."""
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
        runs = [plan.verdict != "no" for plan in plans]
        timed = list(zip(plans, runs, strict=True))
        columns["a step"] = [format_seconds(plan.seconds) if ok else "" for plan, ok in timed]
        speeds = [f"{tokens / plan.seconds:,.0f}" if ok else "" for plan, ok in timed]
        columns["tokens/s"] = speeds
        columns["MFU"] = [f"{100 * plan.step.mfu:.1f} %" if ok else "" for plan, ok in timed]
    left_out = _narrow(columns)
    title = f"{title}; all: {same}" if same else title
    title += f"; not shown: {', '.join(left_out)}" if left_out else ""
    left = [i for i, name in enumerate(columns) if name == "verdict"]
    return Grid(tuple(columns), list(zip(*columns.values(), strict=True)), title, left)


def _narrow(columns: dict[str, list[str]]) -> list[str]:
    """Takes the columns away that tell least, until 80 characters are enough for the others."""
    left_out = []
    for name in ("flash", "SP", "expert tp", "v", "ZeRO", "b"):
        width = sum(2 + max(len(head), *map(len, cells)) for head, cells in columns.items()) - 2
        if width > 80 and columns.pop(name, None):
            left_out.append(name)
    return left_out


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def show_step(step: StepEstimate, console: Console) -> None:
    """Where the time of a step goes."""
    share = f"MFU {100 * step.mfu:.1f} %"
    if step.mfu_causal < 0.95 * step.mfu:
        share += f", {100 * step.mfu_causal:.1f} % if only the scores under a causal mask count"
    rows = [
        (
            row.part,
            format_seconds(row.seconds),
            f"{100 * row.seconds / step.total:.1f} %",
            row.formula,
        )
        for row in step.rows
        if row.seconds
    ]
    title = f"where the {format_seconds(step.total)} of a step go, {share}"
    console.print(Grid(("part", "time", "share", "formula"), rows, title, left=(0, 3)))
    say(console, f"assumed: {step.assumed}", wrap=True)


def show_export(exported: Exported, console: Console) -> dict[str, Any]:
    """The configuration as it is, what differs below it; the facts of it for JSON."""
    say(console, "", bold=f"for {exported.framework}")
    console.out(exported.text.rstrip("\n"), highlight=False)
    for note in exported.notes:
        say(console, f"  {note}")
    return {"framework": exported.framework, "text": exported.text, "notes": list(exported.notes)}


def show_critique(found: "PlanCritique", console: Console) -> dict[str, Any]:
    """What is wrong with a layout, and which single changes are better; the same for JSON."""
    for line in found.lines:
        say(console, f"  {line}")
    for advice in found.advice[:8]:
        say(console, f"  → {advice}")
    if not found.advice and found.step is not None:
        say(console, "  no single change makes it 1 % faster")
    return found.to_dict()
