"""`tiledask plan`: every layout of a cluster, ranked; or the fewest devices that do."""

import argparse
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab import planner
from tiledask.lab.commands.options import (
    CLUSTER,
    COSTS,
    MODEL,
    SETTLED,
    TRAINED,
    WHOLE,
    Heading,
    Request,
    Result,
    assumed_by,
    batch_of,
    check_cost,
    recipe_words,
    request_of,
    say_assumed,
    show_budget,
    tensor_bytes,
    whole,
)
from tiledask.lab.table import say
from tiledask.plan.choosing.smallest import search_fewest
from tiledask.plan.whole import whole_rule

__all__ = ["PLAN_OPTIONS", "run_plan"]


def _few(text: str) -> int:
    if not 1 <= whole(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be {whole_rule(1, 100)}, got {short(text)}")
    return int(text)


PLAN_OPTIONS = (
    ("MODEL", MODEL),
    ("CLUSTER", CLUSTER),
    (
        "BATCH",
        "sequences of a step, over all devices (8 a device, at most 4M tokens)",
        WHOLE | {"nargs": "?"},
    ),
    Heading("which layouts"),
    ("--fewest", "the fewest devices of this kind that it trains on, however many there are"),
    ("--devices NUMBERS", "numbers of devices to try, such as 64,128 (all)"),
    ("--first N", "to show, to 100 (8)", {"type": _few, "default": 8}),
    *TRAINED,
    *COSTS,
    ("--no-sensitivity", "leave out what binds"),
    ("--figure FILE", "time against memory, as a picture"),
    ("--map FILE", "what fits by tp and pp, as a picture"),
    """examples:
  tiledask plan llama-2-7b 8xA100-80GB 64  # a step of 64 sequences
  tiledask plan 70B 64xH100 512 --devices 32,64  # on half of them, too
  tiledask plan gpt-200b 1x40GB --fewest  # how many cards of 40 GB""",
)


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 12 for word in words):
        raise ConfigError(
            f"--devices are whole numbers between commas, such as 64,128; got {short(text)}"
        )
    return [int(word) for word in words]


def run_plan(args: argparse.Namespace, console: Any) -> Result:
    """The layouts ranked, what binds them; with --fewest the smallest cluster."""
    check_cost(args)
    if tensor_bytes(args.model):
        raise ConfigError(
            f"{args.model} is the size of one weight, and a plan is of a model such as 70B; every "
            f"split of a weight: tiledask fit {args.model} {args.cluster}"
        )
    asked = request_of(args)
    if args.fewest:
        return _fewest(args, asked, console)
    model, cluster, recipe = asked.model, asked.cluster, asked.recipe
    batch = batch_of(args, asked)
    options: dict[str, Any] = {"sequence": asked.sequence, "recipe": recipe}
    if args.devices is not None:
        options["devices"] = _counts(args.devices)
    options |= assumed_by(args)
    plans = td.search(model, cluster, batch, **options).settle(SETTLED)
    best = plans.best
    saving = best.checkpointing() if best.verdict != "no" else None
    exported = best.to(args.export) if args.export else None
    say_assumed(asked, console)
    words = [args.model, args.cluster, "--sequence", str(asked.sequence)]
    planner.show_plans(plans, args.first, console, [*words, *recipe_words(args, recipe)])
    relaxed = (
        [] if args.no_sensitivity else td.sensitivity(model, cluster, batch, plans=plans, **options)
    )
    if saving is not None:
        planner.show_step(best.step, console)
    for each in relaxed:
        say(console, f"  {each}")
    _draw(args, plans)
    result = plans.to_dict(args.first) | {"sensitivity": [each.to_dict() for each in relaxed]}
    result["assumptions"] = asked.assumed
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if saving is not None:
        result |= show_budget(args, best.step, saving, console)
    if args.explain:
        say(console, f"{model.name}: {model.source}")
        say(console, saving.line if saving is not None else best.fit.reason)
    return (1 if saving is None else 0), result


def _draw(args: argparse.Namespace, plans: Any) -> None:
    """The pictures that were named."""
    if args.figure or args.map:
        from tiledask.lab.files import save_figure
        from tiledask.lab.plots import feasibility, pareto

        for draw, path in ((pareto, args.figure), (feasibility, args.map)):
            if path:
                save_figure(draw(plans), path)


def _fewest(args: argparse.Namespace, asked: Request, console: Any) -> Result:
    """The fewest devices on which some layout fits, and that layout."""
    from tiledask.lab.commands.best import command, fewest

    if args.devices is not None:
        raise ConfigError("--fewest tries every number of devices; leave --devices out")
    layout, run = fewest(args, asked), {"recipe": asked.recipe, "sequence": asked.sequence}
    if args.batch is not None and layout is not None:  # of any batch: no fewer can do
        most = replace(asked.cluster, devices=max(asked.cluster.devices, 4 * layout.devices))
        found = search_fewest(asked.model, most, args.batch, **run, **assumed_by(args)).best
        layout = found.layout if found.verdict != "no" else None
    say_assumed(asked, console)
    kind = asked.cluster.device.name
    if layout is None:
        words = f"no number of {kind} holds {asked.model.name} with recipe {asked.recipe.name}"
        say(console, f": {words}", bold="no")
        return 1, {"verdict": "no", "devices": None, "assumptions": asked.assumed}
    cluster = replace(asked.cluster, devices=layout.devices)
    fit = td.fits(asked.model, layout, cluster, **run, **assumed_by(args))
    step = f" with {args.batch:,} sequences a step" if args.batch else ""
    words = f": the fewest that {asked.model.name} fits on{step}; {fit.reason}"
    say(console, words, bold=f"{layout.devices:,} x {kind}")
    say(console, f"that is: {command(args, asked, layout, layout.devices)}")
    if args.explain:
        say(console, fit.assumed)
    return 0, fit.to_dict() | {"devices": layout.devices, "assumptions": asked.assumed}
