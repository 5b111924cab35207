"""`tiledask plan`: every layout of a cluster, ranked; or the fewest devices that do."""

import argparse
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands import shown
from tiledask.lab.commands.best import fewest, on_cards
from tiledask.lab.commands.options import (
    CLUSTER,
    COSTS,
    MODEL,
    SETTLED,
    TRAINED,
    Request,
    Run,
    check_cost,
    command,
    request_of,
    tensor_bytes,
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
--figure FILE        what fits by tp and pp, as a picture
examples:
  tiledask plan llama-2-7b 8xA100-80GB 64  # a step of 64 sequences
  tiledask plan 70B 64xH100 512 --devices 32,64  # on half of them, too
  tiledask plan gpt-200b 1x40GB --fewest  # how many cards of 40 GB
"""


def run_plan(args: argparse.Namespace) -> Run:
    """The layouts ranked, what binds them; with --fewest the smallest cluster."""
    check_cost(args)
    whole_number("--first", args.first, 1, 100)
    if tensor_bytes(args.model):
        raise ConfigError(
            f"{args.model} is the size of one weight, and a plan is of a model such as 70B; every "
            f"split of a weight: tiledask fit {args.model} {args.cluster}"
        )
    asked = request_of(args)
    if args.fewest:
        return (yield from _fewest(asked))
    options: dict[str, Any] = {"sequence": asked.sequence, "recipe": asked.recipe, **asked.by}
    if args.devices is not None:
        options["devices"] = args.devices
    given = asked.model, asked.cluster, asked.batch()
    plans = td.search(*given, **options).settle(SETTLED)
    best = plans.best
    saving = best.checkpointing() if best.verdict != "no" else None
    exported = best.to(args.export) if args.export else None
    yield from asked.assumed
    again = command(asked, args.cluster, plans.settle(args.first)[0].layout)
    yield from shown.plans_words(plans, args.first, again)
    relaxed = [] if args.no_sensitivity else td.sensitivity(*given, plans=plans, **options)
    if saving is not None:
        yield from shown.step_words(best.step)
    yield from (f"  {each}" for each in relaxed)
    shown.draw("feasibility", args.figure, plans)
    result = plans.to_dict(args.first) | {"sensitivity": [each.to_dict() for each in relaxed]}
    result["assumptions"] = asked.notes
    if exported is not None:
        yield from shown.export_words(exported, result)
    if saving is not None:
        yield from shown.cost_words(args, best.step, saving, result)
    if args.explain:
        yield f"{asked.model.name}: {asked.model.source}"
        yield saving.line if saving is not None else best.fit.reason
    return (1 if saving is None else 0), result


def _fewest(asked: Request) -> Run:
    """The fewest devices on which some layout fits, and that layout."""
    batch = asked.args.batch
    if asked.args.devices is not None:
        raise ConfigError("--fewest tries every number of devices; leave --devices out")
    layout, run = fewest(asked), {"recipe": asked.recipe, "sequence": asked.sequence}
    if batch is not None and layout is not None:  # of any batch: no fewer can do
        most = replace(asked.cluster, devices=max(asked.cluster.devices, 4 * layout.devices))
        found = search_fewest(asked.model, most, batch, **run, **asked.by).best
        layout = found.layout if found.verdict != "no" else None
    yield from asked.assumed
    kind, name = asked.cluster.device.name, asked.model.name
    if layout is None:
        yield "no", f": no number of {kind} holds {name} with recipe {asked.recipe.name}"
        return 1, {"verdict": "no", "devices": None, "assumptions": asked.notes}
    cluster = replace(asked.cluster, devices=layout.devices)
    fit = td.fits(asked.model, layout, cluster, **run, **asked.by)
    step = f" with {batch:,} sequences a step" if batch else ""
    words = f": the fewest that {name} fits on{step}; {fit.reason}"
    yield f"{layout.devices:,} x {kind}", words
    yield f"that is: {command(asked, on_cards(asked, layout.devices), layout)}"
    if asked.args.explain:
        yield fit.assumed
    return 0, fit.to_dict() | {"devices": layout.devices, "assumptions": asked.notes}
