"""`tiledask list`: what is shipped, with its main numbers."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import Run
from tiledask.lab.sweep import compare_schedules
from tiledask.plan.data import meant, names
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.pipelines.schedules import WHAT, schedules
from tiledask.plan.tables import table

__all__ = ["run_list"]

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
    half = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
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
    found = compare_schedules([name], 4, 8)[name]
    return {"idle": found["idle"], "kept": found["kept"], "what": WHAT[name]}


LISTS: dict[str, tuple[str, Callable[[str], Facts]]] = {
    "models": ("models; or a config.json, a name on the hub, a number such as 70B", _model),
    "hardware": ("devices, as in 8xH100; links are one device's, one way", _device),
    "recipes": ("what is kept for every parameter", _recipe),
    "schedules": (
        "on 4 devices with 8 micro-batches, a backward of two forwards: idle time, and "
        "micro-batches that the fullest device keeps",
        _schedule,
    ),
}
"""What there is -> its title, and the main numbers of one."""
UNITS = dict.fromkeys(("memory", "memory/s", "within it/s", "between/s"), "bytes")
UNITS["idle"] = "percent"


def run_list(args: argparse.Namespace) -> Run:
    """What there is of a kind whose name has a part in it, with its main numbers."""
    kind, part = args.kind, args.part or ""
    if kind not in LISTS:
        raise ConfigError(
            f"no list {short(kind)}; {meant(kind, LISTS)}tiledask list --help has them all"
        )
    title, facts = LISTS[kind]
    known: Iterable[str] = schedules if kind == "schedules" else names(kind)
    found = {name: facts(name) for name in known if part.lower() in name}
    if not found:
        near = meant(part, known)
        raise ConfigError(
            f"no name of {kind} has {short(part)} in it; {near}tiledask list {kind} has all"
        )
    columns = [key for key in next(iter(found.values())) if any(f[key] for f in found.values())]
    shorter = {"kv_heads": "kv"}  # for 80 columns
    rows = {
        name: {shorter.get(key, key): _cell(key, each[key]) for key in columns}
        for name, each in found.items()
    }
    yield table(rows, title, **{key: UNITS[key] for key in columns if key in UNITS})
    return 0, found


def _cell(name: str, value: Any) -> Any:
    """A number as the column ``name`` shows it, where its unit is not enough."""
    if name not in ("parameters", "active"):
        return value
    if value is None:
        return ""
    return f"{value / 1e9:,.2f} B" if value > 1e9 else f"{value / 1e6:,.0f} M"
