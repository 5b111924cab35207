"""The words of `tiledask fit` and `tiledask plan`: verdicts, ledgers, ranked layouts, time; and of
the lists of what they take."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tiledask.errors import ConfigError, short
from tiledask.lab.table import Grid, say
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.data import meant, names
from tiledask.plan.fitting.fit import Fit
from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.frameworks.job import Exported
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster, load_model, models
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, recipes
from tiledask.plan.inputs.sized import ASSUMED
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, layout_schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.timing.checkpointing import Checkpointing
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tiledask.plan.choosing.critique import PlanCritique
    from tiledask.plan.fitting.snapshot import BesideSnapshot

__all__ = [
    "LISTS",
    "show_assumed",
    "show_critique",
    "show_export",
    "show_fit",
    "show_list",
    "show_plans",
    "show_saving",
    "show_snapshot",
    "show_step",
]

Facts = dict[str, Any]


def _model_facts(name: str) -> Facts:
    model = load_model(name)
    active = model.active_parameters if model.experts else None
    sizes = {
        name: getattr(model, name) for name in ("layers", "hidden", "heads", "kv_heads", "vocab")
    }
    return {"parameters": model.parameters, "active": active, **sizes}


def _device_facts(name: str) -> Facts:
    cluster = load_cluster(f"1x{name}")
    device, peaks = cluster.device, dict(cluster.device.peak_flops)
    half = next((peaks[p] for p in ("bf16", "fp16") if p in peaks), max(peaks.values()))
    return {
        "memory": device.memory_bytes,
        "memory/s": device.memory_bandwidth,
        "TFLOP/s in half": half / 1e12,
        "a node": cluster.devices_per_node,
        "within it/s": cluster.within_node.bytes_per_second,
        "between/s": cluster.between_nodes.bytes_per_second,
    }


def _recipe_facts(name: str) -> Facts:
    recipe = load_recipe(name)
    return {"bytes/parameter": recipe.bytes_per_parameter, "what": recipe.description}


def _schedule_facts(name: str) -> Facts:
    """Of 8 micro-batches on 4 devices, where a backward takes as long as two forwards."""
    stages = 8 if is_looped(name) or name in V_SHAPED else 4
    made = layout_schedule(name, stages, 8, 4)
    timeline = simulate(made, 4 / stages, 8 / stages)
    words = (schedules[name].__doc__ or "").split("\n\n")[0]
    return {
        "idle": timeline.bubble_fraction,
        "kept": float(max(timeline.peak_in_flight) * 4 / stages),
        "what": " ".join(words.split()),
    }


LISTS: dict[str, tuple[str, Callable[[], Iterable[str]], Callable[[str], Facts]]] = {
    "models": (
        "models; or a config.json, a name on the hub, a number such as 70B",
        models,
        _model_facts,
    ),
    "hardware": (
        "devices, as in 8xH100; links are one device's, one way",
        lambda: names("hardware"),
        _device_facts,
    ),
    "recipes": ("what is kept for every parameter", recipes, _recipe_facts),
    "schedules": (
        "on 4 devices with 8 micro-batches, a backward of two forwards: idle time, and "
        "micro-batches that the fullest device keeps",
        lambda: schedules,
        _schedule_facts,
    ),
}
"""What there is -> its title, its names, and the main numbers of one."""


def show_list(kind: str, part: str, console: Console) -> dict[str, Facts]:
    """What there is of ``kind`` whose name has ``part`` in it, with its main numbers."""
    title, known, facts = LISTS[kind]
    found = {name: facts(name) for name in known() if part.lower() in name}
    if not found:
        near = meant(part, known())
        raise ConfigError(
            f"no name of {kind} has {short(part)} in it; {near}without it all are listed"
        )
    columns = [
        name for name in next(iter(found.values())) if any(each[name] for each in found.values())
    ]
    rows = [(name, *(_cell(key, each[key]) for key in columns)) for name, each in found.items()]
    left = [0, *(i for i, name in enumerate(columns, 1) if name == "what")]
    console.print(Grid((kind, *columns), rows, title, left=left))
    return found


def _cell(name: str, value: Any) -> str:
    """A fact as the column ``name`` shows it."""
    if value is None or isinstance(value, str):
        return value or ""
    if name in ("parameters", "active"):
        return f"{value / 1e9:,.2f} B" if value > 1e9 else f"{value / 1e6:,.0f} M"
    if name.startswith("memory") or name.endswith("/s"):
        return format_bytes(value)
    if name == "idle":
        return f"{100 * value:.1f} %"
    return f"{value:,.5g}" if value < 1e4 else f"{value:,}"


MANY_STAGES = 12
"""Above this, only the first, the fullest and the last stages are shown."""


def show_fit(fit: Fit, console: Console) -> None:
    """The verdict, the ledger by stage, and what would fit."""
    say(console, f": {fit.reason}", bold=fit.verdict)
    say(console, fit.assumed)
    console.print(_ledger(fit.memory))
    for note in fit.notes:
        say(console, note)
    if fit.verdict == "fits":
        return
    if fit.smallest_fix is not None:
        say(console, f": {fit.smallest_fix}", bold="smallest fix")
    alone = {name: fix for name, fix in fit.fixes.items() if fix is not None}
    for name, fix in alone.items():
        say(console, f"  {name} alone: {fix}")
    if rest := ", ".join(name for name in fit.fixes if name not in alone):
        say(console, f"  no value is enough of one of these alone: {rest}")


def show_assumed(model: Model, console: Console) -> None:
    """What is assumed of a model that is only a number of parameters."""
    if model.source.startswith(ASSUMED):
        say(console, f"{model.name}: {model.source}")


def _ledger(memory: MemoryEstimate) -> Grid:
    """A row per stage, a column per group of tensor classes; alike stages once."""
    ledger = memory.ledger
    states = {state.tensor: state for state in memory.recipe.states}

    def group(tensor: str) -> str:
        if tensor in states:
            return "optimizer" if states[tensor].of_optimizer else tensor
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
    for note in filter(None, [plans.cluster.uneven]):
        say(console, f"  {note}")
    for why, many in plans.left_out.items():
        say(console, f"  not considered: {why} ({many:,} layouts)")
    if not plans.considered:
        plans.best  # noqa: B018 -- says why there is none
    shown = plans.settle(first)[:first]
    if plans.best.verdict == "no":
        console.print(_table(shown, "none fits; the nearest", plans))
        return
    sure = "" if plans.best.verdict == "fits" else "none fits for sure; of the tight ones, "
    console.print(_table(shown, f"{sure}fastest first", plans, timed=True))
    if asked:
        words = shlex.join(["tiledask", "fit", *asked, *shown[0].layout.options])
        say(console, f"the first one: {words}")
    say(console, plans.told_apart)
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
    "expert_tp": "expert tp",
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


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def show_step(step: StepEstimate, console: Console) -> None:
    """Where the time of a step goes."""
    used = f"MFU {100 * step.mfu:.1f} %"
    if step.mfu_causal < 0.95 * step.mfu:
        used += f", {100 * step.mfu_causal:.1f} % if only the scores under a causal mask count"
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
    title = f"where the {format_seconds(step.total)} of a step go, {used}"
    console.print(Grid(("part", "time", "share", "formula"), rows, title, left=(0, 3)))
    say(console, f"assumed: {step.assumed}")


def show_saving(saving: Checkpointing, console: Console) -> dict[str, Any]:
    """How often to save, in a line; the facts of it for JSON."""
    say(console, saving.line)
    return saving.to_dict()


def show_export(exported: Exported, console: Console) -> dict[str, Any]:
    """The configuration as it is, what differs below it; the facts of it for JSON."""
    say(console, "", bold=f"for {exported.framework}")
    console.out(exported.text.rstrip("\n"), highlight=False)
    for note in exported.notes:
        say(console, f"  {note}")
    return {"framework": exported.framework, "text": exported.text, "notes": list(exported.notes)}


def show_snapshot(beside: "BesideSnapshot", console: Console) -> dict[str, Any]:
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


def show_critique(found: "PlanCritique", console: Console) -> None:
    """What is wrong with a layout, and which single changes are better."""
    for line in found.lines:
        say(console, f"  {line}")
    for advice in found.advice[:8]:
        say(console, f"  → {advice}")
    if not found.advice and found.step is not None:
        say(console, "  no single change makes it 1 % faster")
