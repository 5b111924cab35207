"""What `tiledask fit` and `plan` print: verdicts, ledgers, ranked layouts, time and bytes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tiledask.lab.table import Grid, table
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.timing.axis_bytes import AXES
from tiledask.plan.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from tiledask.plan.choosing.search import Plan, Plans
    from tiledask.plan.fitting.fit import Fit
    from tiledask.plan.fitting.memory import MemoryEstimate
    from tiledask.plan.timing.step import StepEstimate

__all__ = [
    "TIGHT",
    "bytes_table",
    "cost_words",
    "critique_words",
    "draw",
    "draw_memory",
    "export_words",
    "fit_words",
    "plan_table",
    "plans_words",
    "step_words",
    "used",
]

TIGHT = (
    "tight: what is counted fits, but not with all of the overhead, or not if the estimate is as "
    "far off as half of the published runs"
)
"""What the verdict between "fits" and "no" means."""
MANY_STAGES = 12
"""Above this, only the first, the fullest and the last stages are shown."""
Words = Iterator[Any]


def used(layout: Layout, devices: int) -> str:
    """What of a cluster a layout leaves unused, behind a verdict; nothing where it uses all."""
    fewer = layout.devices < devices
    return f" on {layout.devices:,} of the {devices:,} devices" if fewer else ""


def fit_words(fit: "Fit", step: "StepEstimate | None" = None, way_out: str = "") -> Words:
    """The verdict, the seconds of a step, the ledger by stage, and what would fit. ``way_out``:
    what a step of a batch that nobody gave stands for."""
    yield f"{fit.verdict}{used(fit.layout, fit.cluster.devices)}", f": {fit.reason}"
    smallest = ("smallest fix", f": {fit.smallest_fix}") if fit.smallest_fix is not None else ""
    if fit.layout.devices > fit.cluster.devices:
        if smallest and not fit.lacks_devices_only:
            yield smallest
        return
    if fit.verdict == "tight":
        yield TIGHT
    if step is not None:
        yield _speed(step) + way_out
    yield _ledger(fit.memory)
    for place, ledger in fit.memory.offloaded.items():
        where = "the host's memory" if place == "cpu" else "the disks"
        yield f"each device keeps {format_bytes(ledger.peak)} in {where}"
    yield from fit.notes
    if fit.verdict == "fits":
        return
    if smallest:
        yield smallest
    for name, fix in fit.fixes.items():
        if fix is not None and str(fix) != str(fit.smallest_fix):
            yield f"  {name} alone: {fix}"


def _speed(step: "StepEstimate") -> str:
    """Seconds, tokens/s and MFU, in a line."""
    layout = step.layout
    many = f"{layout.sequences:,} sequence{'s' * (layout.sequences > 1)}"
    many += f" of {step.sequence:,} tokens"
    if layout.pp > 1 and layout.microbatches < layout.pp:
        many += f" ({layout.microbatches} of {layout.pp} micro-batches that would fill its stages)"
    elif layout.microbatches > 1:
        many += f" ({layout.microbatches:,} micro-batches a copy)"
    speed = f"{step.tokens_per_second:,.0f} tokens/s, MFU {100 * step.mfu:.1f} %"
    took = f"a step of {many} takes {format_seconds(step.total)}"
    return f"{took}: {speed}, within {100 * step.error:.0f} %"


def bytes_table(step: "StepEstimate") -> Words:
    """What each axis of more than one device moves."""
    rows = {
        name: {"of": getattr(step.layout, name), "bytes": moved, "what": AXES[name]}
        for name, moved in step.moved.items()
    }
    if rows:
        title = "what a device sends in a step, on the stage that sends most"
        yield table(rows, title, bytes="bytes")


def _ledger(memory: "MemoryEstimate") -> Grid:
    """A row per stage, a column per group of tensor classes; alike stages once."""
    ledger = memory.ledger
    groups = {s.tensor: "optimizer" if s.of_optimizer else s.tensor for s in memory.recipe.states}
    groups["key-value cache"] = "KV cache"
    held: dict[int, Counter[str]] = {stage: Counter() for stage in ledger.places}
    for stage, sums in held.items():
        for tensor, size in ledger.by_tensor(stage).items():
            other = "activation" in tensor or "logit" in tensor
            sums[groups.get(tensor, "activations" if other else "buffers")] += size
    every = dict.fromkeys(name for sums in held.values() for name in sums)
    names = [name for name in every if any(sums[name] for sums in held.values())]
    peaks, rows, following = ledger.per_place, [], 0
    for first, last in _alike(held):
        if first > following:
            most = max(peaks[stage] for stage in range(following, first))
            gap = (_span(following, first - 1), "...", *[""] * len(names), f"to {_gb(most)}")
            rows.append(gap)
        following = last + 1
        moments = ledger.moments(first)
        fullest = max(moments, key=moments.__getitem__)
        sizes = (_gb(size) for size in (*(held[first][name] for name in names), peaks[first]))
        rows.append((_span(first, last), fullest, *sizes))
    title = "GB (1e9 bytes) on a device of each stage at its fullest moment"
    return Grid(("stage", "moment", *names, "in all"), rows, title, left=(0, 1))


def _span(first: int, last: int) -> str:
    """Stages as people count them, from 1."""
    return f"{first + 1}" if first == last else f"{first + 1} to {last + 1}"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.4g}" if size else ""


def _alike(held: dict[int, Counter[str]]) -> list[tuple[int, int]]:
    """(first, last) of each run of stages that hold the same; of many runs, the ends and the
    fullest."""
    groups = ([*stages] for _, stages in groupby(held, held.__getitem__))
    runs = [(stages[0], stages[-1]) for stages in groups]
    if len(runs) <= MANY_STAGES:
        return runs
    fullest = max(runs, key=lambda run: held[run[0]].total())
    return sorted({*runs[:3], fullest, *runs[-3:]})


def plans_words(plans: "Plans", first: int, again: str = "") -> Words:
    """How many fit, and the fastest. ``again``: the command that asks for the first one."""
    shown = plans.settle(first)[:first]
    counts = ", ".join(f"{n:,} {word}" for word, n in plans.counts.items())
    yield f"{plans.considered:,} layouts", f" of {plans.model.name} on {plans.cluster}: {counts}"
    if plans.cluster.uneven:
        yield f"  {plans.cluster.uneven}"
    for why, many in plans.left_out.items():
        yield f"  not considered: {why} ({many:,} layouts)"
    if plans.best.verdict == "no":
        yield plan_table(shown, "none fits; the nearest", plans)
        return
    sure = "" if plans.best.verdict == "fits" else "none fits for sure; of the tight ones, "
    yield plan_table(shown, f"{sure}fastest first", plans)
    if again:
        yield f"the first one:\n  {again}"
    yield plans.told_apart


SHORT = {name: name for name in ("dp", "tp", "pp", "cp", "ep")} | {
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


def plan_table(plans: "Sequence[Plan]", title: str, found: "Plans") -> Grid:
    """A row per plan; fields that are the same in all stand in the title."""
    columns, same = {"": [f"{n + 1}" for n in range(len(plans))]}, []
    for name, head in SHORT.items():
        values = [_word(getattr(plan.layout, name)) for plan in plans]
        if len(set(values)) > 1:
            columns[head] = values
        elif values[0] != _word(getattr(Layout(), name)):
            same.append(f"{head} {values[0]}")
    devices, verdicts = [f"{p.layout.devices}" for p in plans], [p.verdict for p in plans]
    columns |= {"devices": devices} if len(set(devices)) > 1 else {}
    columns |= {"verdict": verdicts} if len(set(verdicts)) > 1 else {}
    columns["a device"] = [format_bytes(plan.peak) for plan in plans]
    if plans[0].seconds < float("inf"):
        tokens, runs = found.global_batch * found.sequence, [p.verdict != "no" for p in plans]
        timed = list(zip(plans, runs, strict=True))
        columns["a step"] = [format_seconds(p.seconds) if ok else "" for p, ok in timed]
        columns["tokens/s"] = [f"{tokens / p.seconds:,.0f}" if ok else "" for p, ok in timed]
        columns["MFU"] = [f"{100 * p.step.mfu:.1f} %" if ok else "" for p, ok in timed]
    title += f"; all: {', '.join(same)}" if same else ""
    # takes the columns away that tell least, until 80 characters are enough for the others
    left_out = []
    for name in ("flash", "SP", "expert tp", "v", "ZeRO", "b"):
        widths = [max(len(head), *map(len, cells)) for head, cells in columns.items()]
        if sum(widths) + 2 * (len(widths) - 1) > 80 and columns.pop(name, []):
            left_out.append(name)
    title += f"; not shown: {', '.join(left_out)}" if left_out else ""
    left = [i for i, name in enumerate(columns) if name == "verdict"]
    return Grid(tuple(columns), list(zip(*columns.values(), strict=True)), title, left)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def step_words(step: "StepEstimate") -> Words:
    """Where the time of a step goes."""
    share = f"MFU {100 * step.mfu:.1f} %"
    if step.mfu_causal < 0.95 * step.mfu:
        share += f", {100 * step.mfu_causal:.1f} % if only the scores under a causal mask count"
    rows = [
        {"part": r.part, "time": r.seconds, "share": r.seconds / step.total, "formula": r.formula}
        for r in step.rows
        if r.seconds
    ]
    title = f"where the {format_seconds(step.total)} of a step go, {share}"
    yield table(rows, title, time="seconds", share="percent")
    yield f"assumed: {step.assumed}"


def cost_words(args: Any, step: "StepEstimate", saving: Any, result: dict[str, Any]) -> Words:
    """Days, device-hours and money of --tokens; they and the step go into the result, too."""
    result |= {"step": step.to_dict(), "saving": saving.to_dict()}
    if args.tokens is None:
        return
    budget = step.budget(args.tokens, args.price, saving.stretch)
    lost = format_percent(budget.stretch - 1)
    off = f"{100 * budget.error:.0f} % either way, {lost} for savings and losses in it"
    yield f"{budget.line}: {off}"
    names = ("tokens", "days", "device_hours", "price", "cost", "stretch", "error")
    result["budget"] = {name: getattr(budget, name) for name in names}


def export_words(exported: Any, result: dict[str, Any]) -> Words:
    """The configuration as it is, what differs below it; it goes into the result, too."""
    notes = [f"  {note}" for note in exported.notes]
    yield f"for {exported.framework}", "\n".join(["", exported.text.rstrip("\n"), *notes])
    facts = {"framework": exported.framework, "text": exported.text}
    result["export"] = facts | {"notes": list(exported.notes)}


def critique_words(found: Any, result: dict[str, Any]) -> Words:
    """What is wrong with a layout, and which single changes are better; into the result, too."""
    yield from (f"  {line}" for line in found.lines)
    yield from (f"  → {advice}" for advice in found.advice[:8])
    if not found.advice and found.step is not None:
        yield "  no single change makes it 1 % faster"
    result["critique"] = found.to_dict()


def draw_memory(fit: "Fit", path: str | None) -> None:
    """The memory of each stage beside a device's, where a file was named."""
    over = fit.overhead.total
    draw("memory_bars", path, fit.memory.ledger, fit.capacity, place="stage", overhead=over)


def draw(figure: str, path: str | None, *about: Any, **options: Any) -> None:
    """The figure of that name in tiledask.lab.plots as a file, where one was named."""
    if path:
        from tiledask.lab import plots
        from tiledask.lab.files import save_figure

        save_figure(getattr(plots, figure)(*about, **options), path)
