"""What `fit` answers: of a cluster the best layouts, or what would fit; of one layout whether it
fits, how fast it is, what it moves."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.options import Run
from tiledask.lab.commands.request import SETTLED, Request, draw, usual_batch
from tiledask.plan.choosing.ranking import plan_table
from tiledask.plan.fitting.fewest import fewest_devices
from tiledask.plan.fitting.fit import TIGHT, used
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.inputs.run import caches, check_timed, check_trains
from tiledask.plan.tables import Part
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["best", "draw_memory", "fewest", "one_layout"]

FIRST = 5
"""Layouts that are shown, each of other degrees."""
DEGREES = ("dp", "tp", "pp", "cp")
SAVES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "--offload cpu": ({"offload": "cpu"}, lambda recipe: td.offload(recipe, to="cpu")),
    "--lora-rank 16": ({"lora_rank": 16, "recipe": None}, lambda recipe: td.load_recipe("lora")),
}
"""Options that keep less on the devices: what they change, and the recipe."""


def best(request: Request) -> Run:
    """The fastest layouts that fit, or what would."""
    args = request.args
    if not request.recipe.trains or request.recipe.places:
        return (yield from _smallest(request))
    caches(request.recipe, args.cached)  # refused where it trains
    plans = _search(request)
    few, first, devices = _differ(plans), plans.best, request.cluster.devices
    fits = first.verdict != "no"
    speed = ("tokens_per_second", "mfu")
    result: dict[str, Any] = {
        "model": {"name": request.model.name, "source": request.model.source},
        "considered": plans.considered,
        "counts": plans.counts,
        "plans": [
            plan.to_dict()
            | {name: getattr(plan.step, name) for name in speed * (plan.verdict != "no")}
            for plan in few
        ],
        "verdict": first.verdict,
        "devices": first.layout.devices,
        "batch": plans.global_batch,
        "sequence": request.sequence,
        "recipe": plans.recipe.name,
        "framework": plans.run.framework,
        "assumptions": request.notes,
    }
    if not fits:
        yield from request.assumed
        result["would_fit"] = {}
        yield from _what_would(request, plans, result["would_fit"])
        return 1, result
    step, saving = first.step, first.checkpointing()
    extras = [*replace(request, layout=first.layout).extras(step, saving, result)]
    yield from request.assumed
    where = used(first.layout, devices) or f" on {devices:,} device{'s' * (devices > 1)}"
    yield (
        first.verdict,
        f"{where}: {plans.counts[first.verdict]:,} of {plans.considered:,} layouts; the fastest "
        f"takes {format_seconds(first.seconds)} a step, {step.tokens_per_second:,.0f} tokens/s, "
        f"MFU {100 * step.mfu:.1f} %",
    )
    yield from [TIGHT] * (first.verdict == "tight")
    yield plan_table(few, "the fastest of each dp, tp, pp and cp")
    again = request.command(devices, first.layout)
    yield f"the first one; as typed here it shows the bytes that each axis moves, too:\n  {again}"
    yield from extras
    draw_memory(first.fit, args.figure)
    if args.explain:
        yield from (*request.source, plans.told_apart, *step.printed(), saving.line)
    return 0, result


def one_layout(request: Request) -> Run:
    """Does it fit; how fast is it, what does it move; what would fit."""
    args = request.args
    fit = td.fits(*request.run, **request.by, cached=args.cached)
    recipe = fit.memory.recipe  # by the framework that was named
    step = saving = None
    if fit.verdict != "no" and recipe.trains and not recipe.places:
        step = td.estimate_step(*request.run, **request.by)
        saving = fit.checkpointing(step.total)
    result = fit.to_dict() | {"assumptions": request.notes}
    extras = [*request.extras(step, saving, result)]  # a mistake in them is the answer
    yield from request.assumed
    yield from fit.printed(step.line if step is not None else "")
    if step is not None and step.bytes_table is not None:
        yield step.bytes_table
    yield from extras
    assumed = [*request.source, fit.assumed]
    if request.imported is not None:
        read = {"recipe": request.imported.recipe, "assumed": list(request.imported.assumed)}
        result["imported"] = {"layout": vars(request.layout), **read}
        assumed += read["assumed"]
    if args.explain:
        yield from assumed
        if step is not None and saving is not None:
            yield from (*step.printed(), saving.line)
    draw_memory(fit, args.figure)
    return (1 if fit.verdict == "no" else 0), result


def draw_memory(fit: Any, path: str | None) -> None:
    """The memory of each stage beside a device's, where a file was named."""
    over = fit.overhead.total
    draw("memory_bars", path, fit.memory.ledger, fit.capacity, place="stage", overhead=over)


def _differ(plans: Any) -> list[Any]:
    """The fastest of the first few for each dp x tp x pp x cp; of those that fit, if any does."""
    found: dict[Any, Any] = {}
    for plan in plans[:SETTLED]:
        if plan.verdict != "no" or plans.best.verdict == "no":
            found.setdefault(tuple(getattr(plan.layout, name) for name in DEGREES), plan)
    return list(found.values())[:FIRST]


def _search(request: Request) -> Any:
    """The layouts of all devices; where none of them fits, of fewer that share out better."""
    cluster, node = request.cluster, request.cluster.devices_per_node
    run = {"sequence": request.sequence, "recipe": request.recipe, **request.by}
    found = td.search(request.model, cluster, request.batch(), **run).settle(SETTLED)
    if found.best.verdict == "fits":
        return found
    least = fewest(request)
    if least is None or least.devices > cluster.devices:
        return found
    for many in {cluster.devices // node * node: 1, least.devices: 1}:
        if not least.devices <= many < cluster.devices:
            continue
        batch = request.args.batch or usual_batch(many, request.sequence)
        other = td.search(request.model, cluster, batch, devices=[many], **run).settle(SETTLED)
        if len(other) and other.best.verdict == "fits":
            if request.args.batch is None:
                request.notes[-1] = f"a step of {batch:,} sequences of {request.sequence:,} tokens"
            return other
    return found


def fewest(request: Request, recipe: Any = None) -> Any:
    """The Layout on the fewest devices of the cluster's kind, however many it has; or None."""
    cluster, recipe = request.cluster, recipe or request.recipe
    known = calibration_of(cluster.device, recipe, **request.by)
    cached = getattr(request.args, "cached", 0) or recipe.cached
    held = replace(known.holding(recipe), cached=cached)
    return fewest_devices(request.model, td.Layout(), cluster, held, request.sequence)


def _smallest(request: Request) -> Run:
    """Of what has no time model, served or offloaded: the layout on the fewest devices."""
    if request.args.batch is not None or request.args.tokens is not None:
        check_trains(request.recipe)
        check_timed(request.recipe)
    request.layout = fewest(request)
    if request.layout is None:
        request.layout = td.Layout()
    else:
        options = shlex.join(request.layout.options)
        request.notes.append(f"the layout on the fewest devices: {options}")
    return (yield from one_layout(request))


def _what_would(request: Request, plans: Any, would: dict[str, Any]) -> Iterator[Part]:
    """Why none fits, and what would: more devices, or fewer states on them."""
    cluster, nearest, recipe = request.cluster, plans.best, request.recipe
    over = overhead_of(nearest.layout, plans.run.framework).total
    many = cluster.devices
    states = request.model.parameters * recipe.bytes_per_parameter
    yield (
        "no",
        f": none of {plans.considered:,} layouts fits on {cluster}: states of "
        f"{recipe.bytes_per_parameter:g} B a parameter are {format_bytes(states)}, "
        f"{format_bytes(states / many)} on each; the nearest layout, "
        f"{shlex.join(nearest.layout.options) or 'of one device'}, takes "
        f"{format_bytes(nearest.peak)} a device and {format_bytes(over)} of overhead",
    )
    if request.args.explain:
        yield nearest.fit.reason
    yield "what would fit, each the smallest change of its kind:"
    least = fewest(request)
    if least is not None and least.devices > many:
        would["devices"] = {"count": least.devices, "layout": vars(least)}
        yield _way(f"{least.devices:,} devices", request.command(least.devices, least))
    for option, (changed, less) in SAVES.items():
        kept = any(state.of_optimizer for state in recipe.states)
        if recipe.adapters is not None or ("offload" in changed and not kept):
            continue
        try:
            other = fewest(request, less(recipe))
        except ConfigError:  # adapters of weights that the model does not have
            continue
        if other is not None and other.devices <= many:
            would[option] = {"devices": other.devices, "layout": vars(other)}
            yield _way(f"{option}, on {other.devices:,} of the devices", request.command(**changed))


def _way(what: str, command: str) -> str:
    return f"  {what}:\n    {command}"
