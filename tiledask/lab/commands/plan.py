"""`tiledask plan`: every layout of a cluster, ranked; or the fewest devices that do."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import (
    CLUSTER,
    MODEL,
    SETTLED,
    batch_of,
    check_cost,
    cost_options,
    recipe_of,
    recipe_words,
    run_options,
    say_assumed,
    sequence_of,
    shape_of,
    show_budget,
    tensor_bytes,
    whole,
)
from tiledask.lab.files import save_figure
from tiledask.lab.table import say
from tiledask.plan.choosing.smallest import search_fewest
from tiledask.plan.whole import whole_rule

__all__ = ["add", "run"]

Result = tuple[int, Any]

EXAMPLES = """examples:
  tiledask plan llama-2-7b 8xA100-80GB 64  # a step of 64 sequences
  tiledask plan 70B 64xH100 512 --devices 32,64  # on half of them, too
  tiledask plan gpt-200b 1x40GB --fewest  # how many cards of 40 GB"""


def add(adder: Callable[..., argparse.ArgumentParser]) -> None:
    """The command and its options."""
    words = "every layout of a cluster: which fit, which is fastest, what binds"
    sub = adder("plan", run, words, EXAMPLES)
    sub.add_argument("model", metavar="MODEL", help=MODEL)
    sub.add_argument("cluster", metavar="CLUSTER", help=CLUSTER)
    words = "sequences of a step, over all devices (8 a device, at most 4M tokens)"
    sub.add_argument("batch", type=whole, nargs="?", metavar="BATCH", help=words)
    group = sub.add_argument_group("which layouts")
    words = "the fewest devices of this kind that it trains on, however many there are"
    group.add_argument("--fewest", action="store_true", help=words)
    words = "numbers of devices to try, such as 64,128 (all)"
    group.add_argument("--devices", metavar="NUMBERS", help=words)
    group.add_argument("--first", type=_few, default=8, metavar="N", help="to show, to 100 (8)")
    run_options(sub)
    out = cost_options(sub)
    out.add_argument("--no-sensitivity", action="store_true", help="leave out what binds")
    out.add_argument("--figure", metavar="FILE", help="time against memory, as a picture")
    out.add_argument("--map", metavar="FILE", help="what fits by tp and pp, as a picture")


def _few(text: str) -> int:
    if not 1 <= whole(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be {whole_rule(1, 100)}, got {short(text)}")
    return int(text)


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 12 for word in words):
        raise ConfigError(
            f"--devices are whole numbers between commas, such as 64,128; got {short(text)}"
        )
    return [int(word) for word in words]


def run(args: argparse.Namespace, console: Any) -> Result:
    """The layouts ranked, what binds them; with --fewest the smallest cluster."""
    from tiledask.lab import planner
    from tiledask.lab.commands.one_layout import FitRequest

    check_cost(args)
    if tensor_bytes(args.model):
        raise ConfigError(
            f"{args.model} is the size of one weight, and a plan is of a model such as 70B; every "
            f"split of a weight: tiledask fit {args.model} {args.cluster}"
        )
    model, cluster = td.load_model(args.model), td.load_cluster(args.cluster)
    recipe, sequence = recipe_of(args, cluster.device), sequence_of(args, model)
    asked = FitRequest(
        model, cluster, recipe, sequence, assumed=shape_of(args, model, cluster, recipe)
    )
    if args.fewest:
        return _fewest(args, asked, console)
    batch = batch_of(args.batch, cluster.devices, sequence, asked.assumed)
    options: dict[str, Any] = {"sequence": sequence, "recipe": recipe}
    if args.devices is not None:
        options["devices"] = _counts(args.devices)
    options |= {"calibration": args.calibration, "framework": args.framework}
    plans = td.search(model, cluster, batch, **options).settle(SETTLED)
    best, saving = plans.best, None
    fits = best.verdict != "no"
    if fits:
        saving = best.checkpointing()
    exported = best.to(args.export) if args.export else None
    say_assumed(asked.assumed, console)
    words = [args.model, args.cluster, "--sequence", str(sequence), *recipe_words(args, recipe)]
    planner.show_plans(plans, args.first, console, words)
    relaxed = (
        [] if args.no_sensitivity else td.sensitivity(model, cluster, batch, plans=plans, **options)
    )
    if fits:
        planner.show_step(best.step, console)
    for each in relaxed:
        say(console, f"  {each}")
    _draw(args, plans)
    result = plans.to_dict(args.first) | {"sensitivity": [each.to_dict() for each in relaxed]}
    result["assumptions"] = asked.assumed
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if saving is not None:
        result |= {"step": best.step.to_dict(), "saving": saving.to_dict()}
        result |= show_budget(args, best.step, saving, console)
    if args.explain:
        say(console, f"{model.name}: {model.source}")
        say(console, saving.line if saving is not None else best.fit.reason)
    return (0 if fits else 1), result


def _draw(args: argparse.Namespace, plans: Any) -> None:
    """The pictures that were named."""
    if args.figure or args.map:
        from tiledask.lab.plots import feasibility, pareto

        for draw, path in ((pareto, args.figure), (feasibility, args.map)):
            if path:
                save_figure(draw(plans), path)


def _fewest(args: argparse.Namespace, asked: Any, console: Any) -> Result:
    """The fewest devices on which some layout fits, and that layout."""
    from tiledask.lab.commands.best import command, fewest

    if args.devices is not None:
        raise ConfigError("--fewest tries every number of devices; leave --devices out")
    layout = fewest(args, asked, asked.recipe)
    if args.batch is not None and layout is not None:  # of any batch: no fewer can do
        most = max(asked.cluster.devices, 4 * layout.devices)
        options = {"calibration": args.calibration, "framework": args.framework}
        plans = search_fewest(
            asked.model,
            replace(asked.cluster, devices=most),
            args.batch,
            sequence=asked.sequence,
            recipe=asked.recipe,
            **options,
        )
        layout = plans.best.layout if plans.best.verdict != "no" else None
    say_assumed(asked.assumed, console)
    kind = asked.cluster.device.name
    if layout is None:
        words = f"no number of {kind} holds {asked.model.name} with recipe {asked.recipe.name}"
        say(console, f": {words}", bold="no")
        return 1, {"verdict": "no", "devices": None, "assumptions": asked.assumed}
    cluster = replace(asked.cluster, devices=layout.devices)
    assumed = {"calibration": args.calibration, "framework": args.framework}
    fit = td.fits(asked.model, layout, cluster, asked.recipe, asked.sequence, **assumed)
    many = f"{layout.devices:,} x {kind}"
    step = f" with {args.batch:,} sequences a step" if args.batch else ""
    say(console, f": the fewest that {asked.model.name} fits on{step}; {fit.reason}", bold=many)
    say(console, f"that is: {command(args, asked, layout, layout.devices)}")
    if args.explain:
        say(console, fit.assumed)
    return 0, fit.to_dict() | {"devices": layout.devices, "assumptions": asked.assumed}
