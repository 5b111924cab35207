"""`tiledask plan`: every layout of a cluster, ranked; or the fewest devices that do."""

import argparse
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.fit import draw_memory, fewest
from tiledask.lab.commands.options import Run
from tiledask.lab.commands.request import (
    CLUSTER,
    COSTS,
    MODEL,
    SETTLED,
    TRAINED,
    Request,
    request_of,
)
from tiledask.plan.choosing.smallest import search_fewest
from tiledask.plan.whole import whole_number

__all__ = ["PLAN_OPTIONS", "run_plan"]

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
--figure FILE        the memory of the first plan, as a picture
examples:
  tiledask plan llama-2-7b 8xA100-80GB 64  # a step of 64 sequences
  tiledask plan 70B 64xH100 512 --devices 32,64  # on half of them, too
  tiledask plan gpt-200b 1x40GB --fewest  # how many cards of 40 GB
"""


def run_plan(args: argparse.Namespace) -> Run:
    """The layouts ranked, what binds them; with --fewest the smallest cluster."""
    whole_number("--first", args.first, 1, 100)
    request = request_of(args)
    if args.fewest:
        return (yield from _fewest(request))
    options: dict[str, Any] = {"sequence": request.sequence, "recipe": request.recipe, **request.by}
    options |= {} if args.devices is None else {"devices": args.devices}
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
    draw_memory(best.fit, args.figure)
    if args.explain:
        yield from request.sources
        yield saving.line if saving is not None else best.fit.reason
    return (1 if saving is None else 0), result


def _fewest(request: Request) -> Run:
    """The fewest devices on which some layout fits, and that layout."""
    batch = request.args.batch
    if request.args.devices is not None:
        raise ConfigError("--fewest tries every number of devices; leave --devices out")
    layout, run = fewest(request), {"recipe": request.recipe, "sequence": request.sequence}
    if batch is not None and layout is not None:  # of any batch: no fewer can do
        most = replace(request.cluster, devices=max(request.cluster.devices, 4 * layout.devices))
        found = search_fewest(request.model, most, batch, **run, **request.by).best
        layout = found.layout if found.verdict != "no" else None
    yield from request.assumed
    kind, name = request.cluster.device.name, request.model.name
    if layout is None:
        yield "no", f": no number of {kind} holds {name} with recipe {request.recipe.name}"
        return 1, {"verdict": "no", "devices": None, "assumptions": request.notes}
    cluster = replace(request.cluster, devices=layout.devices)
    fit = td.fits(request.model, layout, cluster, **run, **request.by)
    step = f" with {batch:,} sequences a step" if batch else ""
    words = f": the fewest that {name} fits on{step}; {fit.reason}"
    yield f"{layout.devices:,} x {kind}", words
    yield f"that is: {request.command(layout.devices, layout)}"
    if request.args.explain:
        yield fit.assumed
    return 0, fit.to_dict() | {"devices": layout.devices, "assumptions": request.notes}
