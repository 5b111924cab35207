"""One layout of a model on a cluster: does it fit, how fast is it, what does it move."""

import argparse
from dataclasses import dataclass, field
from typing import Any

import tiledask as td
from tiledask.lab.commands.options import say_assumed, show_budget
from tiledask.lab.files import save_figure
from tiledask.lab.table import say
from tiledask.plan.inputs.run import check_timed, check_trains

__all__ = ["FitRequest", "draw_memory", "one_layout"]

Result = tuple[int, Any]


@dataclass
class FitRequest:
    """What was typed or imported."""

    model: Any
    cluster: Any
    recipe: Any
    sequence: int
    layout: Any = None
    """None: whichever is best."""
    assumed: list[str] = field(default_factory=list)
    """What nobody said, for one line."""
    imported: Any = None
    way_out: str = ""
    """What a step of one micro-batch a copy stands for, where nobody gave a batch."""


def one_layout(args: argparse.Namespace, asked: FitRequest, console: Any) -> Result:
    """Does it fit; how fast is it, what does it move; what would fit."""
    from tiledask.lab import planner

    model, layout, cluster, recipe = asked.model, asked.layout, asked.cluster, asked.recipe
    run = (model, layout, cluster, recipe, asked.sequence)
    assumed = {"calibration": args.calibration, "framework": args.framework}
    fit = td.fits(*run, **assumed, cached=args.cached)
    as_run = fit.memory.recipe  # by the framework that was named
    found = td.critique(*run, **assumed) if args.critique else None
    step = saving = exported = None
    if args.tokens is not None:
        check_trains(as_run)
        check_timed(as_run)
    if fit.verdict != "no" and as_run.trains and not as_run.places:
        step = td.estimate_step(*run, **assumed)
        saving = fit.checkpointing(step.total)
    if args.export:
        exported = td.export_config(
            model, layout, args.export, recipe=recipe, sequence=asked.sequence
        )
    say_assumed(asked.assumed, console)
    planner.show_fit(fit, console, step, asked.way_out)
    result = fit.to_dict() | {"assumptions": asked.assumed}
    if asked.imported is not None:
        result["imported"] = {
            "layout": vars(layout),
            "recipe": asked.imported.recipe,
            "assumed": list(asked.imported.assumed),
        }
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if step is not None and saving is not None:
        planner.show_bytes(step, console)
        result |= {"step": step.to_dict(), "saving": saving.to_dict()}
        result |= show_budget(args, step, saving, console)
    if args.explain:
        _explain(asked, fit, step, saving, console)
    if found is not None:
        planner.show_critique(found, console)
        result["critique"] = found.to_dict()
    if args.figure:
        draw_memory(fit, args.figure)
    return (1 if fit.verdict == "no" else 0), result


def draw_memory(fit: Any, path: str) -> None:
    """The memory of each stage beside a device's."""
    from tiledask.lab.plots import memory_bars

    ledger, over = fit.memory.ledger, fit.overhead.total
    save_figure(memory_bars(ledger, fit.capacity, place="stage", overhead=over), path)


def _explain(asked: FitRequest, fit: Any, step: Any, saving: Any, console: Any) -> None:
    """What is assumed of model, devices and program, where the time goes, how often to save."""
    from tiledask.lab import planner

    sized = [f"{asked.model.name}: {asked.model.source}"] if asked.model.source else []
    for line in (*sized, fit.assumed, *(asked.imported.assumed if asked.imported else ())):
        say(console, line, wrap=True)
    if step is not None:
        planner.show_step(step, console)
        say(console, saving.line, wrap=True)
