"""One layout of a model on a cluster: does it fit, how fast is it, what does it move."""

import tiledask as td
from tiledask.lab.commands import shown
from tiledask.lab.commands.options import Request, Run
from tiledask.plan.inputs.run import check_timed, check_trains

__all__ = ["one_layout"]


def one_layout(asked: Request) -> Run:
    """Does it fit; how fast is it, what does it move; what would fit."""
    args, run = asked.args, asked.run
    fit = td.fits(*run, **asked.by, cached=args.cached)
    as_run = fit.memory.recipe  # by the framework that was named
    found = td.critique(*run, **asked.by) if args.critique else None
    if args.tokens is not None:
        check_trains(as_run)
        check_timed(as_run)
    step = saving = exported = None
    if fit.verdict != "no" and as_run.trains and not as_run.places:
        step = td.estimate_step(*run, **asked.by)
        saving = fit.checkpointing(step.total)
    if args.export:
        options = {"recipe": asked.recipe, "sequence": asked.sequence}
        exported = td.export_config(asked.model, asked.layout, args.export, **options)
    yield from asked.assumed
    yield from shown.fit_words(fit, step, asked.way_out)
    result = fit.to_dict() | {"assumptions": asked.notes}
    assumed = [f"{asked.model.name}: {asked.model.source}"] if asked.model.source else []
    assumed.append(fit.assumed)
    if asked.imported is not None:
        read = {"recipe": asked.imported.recipe, "assumed": list(asked.imported.assumed)}
        result["imported"] = {"layout": vars(asked.layout), **read}
        assumed += read["assumed"]
    if exported is not None:
        yield from shown.export_words(exported, result)
    if step is not None:
        yield from shown.bytes_table(step)
        yield from shown.cost_words(args, step, saving, result)
    if args.explain:
        yield from assumed
        if step is not None and saving is not None:
            yield from (*shown.step_words(step), saving.line)
    if found is not None:
        yield from shown.critique_words(found, result)
    shown.draw_memory(fit, args.figure)
    return (1 if fit.verdict == "no" else 0), result
