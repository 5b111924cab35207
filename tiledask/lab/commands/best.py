"""`tiledask fit MODEL CLUSTER`: the best layouts that fit; where none does, what would."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands import shown
from tiledask.lab.commands.one_layout import one_layout
from tiledask.lab.commands.options import SETTLED, Request, Run, command, usual_batch
from tiledask.plan.data import names
from tiledask.plan.fitting.fewest import fewest_devices
from tiledask.plan.fitting.overhead import overhead_of, sure_of
from tiledask.plan.inputs.run import caches, check_timed, check_trains
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["best", "fewest", "on_cards"]

FIRST = 5
"""Layouts that are shown, each of other degrees."""
SAVES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "--offload cpu": ({"offload": "cpu"}, lambda recipe: td.offload(recipe, to="cpu")),
    "--lora-rank 16": ({"lora_rank": 16, "recipe": None}, lambda recipe: td.load_recipe("lora")),
}
"""Options that keep less on the devices: what they change, and the recipe."""


def best(asked: Request) -> Run:
    """The fastest layouts that fit, or what would."""
    args = asked.args
    if not asked.recipe.trains or asked.recipe.places:
        return (yield from _smallest(asked))
    caches(asked.recipe, args.cached)  # refused where it trains
    plans = _search(asked)
    few, first = _differ(plans), plans.best
    yield from asked.assumed
    result: dict[str, Any] = {
        "model": {"name": asked.model.name, "source": asked.model.source},
        "considered": plans.considered,
        "counts": plans.counts,
        "plans": [_facts(plan) for plan in few],
        "verdict": first.verdict,
        "devices": first.layout.devices,
        "batch": plans.global_batch,
        "sequence": asked.sequence,
        "recipe": plans.recipe.name,
        "framework": plans.run.framework,
        "assumptions": asked.notes,
    }
    if first.verdict == "no":
        result["would_fit"] = {}
        yield from _what_would(asked, plans, result["would_fit"])
        return 1, result
    devices, step, saving = asked.cluster.devices, first.step, first.checkpointing()
    where = shown.used(first.layout, devices) or f" on {devices:,} device{'s' * (devices > 1)}"
    yield (
        first.verdict,
        f"{where}: {plans.counts[first.verdict]:,} of {plans.considered:,} layouts; the fastest "
        f"takes {format_seconds(first.seconds)} a step, {step.tokens_per_second:,.0f} tokens/s, "
        f"MFU {100 * step.mfu:.1f} %",
    )
    if first.verdict == "tight":
        yield shown.TIGHT
    yield shown.plan_table(few, "the fastest of each dp, tp, pp and cp", plans)
    again = command(asked, on_cards(asked, devices), first.layout)
    yield f"the first one; as typed here it shows the bytes that each axis moves, too:\n  {again}"
    yield from shown.cost_words(args, step, saving, result)
    if args.export:
        yield from shown.export_words(first.to(args.export), result)
    if args.critique:
        run = asked.model, first.layout, asked.cluster, plans.recipe, asked.sequence
        yield from shown.critique_words(td.critique(*run, **plans.assumed), result)
    shown.draw_memory(first.fit, args.figure)
    if args.explain:
        if asked.model.source:
            yield f"{asked.model.name}: {asked.model.source}"
        yield from (plans.told_apart, *shown.step_words(step), saving.line)
    return 0, result


def _differ(plans: Any) -> list[Any]:
    """The fastest of the first few for each dp x tp x pp x cp; of those that fit, if any does."""
    found: dict[Any, Any] = {}
    for plan in plans[:SETTLED]:
        degrees = tuple(getattr(plan.layout, name) for name in ("dp", "tp", "pp", "cp"))
        if plan.verdict != "no" or plans.best.verdict == "no":
            found.setdefault(degrees, plan)
    return list(found.values())[:FIRST]


def _facts(plan: Any) -> dict[str, Any]:
    """A row of the table, for JSON; of a layout that does not fit nothing about time."""
    speed = ("tokens_per_second", "mfu") if plan.verdict != "no" else ()
    return dict(plan.to_dict(), **{name: getattr(plan.step, name) for name in speed})


def on_cards(asked: Request, devices: int) -> str:
    """The cluster as it was typed, of so many devices."""
    counted = re.fullmatch(r"\s*[0-9]+\s*[x×]\s*(.+?)\s*", asked.args.cluster, re.IGNORECASE)
    return f"{devices}x{counted[1].replace(' ', '')}" if counted else str(asked.args.cluster)


def _search(asked: Request) -> Any:
    """The layouts of all devices; where none of them fits, of fewer that share out better."""
    cluster, node = asked.cluster, asked.cluster.devices_per_node
    run = {"sequence": asked.sequence, "recipe": asked.recipe, **asked.by}
    found = td.search(asked.model, cluster, asked.batch(), **run).settle(SETTLED)
    if found.best.verdict == "fits":
        return found
    least = fewest(asked)
    if least is None or least.devices > cluster.devices:
        return found
    for many in {cluster.devices // node * node: 1, least.devices: 1}:
        if not least.devices <= many < cluster.devices:
            continue
        batch = asked.args.batch or usual_batch(many, asked.sequence)
        other = td.search(asked.model, cluster, batch, devices=[many], **run).settle(SETTLED)
        if len(other) and other.best.verdict == "fits":
            if asked.args.batch is None:
                asked.notes[-1] = f"a step of {batch:,} sequences of {asked.sequence:,} tokens"
            return other
    return found


def fewest(asked: Request, cluster: Any = None, recipe: Any = None) -> Any:
    """The Layout on the fewest devices of the cluster's kind, however many it has; or None."""
    cluster, recipe = cluster or asked.cluster, recipe or asked.recipe
    known = calibration_of(cluster.device, recipe, **asked.by)
    cached = getattr(asked.args, "cached", 0) or recipe.cached
    held = replace(known.holding(recipe), cached=cached)
    return fewest_devices(asked.model, td.Layout(), cluster, held, asked.sequence)


def _smallest(asked: Request) -> Run:
    """Of what has no time model, served or offloaded: the layout on the fewest devices."""
    if asked.args.batch is not None or asked.args.tokens is not None:
        check_trains(asked.recipe)
        check_timed(asked.recipe)
    asked.layout = fewest(asked)
    if asked.layout is None:
        asked.layout = td.Layout()
    else:
        options = shlex.join(asked.layout.options)
        asked.notes.append(f"the layout on the fewest devices: {options}")
    return (yield from one_layout(asked))


def _what_would(asked: Request, plans: Any, would: dict[str, Any]) -> Iterator[Any]:
    """Why none fits, and what would: more devices, larger ones, fewer states on them."""
    cluster, nearest = asked.cluster, plans.best
    over = overhead_of(nearest.layout, plans.run.framework).total
    many, room = cluster.devices, format_bytes(cluster.device.memory_bytes)
    states = asked.model.parameters * asked.recipe.bytes_per_parameter
    yield (
        "no",
        f": none of {plans.considered:,} layouts fits on {cluster}: states of "
        f"{asked.recipe.bytes_per_parameter:g} B a parameter are {format_bytes(states)}, "
        f"{format_bytes(states / many)} on each; the nearest layout, "
        f"{shlex.join(nearest.layout.options) or 'of one device'}, takes "
        f"{format_bytes(nearest.peak)} a device and {format_bytes(over)} of overhead",
    )
    if asked.args.explain:
        yield nearest.fit.reason
    lines = []
    least = fewest(asked)
    if least is not None and least.devices > many:
        would["devices"] = {"count": least.devices, "layout": vars(least)}
        again = command(asked, on_cards(asked, least.devices), least)
        lines.append((f"{least.devices:,} devices", again))
    sure = cluster.device.memory_bytes / sure_of(cluster.device, plans.run)
    needed = -int(-(nearest.peak + over) * sure // 1e9) * 10**9
    larger = _larger(asked, needed)
    size, card = (larger.memory_bytes, larger.name) if larger else (needed, "")
    would["memory"] = {"bytes": size, "card": card}
    some = f"{many:,} device{'s' * (many > 1)} of {format_bytes(size)} in the place of {room}"
    if larger:
        lines.append((f"{some}, such as {card}", command(asked, f"{many}x{card}")))
    else:
        lines.append((f"{some}, more than any card that is shipped has", ""))
    kept = any(state.of_optimizer for state in asked.recipe.states)
    for option, (changed, recipe) in SAVES.items():
        if asked.recipe.adapters is not None or ("offload" in changed and not kept):
            continue
        try:
            other = fewest(asked, recipe=recipe(asked.recipe))
        except ConfigError:  # adapters of weights that the model does not have
            continue
        if other is not None and other.devices <= many:
            would[option] = {"devices": other.devices, "layout": vars(other)}
            again = command(asked, asked.args.cluster, **changed)
            lines.append((f"{option}, on {other.devices:,} of the devices", again))
    yield "what would fit, each the smallest change of its kind:"
    for line, again in lines:
        yield f"  {line}{':' * bool(again)}"
        if again:
            yield f"    {again}"


def _larger(asked: Request, needed: int) -> Any:
    """The shipped Device with the least memory that is enough, by the program that runs on it,
    too; None if none has as much."""
    cards = (td.load_cluster(f"1x{name}").device for name in names("hardware"))
    enough = [card for card in cards if card.memory_bytes >= needed]
    for card in sorted(enough, key=lambda d: (d.memory_bytes, "TPU" in d.name, d.name)):
        cluster = td.load_cluster(f"{asked.cluster.devices}x{card.name}")
        try:
            least = fewest(asked, cluster)
        except ConfigError:  # such as a card without the recipe's precision
            continue
        if least is not None and least.devices <= cluster.devices:
            return card
    return None
