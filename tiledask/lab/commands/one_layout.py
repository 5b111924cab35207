"""One layout of a model on a cluster: does it fit, how fast is it, what does it move."""

import argparse
from typing import Any

import tiledask as td
from tiledask.lab import planner
from tiledask.lab.commands.options import Request, Result, assumed_by, say_assumed, show_budget
from tiledask.lab.table import say
from tiledask.plan.inputs.run import check_timed, check_trains

__all__ = ["draw_memory", "one_layout"]


def one_layout(args: argparse.Namespace, asked: Request, console: Any) -> Result:
    """Does it fit; how fast is it, what does it move; what would fit."""
    run = (asked.model, asked.layout, asked.cluster, asked.recipe, asked.sequence)
    fit = td.fits(*run, **assumed_by(args), cached=args.cached)
    as_run = fit.memory.recipe  # by the framework that was named
    found = td.critique(*run, **assumed_by(args)) if args.critique else None
    if args.tokens is not None:
        check_trains(as_run)
        check_timed(as_run)
    step = saving = exported = None
    if fit.verdict != "no" and as_run.trains and not as_run.places:
        step = td.estimate_step(*run, **assumed_by(args))
        saving = fit.checkpointing(step.total)
    if args.export:
        options = {"recipe": asked.recipe, "sequence": asked.sequence}
        exported = td.export_config(asked.model, asked.layout, args.export, **options)
    say_assumed(asked, console)
    planner.show_fit(fit, console, step, asked.way_out)
    result = fit.to_dict() | {"assumptions": asked.assumed}
    if asked.imported is not None:
        read = {"recipe": asked.imported.recipe, "assumed": list(asked.imported.assumed)}
        result["imported"] = {"layout": vars(asked.layout), **read}
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if step is not None:
        planner.show_bytes(step, console)
        result |= show_budget(args, step, saving, console)
    if args.explain:
        sized = [f"{asked.model.name}: {asked.model.source}"] if asked.model.source else []
        for line in (*sized, fit.assumed, *(asked.imported.assumed if asked.imported else ())):
            say(console, line, wrap=True)
        if step is not None and saving is not None:
            planner.show_step(step, console)
            say(console, saving.line, wrap=True)
    if found is not None:
        result["critique"] = planner.show_critique(found, console)
    if args.figure:
        draw_memory(fit, args.figure)
    return (1 if fit.verdict == "no" else 0), result


def draw_memory(fit: Any, path: str) -> None:
    """The memory of each stage beside a device's."""
    from tiledask.lab.files import save_figure
    from tiledask.lab.plots import memory_bars

    over = fit.overhead.total
    figure = memory_bars(fit.memory.ledger, fit.capacity, place="stage", overhead=over)
    save_figure(figure, path)
