"""`tiledask fit MODEL CLUSTER`: the best layouts that fit; where none does, what would."""

import argparse
import re
import shlex
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import planner
from tiledask.lab.commands.one_layout import draw_memory, one_layout
from tiledask.lab.commands.options import (
    SETTLED,
    Request,
    Result,
    assumed_by,
    batch_of,
    recipe_words,
    say_assumed,
    show_budget,
    usual_batch,
)
from tiledask.lab.table import say
from tiledask.plan.data import names
from tiledask.plan.fitting.fewest import fewest_devices
from tiledask.plan.fitting.overhead import overhead_of, sure_of
from tiledask.plan.inputs.run import caches, check_timed, check_trains
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["best", "command", "fewest"]

FIRST = 5
"""Layouts that are shown, each of other degrees."""


def best(args: argparse.Namespace, asked: Request, console: Any) -> Result:
    """The fastest layouts that fit, or what would."""
    if not asked.recipe.trains or asked.recipe.places:
        return _smallest(args, asked, console)
    caches(asked.recipe, args.cached)  # refused where it trains
    plans = _search(args, asked)
    shown, first = _apart(plans), plans.best
    say_assumed(asked, console)
    result = {
        "model": {"name": asked.model.name, "source": asked.model.source},
        "considered": plans.considered,
        "counts": plans.counts,
        "plans": [_facts(plan) for plan in shown],
        "verdict": first.verdict,
        "devices": first.layout.devices,
        "batch": plans.global_batch,
        "sequence": asked.sequence,
        "recipe": plans.recipe.name,
        "framework": plans.run.framework,
        "assumptions": asked.assumed,
    }
    if first.verdict == "no":
        return 1, result | {"would_fit": _what_would(args, asked, plans, console)}
    devices, step = asked.cluster.devices, first.step
    where = planner.used(first.layout, devices) or f" on {devices:,} device{'s' * (devices > 1)}"
    say(
        console,
        f"{where}: {plans.counts[first.verdict]:,} of {plans.considered:,} layouts; the fastest "
        f"takes {format_seconds(first.seconds)} a step, {step.tokens_per_second:,.0f} tokens/s, "
        f"MFU {100 * step.mfu:.1f} %",
        bold=first.verdict,
        wrap=True,
    )
    if first.verdict == "tight":
        say(console, planner.TIGHT, wrap=True)
    console.print(planner.plan_table(shown, "the fastest of each dp, tp, pp and cp", plans))
    say(console, "the first one; as typed here it shows the bytes that each axis moves, too:")
    say(console, f"  {command(args, asked, first.layout, devices)}")
    saving = first.checkpointing()
    result |= show_budget(args, step, saving, console)
    if args.export:
        result["export"] = planner.show_export(first.to(args.export), console)
    if args.critique:
        layout = asked.model, first.layout, asked.cluster, plans.recipe, asked.sequence
        found = td.critique(*layout, **plans.assumed)
        result["critique"] = planner.show_critique(found, console)
    if args.figure:
        draw_memory(first.fit, args.figure)
    if args.explain:
        if asked.model.source:
            say(console, f"{asked.model.name}: {asked.model.source}")
        say(console, plans.told_apart)
        planner.show_step(step, console)
        say(console, saving.line)
    return 0, result


def _apart(plans: Any) -> list[Any]:
    """The fastest of the first few for each dp x tp x pp x cp; of those that fit, if any does."""
    found: dict[Any, Any] = {}
    for plan in plans[:SETTLED]:
        degrees = tuple(getattr(plan.layout, name) for name in ("dp", "tp", "pp", "cp"))
        if plan.verdict != "no" or plans.best.verdict == "no":
            found.setdefault(degrees, plan)
    return list(found.values())[:FIRST]


def _facts(plan: Any) -> dict[str, Any]:
    """A row of the table, for JSON; of a layout that does not fit nothing about time."""
    facts = {"layout": vars(plan.layout), "devices": plan.layout.devices, "peak": plan.peak}
    facts |= {"verdict": plan.verdict, "options": shlex.join(plan.layout.options)}
    if plan.verdict == "no":
        return facts
    step = plan.step
    speed = {"tokens_per_second": step.tokens_per_second, "mfu": step.mfu}
    return facts | {"seconds": step.total, **speed}


def command(args: argparse.Namespace, asked: Request, layout: Any, devices: int) -> str:
    """`tiledask fit` with this layout, to be copied."""
    counted = re.fullmatch(r"\s*[0-9]+\s*[x×]\s*(.+?)\s*", args.cluster, re.IGNORECASE)
    where = f"{devices}x{counted[1].replace(' ', '')}" if counted else args.cluster
    words = [args.model, where, "--sequence", str(asked.sequence)]
    words += recipe_words(args, asked.recipe)
    return shlex.join(["tiledask", "fit", *words, *layout.options])


def _again(args: argparse.Namespace, asked: Request, **changed: Any) -> str:
    """The same question with other arguments, to be copied."""
    given = vars(args) | changed
    words = [given["model"], given["cluster"], "--sequence", str(asked.sequence)]
    for name in ("recipe", "lora_rank", "offload", "framework", "calibration"):
        if given[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    if given["batch"] is not None and not given["offload"]:
        words += ["--batch", str(given["batch"])]
    return shlex.join(["tiledask", "fit", *words])


def _search(args: argparse.Namespace, asked: Request) -> Any:
    """The layouts of all devices; where none of them fits, of fewer that share out better."""
    cluster, node = asked.cluster, asked.cluster.devices_per_node
    run = {"sequence": asked.sequence, "recipe": asked.recipe, **assumed_by(args)}
    found = td.search(asked.model, cluster, batch_of(args, asked), **run).settle(SETTLED)
    if found.best.verdict == "fits":
        return found
    least = fewest(args, asked)
    if least is None or least.devices > cluster.devices:
        return found
    for many in {cluster.devices // node * node: 1, least.devices: 1}:
        if not least.devices <= many < cluster.devices:
            continue
        batch = args.batch or usual_batch(many, asked.sequence)
        other = td.search(asked.model, cluster, batch, devices=[many], **run).settle(SETTLED)
        if len(other) and other.best.verdict == "fits":
            if args.batch is None:
                asked.assumed[-1] = f"a step of {batch:,} sequences of {asked.sequence:,} tokens"
            return other
    return found


def fewest(args: argparse.Namespace, asked: Request, recipe: Any = None) -> Any:
    """The Layout on the fewest devices of the cluster's kind, however many it has; or None."""
    recipe = recipe or asked.recipe
    known = calibration_of(asked.cluster.device, recipe, **assumed_by(args))
    held = replace(known.holding(recipe), cached=getattr(args, "cached", 0) or recipe.cached)
    return fewest_devices(asked.model, td.Layout(), asked.cluster, held, asked.sequence)


def _smallest(args: argparse.Namespace, asked: Request, console: Any) -> Result:
    """Of what has no time model, served or offloaded: the layout on the fewest devices."""
    if args.batch is not None or args.tokens is not None:
        check_trains(asked.recipe)
        check_timed(asked.recipe)
    asked.layout = fewest(args, asked)
    if asked.layout is None:
        asked.layout = td.Layout()
    else:
        options = shlex.join(asked.layout.options)
        asked.assumed.append(f"the layout on the fewest devices: {options}")
    return one_layout(args, asked, console)


def _what_would(args: argparse.Namespace, asked: Request, plans: Any, console: Any) -> Any:
    """Why none fits, and what would: more devices, larger ones, fewer states on them."""
    cluster, nearest = asked.cluster, plans.best
    over = overhead_of(nearest.layout, plans.run.framework).total
    many, room = cluster.devices, format_bytes(cluster.device.memory_bytes)
    states = asked.model.parameters * asked.recipe.bytes_per_parameter
    say(
        console,
        f": none of {plans.considered:,} layouts fits on {cluster}: states of "
        f"{asked.recipe.bytes_per_parameter:g} B a parameter are {format_bytes(states)}, "
        f"{format_bytes(states / many)} on each; the nearest layout, "
        f"{shlex.join(nearest.layout.options) or 'of one device'}, takes "
        f"{format_bytes(nearest.peak)} a device and {format_bytes(over)} of overhead",
        bold="no",
        wrap=True,
    )
    if args.explain:
        say(console, nearest.fit.reason, wrap=True)
    would: dict[str, Any] = {}
    lines = []
    least = fewest(args, asked)
    if least is not None and least.devices > many:
        would["devices"] = {"count": least.devices, "layout": vars(least)}
        lines.append((f"{least.devices:,} devices", command(args, asked, least, least.devices)))
    sure = cluster.device.memory_bytes / sure_of(cluster.device, plans.run)
    needed = -int(-(nearest.peak + over) * sure // 1e9) * 10**9
    larger = _larger(args, asked, needed)
    size, card = (larger.memory_bytes, larger.name) if larger else (needed, "")
    would["memory"] = {"bytes": size, "card": card}
    some = f"{many:,} device{'s' * (many > 1)} of {format_bytes(size)} in the place of {room}"
    if larger:
        again = _again(args, asked, cluster=f"{many}x{card}")
        lines.append((f"{some}, such as {card}", again))
    else:
        lines.append((f"{some}, more than any card that is shipped has", ""))
    for option, changed, recipe in _others(asked.recipe):
        try:
            other = fewest(args, asked, recipe)
        except ConfigError:  # adapters of weights that the model does not have
            continue
        if other is not None and other.devices <= many:
            would[option] = {"devices": other.devices, "layout": vars(other)}
            some = f"{option}, on {other.devices:,} of the devices"
            lines.append((some, _again(args, asked, **changed)))
    say(console, "what would fit, each the smallest change of its kind:")
    for line, words in lines:
        say(console, f"  {line}{':' * bool(words)}", wrap=True)
        if words:
            say(console, f"    {words}")
    return would


def _others(recipe: Any) -> list[tuple[str, dict[str, Any], Any]]:
    """Options that keep less on the devices, what they change, and the recipe."""
    if recipe.adapters is not None:
        return []
    rank = {"lora_rank": 16, "recipe": None}
    others = [("--lora-rank 16", rank, td.load_recipe("lora"))]
    if any(state.of_optimizer for state in recipe.states):
        offloaded = td.offload(recipe, to="cpu")
        others.insert(0, ("--offload cpu", {"offload": "cpu"}, offloaded))
    return others


def _larger(args: argparse.Namespace, asked: Request, needed: int) -> Any:
    """The shipped Device with the least memory that is enough, by the program that runs on it,
    too; None if none has as much."""
    cards = (td.load_cluster(f"1x{name}").device for name in names("hardware"))
    enough = [card for card in cards if card.memory_bytes >= needed]
    for card in sorted(enough, key=lambda d: (d.memory_bytes, "TPU" in d.name, d.name)):
        cluster = td.load_cluster(f"{asked.cluster.devices}x{card.name}")
        try:
            least = fewest(args, replace(asked, cluster=cluster))
        except ConfigError:  # such as a card without the recipe's precision
            continue
        if least is not None and least.devices <= cluster.devices:
            return card
    return None
