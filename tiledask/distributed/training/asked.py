"""The program of a training before anything runs: `tiledask.training_program`."""

from collections.abc import Sequence

from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.validate import (
    of_kind,
    rule_of,
    scale_of,
    shape_of,
    terms_of,
)
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.program.making.training import end_program, step_program
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number
from tiledask.tile.optimizers import LossScale, Rule

__all__ = ["training_program"]


def training_program(
    model: GPT,
    ranks: Sequence[int],
    *,
    batch: int,
    microbatches: int | None = None,
    schedule: str | Schedule = "1f1b",
    cut: Sequence[int] | None = None,
    sequence_parallel: bool = False,
    zero: int = 0,
    rule: Rule | None = None,
    dtype: str = "float32",
    recipe: str | Recipe | None = None,
    scale: LossScale | None = None,
    clip: float | None = None,
    recompute: bool = False,
    checkpoint: bool = False,
) -> Program:
    """What every rank of a (dp, tp, pp) mesh would do in a step of `tiledask.train`.

    ``checkpoint``: what it would do after the last step instead, if it had a ``folder``.

    The arguments are those of `tiledask.train`, and so are the errors; nothing is computed, so a
    thousand ranks take a tenth of a second. The program says its bytes (``traffic``), what each
    rank holds (``memory``), when everything happens (``timeline``), and whether it is right
    (``check``).

    >>> model = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
    >>> program = training_program(model, (1, 1, 2), batch=4, microbatches=2)
    >>> program.check()
    Program(training 1f1b: 2 ranks, 216 instructions)
    >>> print(program.line_text(1))
    begin.0 1F.0 1B.0 1F.1 1B.1 update.0
    """
    shape = shape_of(ranks)
    batch = whole_number("batch", batch, 1)
    of_kind(model=model, rule=rule, scale=scale)
    rule = rule_of(rule, recipe)
    scale = scale_of(scale, dtype)
    terms = terms_of(
        model, shape, batch, microbatches, schedule, cut, sequence_parallel,
        zero, rule, dtype, recipe, scale, clip, recompute,
    )  # fmt: skip
    return end_program(terms, shape, saved=True) if checkpoint else step_program(terms, shape)
