"""`tiledask fit`: of a layout whether it fits, how fast it is, what it moves; of a model alone the
best layouts of a cluster, or what would fit. `tiledask plan`: every layout, ranked; the fewest
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
from tiledask.plan.choosing.ranking import plan_table
from tiledask.plan.choosing.smallest import search_fewest
from tiledask.plan.fitting.fewest import fewest_devices
from tiledask.plan.fitting.fit import TIGHT, used
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.inputs.run import caches, check_timed, check_trains
from tiledask.plan.tables import Part
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.plan.whole import whole_number

__all__ = ["FIT_OPTIONS", "PLAN_OPTIONS", "run_fit", "run_plan"]

EXPORTS = ("megatron", "torchtitan", "deepspeed")
"""What td.export_config writes, without loading it."""
MODEL = "gpt-200b, or another of `tiledask list models`; 70B; a config.json; a name on the hub"
CLUSTER = "80xA100-40GB, a card of `tiledask list hardware`; 80x40GB, by its memory; a JSON file"
SETTLED = 40
"""Layouts that are put in order by simulation before the first ones are shown."""
TRAINED = """\
# how it is trained
--sequence TOKENS    length of a sequence (2048, or less where the model has fewer positions)
--recipe NAME        bytes of a parameter: a name of `tiledask list recipes`, or a JSON file
                     (mixed-adam-16, or the framework's)
--lora-rank R        train adapters of rank R alone; with --recipe qlora over weights of 4 bits
--framework NAME     whose kernels and overlaps, such as megatron-2025
--calibration FILE   of td.calibrate, in its place"""
COSTS = f"""\
# what comes out
--explain            what is assumed, and why
--tokens COUNT       days and device-hours for so many, such as 15T
--price AMOUNT       with --tokens: of a device for an hour
--export {"|".join(EXPORTS)}  the layout, the first of several, for {", ".join(EXPORTS)}"""
FIT_OPTIONS = f"""
MODEL?               {MODEL}
CLUSTER              {CLUSTER}
# the layout (without one: the best layouts of the cluster)
--dp N               data-parallel copies (what the other three leave of the cluster)
--tp N               tensor-parallel slices of each layer (1)
--pp N               pipeline stages (1)
--cp N               context-parallel pieces of each sequence (1)
--ep N               devices that experts are dealt out to (1)
--expert-tp N        slices of each expert (those of --tp)
--microbatch N       sequences in a micro-batch (1)
--microbatches N     of one copy in a step (1, or what --batch asks for)
--interleave N       chunks of layers on a stage (1)
--zero 0|1|2|3       what copies share out: 1 optimizer states, 2 gradients too, 3 weights too (0)
--recompute WHICH    activations computed again: none, selective or full (none)
--schedule NAME      1f1b, or another of `tiledask list schedules` (1f1b)
--partition LAYERS   layers of each stage, such as 5,6,6,5; items: embedding and head are one each
                     (even)
--sequence-parallel  with --tp: what it leaves whole is cut along the sequence
--flash-attention    no s x s scores are kept
{TRAINED}
--batch N            sequences of a step, over all devices (of the best layouts 8 a device, at most
                     4M tokens; of one layout a micro-batch a copy)
--offload cpu|nvme   optimizer states in the host's memory, or on its disks
--cached TOKENS=0    to serve, with a recipe of weights alone: tokens whose keys and values a copy
                     keeps
--megatron FLAGS     model, layout and recipe from Megatron-LM's flags, or their file; options above
                     go before
{COSTS}
--critique           what is wrong, what is better
examples:
  tiledask fit 200B 80x40GB  # the best layouts of 80 cards
  tiledask fit llama-3.1-8b 8xH100 --zero 1  # one layout: dp 8, ZeRO-1
  tiledask fit 70B 64xH100 --tp 8 --pp 4 --batch 512
  tiledask fit 8B 1x24GB --lora-rank 16  # adapters alone

verdicts:
  fits   with all of the overhead, and as far off as half of the published runs
  tight  what is counted fits, but not with all of that
  no     it does not fit, or the cluster has too few devices
"""
PLAN_OPTIONS = f"""
MODEL                {MODEL}
CLUSTER              {CLUSTER}
BATCH?               sequences of a step, over all devices (8 a device, at most 4M tokens)
# which layouts
--fewest             the fewest devices of this kind that it trains on, however many there are
--devices NUMBERS    numbers of devices to try, such as 64,128 (all)
--first N=8          to show, to 100 (8)
{TRAINED}
{COSTS}
--no-sensitivity     leave out what binds
examples:
  tiledask plan llama-2-7b 8xA100-80GB 64  # a step of 64 sequences
  tiledask plan 70B 64xH100 512 --devices 32,64  # on half of them, too
  tiledask plan gpt-200b 1x40GB --fewest  # how many cards of 40 GB
"""
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
            check_trains(request.recipe)
            check_timed(request.recipe)
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
    if args.explain:
        yield from (*request.sources, plans.told_apart, *step.printed(), saving.line)
    return 0, result


def _one_layout(request: Request) -> Run:
    """Does it fit; how fast is it, what does it move; what would fit."""
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
    if step is not None and step.bytes_table is not None:
        yield step.bytes_table
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
    cluster, recipe = request.cluster, recipe or request.recipe
    known = calibration_of(cluster.device, recipe, **request.by)
    cached = getattr(request.args, "cached", 0) or recipe.cached
    held = replace(known.holding(recipe), cached=cached)
    return fewest_devices(request.model, td.Layout(), cluster, held, request.sequence)


def _what_would(request: Request, plans: Any, would: dict[str, Any]) -> Iterator[Part]:
    """Why none fits, and what would: more devices, or fewer states on them."""
    nearest, recipe, many = plans.best, request.recipe, request.cluster.devices
    over = overhead_of(nearest.layout, plans.run.framework).total
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
    for option, changed in SAVES.items() if recipe.adapters is None else ():
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
        step, saving = best.step, best.checkpointing()
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
    batch = request.args.batch
    if request.args.devices is not None:
        raise ConfigError("--fewest tries every number of devices; leave --devices out")
    layout = fewest(request)
    if batch is not None and layout is not None:  # of any batch: no fewer can do
        most = replace(request.cluster, devices=max(request.cluster.devices, 4 * layout.devices))
        found = search_fewest(request.model, most, batch, **request.options).best
        layout = found.layout if found.verdict != "no" else None
    kind, name = request.cluster.device.name, request.model.name
    if layout is None:
        yield "no", f": no number of {kind} holds {name} with recipe {request.recipe.name}"
        return 1, {"verdict": "no", "devices": None, "assumptions": request.notes}
    step = f" with {batch:,} sequences a step" if batch else ""
    yield f"{layout.devices:,} x {kind}", f": the fewest that {name} fits on{step}"
    yield f"that is: {request.command(layout.devices, layout)}"
    request.layout = layout
    request.cluster = replace(request.cluster, devices=layout.devices)
    code, result = yield from _one_layout(request)
    return code, result | {"devices": layout.devices}
