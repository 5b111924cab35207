"""`tiledask fit`: of a layout whether it fits and how fast it is; of a model alone the best layouts
of a cluster, or what would fit. `tiledask plan`: every layout, ranked; the fewest
devices that do.
"""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.options import Run
from tiledask.lab.commands.request import Request, request_of, usual_batch
from tiledask.plan.choosing.search import plan_table
from tiledask.plan.fitting.fit import TIGHT, used
from tiledask.plan.fitting.fixes import fewest_devices
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.inputs.run import caches, check_trains
from tiledask.plan.tables import Part
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.plan.whole import whole_number

__all__ = ["run_fit", "run_plan"]

SETTLED = 40
"""Layouts that are put in order by simulation before the first ones are shown."""
FIRST = 5
"""Layouts that are shown, each of other degrees."""
DEGREES = ("dp", "tp", "pp", "cp")
SAVES: dict[str, dict[str, Any]] = {
    "--offload cpu": {"offload": "cpu"},
    "--lora-rank 16": {"lora_rank": 16, "recipe": None},
}
"""Options that keep less on the devices, and what they change of what was typed."""


def run_fit(args: argparse.Namespace) -> Run:
    """The answer by what was named: a model, a model in a layout."""
    request = request_of(args)
    if args.offload:
        request.recipe = td.offload(request.recipe, to=args.offload)
    if request.layout is None and request.recipe.trains and not request.recipe.places:
        return (yield from _best(request))
    if request.layout is None:  # of what has no time model, served or offloaded
        if args.batch is not None or args.tokens is not None:
            check_trains(request.recipe, timed=True)
        if least := fewest(request):
            options = shlex.join(least.options)
            request.notes.append(f"the layout on the fewest devices: {options}")
        request.layout = least or td.Layout()
    return (yield from _one_layout(request))


def _best(request: Request) -> Run:
    """The fastest layouts that fit, or what would."""
    args = request.args
    caches(request.recipe, args.cached)  # refused where it trains
    plans = _search(request)
    few, first, devices = _differ(plans), plans.best, request.cluster.devices
    result: dict[str, Any] = {
        "model": {"name": request.model.name, "source": request.model.source},
        "considered": plans.considered,
        "counts": plans.counts,
        "plans": [plan.to_dict() for plan in few],
        "verdict": first.verdict,
        "devices": first.layout.devices,
        "batch": plans.global_batch,
        "sequence": request.sequence,
        "recipe": plans.recipe.name,
        "framework": plans.run.framework,
        "assumptions": request.notes,
    }
    if first.verdict == "no":
        yield from request.assumed
        result["would_fit"] = {}
        yield from _what_would(request, plans, result["would_fit"])
        return 1, result
    for plan, facts in zip(few, result["plans"], strict=True):
        facts |= {"tokens_per_second": plan.step.tokens_per_second, "mfu": plan.step.mfu}
    step, saving = first.step, first.fit.checkpointing(first.seconds)
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
    yield f"the first one:\n  {again}"
    yield from extras
    if args.explain:
        yield from (*request.sources, *step.printed(), saving.line)
    return 0, result


def _one_layout(request: Request) -> Run:
    """Does it fit; how fast is it; what would fit."""
    args = request.args
    fit = td.fits(*request.run, **request.by, cached=getattr(args, "cached", 0))
    recipe = fit.memory.recipe  # by the framework that was named
    step = saving = None
    if fit.verdict != "no" and recipe.trains and not recipe.places:
        step = td.estimate_step(*request.run, **request.by)
        saving = fit.checkpointing(step.total)
    result = fit.to_dict() | {"assumptions": request.notes}
    extras = [*request.extras(step, saving, result)]  # a mistake in them is the answer
    yield from request.assumed
    yield from fit.printed(step.line if step is not None else "")
    yield from extras
    result |= {"imported": request.read} if request.read else {}
    if args.explain:
        yield from (*request.sources, fit.assumed)
        if step is not None and saving is not None:
            yield from (*step.printed(), saving.line)
    return (1 if fit.verdict == "no" else 0), result


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
    run, given = request.options, request.args.batch
    found = td.search(request.model, cluster, request.batch(), **run).settle(SETTLED)
    if found.best.verdict == "fits":
        return found
    least = fewest(request)
    if least is None or least.devices > cluster.devices:
        return found
    for many in {cluster.devices // node * node: 1, least.devices: 1}:
        if not least.devices <= many < cluster.devices:
            continue
        batch = given or usual_batch(many, request.sequence)
        other = td.search(request.model, cluster, batch, devices=[many], **run).settle(SETTLED)
        if len(other) and other.best.verdict == "fits":
            if given is None:
                request.notes[-1] = f"a step of {batch:,} sequences of {request.sequence:,} tokens"
            return other
    return found


def fewest(request: Request, recipe: Any = None) -> Any:
    """The Layout on the fewest devices of the cluster's kind, however many it has; or None."""
    recipe = recipe or request.recipe
    start = td.Layout(zero=3 if recipe.offloads_weights else 0)
    run = request.model, start, request.cluster, recipe, request.sequence
    fit = td.fits(*run, **request.by, cached=getattr(request.args, "cached", 0))
    return fewest_devices(fit.memory, fit.cluster, fit.own)


def _what_would(request: Request, plans: Any, would: dict[str, Any]) -> Iterator[Part]:
    """Why none fits, and what would: more devices, or fewer states on them."""
    nearest, recipe, many = plans.best, request.recipe, request.cluster.devices
    over = overhead_of(nearest.layout, plans.run.framework)
    states = request.model.parameters * recipe.bytes_per_parameter
    yield (
        "no",
        f": none of {plans.considered:,} layouts fits on {request.cluster}: states of "
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
        yield f"  {least.devices:,} devices:\n    {request.command(least.devices, least)}"
    for option, changed in SAVES.items() if not recipe.adapters else ():
        try:
            less = td.offload(recipe, to="cpu") if "offload" in changed else td.load_recipe("lora")
            other = fewest(request, less)
        except ConfigError:  # no states to offload; adapters of weights that the model lacks
            continue
        if other is not None and other.devices <= many:
            would[option] = {"devices": other.devices, "layout": vars(other)}
            yield f"  {option}, on {other.devices:,} of the devices:"
            yield f"    {request.command(**changed)}"


# -- plan ------------------------------------------------------------------------------------------


def run_plan(args: argparse.Namespace) -> Run:
    """The layouts ranked, what binds them; with --fewest the smallest cluster."""
    whole_number("--first", args.first, 1, 100)
    request = request_of(args)
    if args.fewest:
        return (yield from _fewest(request))
    options = request.options | ({} if args.devices is None else {"devices": args.devices})
    given = request.model, request.cluster, request.batch()
    plans = td.search(*given, **options).settle(SETTLED)
    best, step, saving = plans.best, None, None
    if best.verdict != "no":
        step, saving = best.step, best.fit.checkpointing(best.seconds)
    result = plans.to_dict(args.first) | {"assumptions": request.notes}
    extras = [*replace(request, layout=best.layout).extras(step, saving, result)]
    yield from request.assumed
    again = request.command(layout=plans.settle(args.first)[0].layout)
    yield from plans.printed(args.first, again)
    relaxed = [] if args.no_sensitivity else td.sensitivity(*given, plans=plans, **options)
    result["sensitivity"] = [each.to_dict() for each in relaxed]
    if step is not None:
        yield from step.printed()
    yield from (f"  {each}" for each in relaxed)
    yield from extras
    if args.explain:
        yield from request.sources
        yield saving.line if saving is not None else best.fit.reason
    return (1 if saving is None else 0), result


def _fewest(request: Request) -> Run:
    """The fewest devices on which some layout fits, and that layout."""
    args = request.args
    if args.devices is not None or args.batch is not None:
        which = "--devices" if args.devices is not None else "the batch"
        raise ConfigError(f"--fewest tries every number of devices and copies; leave {which} out")
    layout = fewest(request)
    kind, name = request.cluster.device.name, request.model.name
    if layout is None:
        yield "no", f": no number of {kind} holds {name} with recipe {request.recipe.name}"
        return 1, {"verdict": "no", "devices": None, "assumptions": request.notes}
    yield f"{layout.devices:,} x {kind}", f": the fewest that {name} fits on"
    yield f"that is: {request.command(layout.devices, layout)}"
    request.layout = layout
    request.cluster = replace(request.cluster, devices=layout.devices)
    code, result = yield from _one_layout(request)
    return code, result | {"devices": layout.devices}
