"""One layout of a model on a cluster: does it fit, how fast is it, what does it move."""

from typing import Any

import tiledask as td
from tiledask.lab.commands.options import Run
from tiledask.lab.commands.request import Request, draw

__all__ = ["draw_memory", "one_layout"]


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
