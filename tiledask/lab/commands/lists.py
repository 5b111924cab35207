"""`tiledask list`: what is shipped, with its main numbers."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import Run
from tiledask.lab.table import Grid
from tiledask.plan.data import meant, names
from tiledask.plan.inputs.load import load_cluster, load_model, models
from tiledask.plan.inputs.recipes import load_recipe, recipes
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, layout_schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.units import format_bytes

__all__ = ["LIST_OPTIONS", "run_list"]

Facts = dict[str, Any]


def _model(name: str) -> Facts:
    model = load_model(name)
    sizes = ("layers", "hidden", "heads", "kv_heads", "vocab")
    active = model.active_parameters if model.experts else None
    facts = {"parameters": model.parameters, "active": active}
    return facts | {size: getattr(model, size) for size in sizes}


def _device(name: str) -> Facts:
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


def _recipe(name: str) -> Facts:
    recipe = load_recipe(name)
    return {"bytes/parameter": recipe.bytes_per_parameter, "what": recipe.description}


def _schedule(name: str) -> Facts:
    """Of 8 micro-batches on 4 devices, where a backward takes as long as two forwards."""
    stages = 8 if is_looped(name) or name in V_SHAPED else 4
    timeline = simulate(layout_schedule(name, stages, 8, 4), 4 / stages, 8 / stages)
    words = (schedules[name].__doc__ or "").split("\n\n")[0]
    kept = float(max(timeline.peak_in_flight) * 4 / stages)
    return {"idle": timeline.bubble_fraction, "kept": kept, "what": " ".join(words.split())}


LISTS: dict[str, tuple[str, Callable[[], Iterable[str]], Callable[[str], Facts]]] = {
    "models": ("models; or a config.json, a name on the hub, a number such as 70B", models, _model),
    "hardware": (
        "devices, as in 8xH100; links are one device's, one way",
        lambda: names("hardware"),
        _device,
    ),
    "recipes": ("what is kept for every parameter", recipes, _recipe),
    "schedules": (
        "on 4 devices with 8 micro-batches, a backward of two forwards: idle time, and "
        "micro-batches that the fullest device keeps",
        lambda: schedules,
        _schedule,
    ),
}
"""What there is -> its title, its names, and the main numbers of one."""
LIST_OPTIONS = f"""
KIND                 {", ".join(LISTS)}
PART?                of a name, such as llama; all if none
"""
HEADS = {"kv_heads": "kv", "TFLOP/s in half": "TFLOP/s, 16 bit"}
"""Shorter headings of some numbers, for 80 columns."""


def run_list(args: argparse.Namespace) -> Run:
    """What there is of a kind whose name has a part in it, with its main numbers."""
    kind, part = args.kind, args.part or ""
    if kind not in LISTS:
        raise ConfigError(
            f"no list {short(kind)}; {meant(kind, LISTS)}tiledask list --help has them all"
        )
    title, known, facts = LISTS[kind]
    found = {name: facts(name) for name in known() if part.lower() in name}
    if not found:
        near = meant(part, known())
        raise ConfigError(
            f"no name of {kind} has {short(part)} in it; {near}tiledask list {kind} has all"
        )
    columns = [
        name for name in next(iter(found.values())) if any(each[name] for each in found.values())
    ]
    rows = [(name, *(_cell(key, each[key]) for key in columns)) for name, each in found.items()]
    left = [0, *(i for i, name in enumerate(columns, 1) if name == "what")]
    head = (kind.removesuffix("s"), *(HEADS.get(name, name) for name in columns))
    yield Grid(head, rows, title, left=left)
    return 0, found


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
